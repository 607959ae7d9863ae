"""What a doctor says of one need."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table."""

    what: str
    level: Level
    found: str
    remedy: str = ""
    """What to do; empty if there is nothing to do."""
