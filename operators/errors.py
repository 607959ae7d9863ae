"""Headway's errors in Airflow's words: what cannot get better by itself is not retried."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowFailException

from headway.errors import HeadwayError


@contextmanager
def translated(note: Callable[[HeadwayError], None] | None = None) -> Iterator[None]:
    """Turn a non-retryable error into `AirflowFailException`; a retryable one goes through and Airflow retries.

    Args:
        note: Called with the error first, to keep it in the ledger. It must not raise headway's errors.

    Raises:
        AirflowFailException: With the error's one sentence; the error itself is its cause.
    """
    try:
        yield
    except HeadwayError as error:
        if note is not None:
            note(error)
        if error.retryable:
            raise
        raise AirflowFailException(f"{type(error).__name__}: {error.message}") from error
