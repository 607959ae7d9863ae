"""What a tick has to say, collected on its way."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Words:
    """Sentences for the reader.

    Args:
        problems: What was wrong with the input.
        notes: What else was done or left out.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def problem(self, *sentences: str) -> None:
        """Add what was wrong."""
        _add(self.problems, sentences)

    def note(self, *sentences: str) -> None:
        """Add what is good to know."""
        _add(self.notes, sentences)


def _add(words: list[str], sentences: Iterable[str]) -> None:
    words += [one for one in dict.fromkeys(sentences) if one not in words]
