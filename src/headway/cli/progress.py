"""What a demonstration tells while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console

from headway.units import format_seconds


class Progress:
    """Lines on a console, and how long each part took.

    Args:
        console: Where they go.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self.spent: list[tuple[str, float]] = []
        """Part and its seconds, in the order in which they ended."""

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, highlight=False, soft_wrap=True)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Say that a part begins, and when it has ended well."""
        started = monotonic()
        self.say(f"[dim]...[/] {what}")
        yield
        self.spent.append((what, monotonic() - started))
        self.say(f"[green]ok[/]  {what} ({format_seconds(monotonic() - started)})")
