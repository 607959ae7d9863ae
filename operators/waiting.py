"""Waiting a little in the task itself, because deferring has a price (design rule 13.10)."""

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")

INLINE_S = 30.0
"""A step that ends within this many seconds is waited for in place: a deferral costs about as much."""

EVERY_S = 1.0


def poll(
    look: Callable[[], Seen],
    done: Callable[[Seen], bool],
    *,
    within_s: float = INLINE_S,
    every_s: float = EVERY_S,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> Seen:
    """Look until the condition holds or the time is over, and return what was seen last.

    Args:
        look: Reads the world.
        done: The condition.
        within_s: Longest wait in seconds.
        every_s: Rest between two looks in seconds.
        clock: Monotonic seconds.
        rest: Lets that many seconds pass.
    """
    end = clock() + within_s
    seen = look()
    while not done(seen) and clock() < end:
        rest(min(every_s, max(end - clock(), 0.0)))
        seen = look()
    return seen
