"""Of all that an engine prints when it does not start, the one line that says why."""

import pytest

from headway.domain.engine_error import last_error

VALIDATION = """
(APIServer pid=71) Traceback (most recent call last):
(APIServer pid=71)   File "arg_utils.py", line 1, in create
(APIServer pid=71) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=71)   Value error, User-specified max_model_len (4096) is greater than the derived one. [type=v]
(APIServer pid=71)     For further information visit https://errors.pydantic.dev
"""
CONSEQUENCE = """
(Worker pid=9) ERROR 11-30 17:00:00 [core.py:1] ValueError: no place for lm_head
(EngineCore pid=8) ERROR 11-30 17:00:01 [core.py:2] RuntimeError: Engine core initialization failed
RuntimeError: Engine core initialization failed. See root cause above.
"""


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        (
            VALIDATION,
            "ValidationError: 1 validation error for ModelConfig Value error, User-specified max_model_len (4096)",
        ),
        (CONSEQUENCE, "ValueError: no place for lm_head"),
        ("loading\nOSError: [Errno 98] Address already in use\n", "OSError: [Errno 98] Address already in use"),
        ("loading\nKilled\n", "Killed"),
        ("", "it said nothing"),
    ],
)
def test_the_cause_is_found(printed: str, told: str) -> None:
    """Whatever the other processes say after it."""
    assert last_error(printed.splitlines()).startswith(told)
