"""Everything that headway raises on purpose.

```
HeadwayError
├── ConfigError            a profile, a setting or an argument is wrong
├── ModelRejected          the model's files break a rule; see `report`
├── PlanInfeasible         the plan does not fit the hardware
├── IntegrityError         bytes differ from their digest
├── QualityRejected        the weights answer worse than the limits allow
├── CanaryFailed           the candidate lost against stable
├── Declined               a person said no, or nobody answered in time
└── BackendError           the world refused
    ├── BackendUnavailable    (retryable) nobody answered, or answered 5xx
    ├── Conflict              (retryable) somebody else holds or changed it
    ├── NotFound              it is not there
    ├── Refused               credentials, rights or rules forbid it
    └── DeadlineExceeded      waited too long
```

Facts live in fields (`error.facts`), the remedy in the text, and every error survives pickling,
because Airflow carries errors between processes. A subclass exists only where somebody handles it.
"""

from typing import Any, ClassVar


class HeadwayError(Exception):
    """Base of all of headway's errors.

    Args:
        message: What was found, what was expected, and what to do.
        facts: The same as fields, for code and records. Never a secret.
    """

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later without anybody changing anything."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(kind: type[HeadwayError], message: str, facts: dict[str, Any]) -> HeadwayError:
    error = kind.__new__(kind)
    HeadwayError.__init__(error, message, **facts)
    return error


class ConfigError(HeadwayError):
    """A profile, a setting or an argument is wrong; nothing was done."""


class ModelRejected(HeadwayError):
    """The model's files break a rule, so nothing may load them.

    `facts["report"]` lists every finding, one sentence each.
    """

    def __init__(self, message: str, *, report: list[str]) -> None:
        super().__init__(message, report=report)


class PlanInfeasible(HeadwayError):
    """The plan needs more memory than the largest accelerator of the profile has."""

    def __init__(self, message: str, *, needed_bytes: int, largest_bytes: int) -> None:
        super().__init__(message, needed_bytes=needed_bytes, largest_bytes=largest_bytes)


class IntegrityError(HeadwayError):
    """Bytes differ from the digest they are named by; they were not published."""


class QualityRejected(HeadwayError):
    """The weights answer worse than the profile's limits allow.

    `facts["report"]` holds the measured figures and the limits.
    """

    def __init__(self, message: str, *, report: dict[str, Any]) -> None:
        super().__init__(message, report=report)


class CanaryFailed(HeadwayError):
    """The candidate lost; `facts["verdict"]` is the verdict as JSON."""

    def __init__(self, message: str, *, verdict: dict[str, Any]) -> None:
        super().__init__(message, verdict=verdict)


class Declined(HeadwayError):
    """A person declined the promotion, or nobody answered in time, which means no."""


class BackendError(HeadwayError):
    """Something outside headway refused or failed."""


class BackendUnavailable(BackendError):
    """Nobody answered, or the answer was a server error. Try again."""

    retryable = True


class Conflict(BackendError):
    """Somebody else holds it or changed it first. Read again, then try again."""

    retryable = True


class NotFound(BackendError):
    """The named thing does not exist."""


class Refused(BackendError):
    """Credentials, rights or a rule forbid it; trying again changes nothing."""


class DeadlineExceeded(BackendError):
    """A condition did not come true in time.

    Args:
        waited_s: How long was waited, in seconds.
        last: What was seen last, in words.
    """

    def __init__(self, message: str, *, waited_s: float, last: str) -> None:
        super().__init__(message, waited_s=waited_s, last=last)
