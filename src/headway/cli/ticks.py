"""The worker of the DAG `prescale`: `python -m headway.cli.ticks` plans the models that it is told, one a line.

A process of its own, so that a model whose data makes a library hang or crash can be ended without the others.
"""

import json
import os
import signal
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headway.domain.prescaling import Tick
from headway.domain.profile import Profile
from headway.errors import ConfigError, HeadwayError
from headway.prescale.tick import tick

if TYPE_CHECKING:
    from headway.wiring import Backend

ALARM_S = 120
"""After this the system ends a worker whose caller is gone and cannot."""


def one(backend: "Backend", profile: Profile, now: datetime) -> Tick:
    """Plan one model; a calendar that cannot be read costs its events, not the plan.

    Raises:
        HeadwayError: Nothing could be planned; the floor is as it was.
    """
    text, problems = None, []
    try:
        text = backend.calendar(profile)
    except ConfigError as error:
        problems = [f"{error.message}; the forecast knows no events until then."]
    return tick(profile, backend, now=now, calendar=text, problems=problems)


def answer(backend: "Backend", line: str) -> dict[str, Any]:
    """Return what came of one order: `{"tick": ...}` or `{"fault": "..."}`, never an error."""
    try:
        order = json.loads(line)
        profile = Profile.model_validate(order["profile"])
        return {"tick": one(backend, profile, datetime.fromisoformat(order["at"])).to_json()}
    except HeadwayError as error:
        return {"fault": error.message}
    except Exception as error:  # noqa: BLE001 - a bug with one model's data must not cost the others
        return {"fault": f"unexpected {type(error).__name__}: {error}"}


def main() -> int:
    """Answer orders until there are none."""
    # What libraries print must not be taken for an answer.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        from headway import wiring

        backend = wiring.connect()
        for line in sys.stdin:
            signal.alarm(ALARM_S)
            answers.write(json.dumps(answer(backend, line)) + "\n")
            answers.flush()
            signal.alarm(0)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
