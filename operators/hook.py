"""The one place where Airflow's side gets headway's ports."""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from airflow.sdk import BaseHook

if TYPE_CHECKING:
    # Under this name for all operators: only this module knows wiring.
    from headway.wiring import Backend as Backend  # noqa: PLC0414 - a re-export


@cache
def wired() -> "Backend":
    """Build the ports from the settings of this process, once."""
    from headway import wiring

    return wiring.connect()


class HeadwayHook(BaseHook):
    """Gives operators and triggers the ports. Opens nothing before the first use, so parsing a DAG costs nothing."""

    conn_type = "headway"
    hook_name = "headway"

    connect: ClassVar[Callable[[], "Backend"]] = staticmethod(wired)
    """How the ports are made; tests put fakes here."""

    @property
    def backend(self) -> "Backend":
        """The ports, built on first use and kept for the life of the process."""
        return type(self).connect()
