"""What a tick reads and acts on."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from headway.domain.profile import Profile
from headway.ports import Checks, Clusters, Ledger, Metrics, Objects, Traffic, Warm
from headway.prescale.tick.words import Words


class Ports(Protocol):
    """The part of the world that a tick needs; `headway.wiring.Backend` is one."""

    @property
    def metrics(self) -> Metrics:
        """Where traffic is measured."""
        ...

    @property
    def clusters(self) -> Clusters:
        """Whose floor is set."""
        ...

    @property
    def traffic(self) -> Traffic:
        """Which cluster serves."""
        ...

    @property
    def objects(self) -> Objects:
        """Where history, forecast and plan are kept."""
        ...

    @property
    def ledger(self) -> Ledger:
        """What the canary measured."""
        ...

    @property
    def warm(self) -> Warm | None:
        """What holds room for replicas to come; none where the backend has nothing of the kind."""
        ...

    @property
    def checks(self) -> Checks:
        """Checks of the history."""
        ...


@dataclass(frozen=True)
class Case:
    """One model at one moment.

    Args:
        profile: Of the model.
        ports: The world.
        now: Now, UTC.
        words: What there is to say.
    """

    profile: Profile
    ports: Ports
    now: datetime
    words: Words = field(default_factory=Words)

    @property
    def model(self) -> str:
        """Whose tick it is."""
        return self.profile.model
