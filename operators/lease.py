"""One release a model at a time (design rule 13.9), by a lease that outlives every deferral.

The time to live is short against a crash and long against a hiccup. Every task renews it when it starts, and the
triggers renew it while a task is deferred, so nothing but a dead scheduler or triggerer lets it run out. Then the next
release of the model may start, and the old one, should it wake up, ends without touching anything.
"""

from datetime import datetime
from typing import TYPE_CHECKING

from headway.domain.value import slug
from headway.errors import Conflict, Refused

if TYPE_CHECKING:
    from operators.hook import Backend

TTL_S = 900.0
"""Longer than a restart of Airflow with its retry delays (a minute or two, slow cores included), and short enough that
a model whose release was killed with everything around it can be released again after a quarter of an hour."""

RENEW_EVERY_S = 240.0
"""While deferred: three renewals may fail before the lease runs out."""


def keep_lease(backend: "Backend", model: str, holder: str, now: datetime, ttl_s: float = TTL_S) -> None:
    """Renew a lease that the release must have.

    Raises:
        Refused: Somebody else has it: this release came to a stop for longer than the lease lives.
    """
    try:
        backend.lease.acquire(slug(model), holder, ttl_s, now)
    except Conflict as error:
        raise Refused(
            f"this release lost its lease on {model} ({error.message}); it ends here and leaves traffic and clusters "
            "to the release that holds the lease",
            model=model,
        ) from error


def holder_of(backend: "Backend", model: str, now: datetime) -> str | None:
    """Return who holds the model's lease now."""
    grant = backend.lease.holder(slug(model), now)
    return grant.holder if grant else None
