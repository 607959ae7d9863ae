"""The map from botocore's errors to headway's is complete."""

import inspect
from typing import Any

import pytest
from botocore import exceptions as boto
from botocore.loaders import Loader
from urllib3.exceptions import ProtocolError

from headway.adapters.s3.errors import CODES, REMEDIES, kind_of, translated
from headway.errors import (
    BackendUnavailable,
    ConfigError,
    Conflict,
    HeadwayError,
    IntegrityError,
    NotFound,
    Refused,
)


def raised(error: Exception) -> HeadwayError:
    """Return what an error becomes."""
    with pytest.raises(HeadwayError) as caught, translated("read s3://b/k", uri="s3://b/k"):
        raise error
    return caught.value


def answer(code: str, status: int = 400) -> boto.ClientError:
    """An error answer of the server."""
    said = {"Error": {"Code": code, "Message": "said"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return boto.ClientError(said, "GetObject")


def test_every_code_of_the_service_model_is_mapped() -> None:
    """A new botocore with a new error of S3 fails here, and somebody decides."""
    model: dict[str, Any] = Loader().load_service_model("s3", "service-2")
    named = {name for name, shape in model["shapes"].items() if shape.get("exception")}

    assert named - CODES.keys() == set()


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("NoSuchKey", 404, NotFound),
        ("404", 404, NotFound),
        ("PreconditionFailed", 412, Conflict),
        ("ConditionalRequestConflict", 409, Conflict),
        ("AccessDenied", 403, Refused),
        ("InvalidAccessKeyId", 403, Refused),
        ("SignatureDoesNotMatch", 403, Refused),
        ("SlowDown", 503, BackendUnavailable),
        ("InternalError", 500, BackendUnavailable),
        ("BadDigest", 400, IntegrityError),
        ("SomethingNew", 502, BackendUnavailable),
        ("SomethingNew", 429, BackendUnavailable),
        ("SomethingNew", 404, NotFound),
        ("SomethingNew", 412, Conflict),
        ("SomethingNew", 418, Refused),
    ],
)
def test_an_answer_becomes_what_a_step_can_act_on(code: str, status: int, kind: type[HeadwayError]) -> None:
    """By its code; by its status when the code is new."""
    error = raised(answer(code, status))

    assert type(error) is kind
    assert "read s3://b/k" in error.message
    assert error.facts["uri"] == "s3://b/k"


def test_every_exception_of_botocore_is_translated() -> None:
    """Whatever it raises, a step sees one of headway's errors."""
    kinds: list[Any] = [kind for kind in vars(boto).values() if inspect.isclass(kind)]
    own = [kind for kind in kinds if issubclass(kind, boto.BotoCoreError)]
    for kind in own:
        error = kind.__new__(kind)
        Exception.__init__(error, kind.__name__)
        assert isinstance(raised(error), HeadwayError), kind
    assert len(own) > 50


@pytest.mark.parametrize(
    "error",
    [
        boto.EndpointConnectionError(endpoint_url="http://x"),
        boto.ConnectTimeoutError(endpoint_url="http://x"),
        boto.ReadTimeoutError(endpoint_url="http://x"),
        boto.ConnectionClosedError(endpoint_url="http://x"),
        boto.IncompleteReadError(actual_bytes=1, expected_bytes=2),
        boto.ResponseStreamingError(error="x"),
        boto.SSLError(endpoint_url="http://x", error="x"),
        ProtocolError("broken"),
        ConnectionResetError("reset"),
        TimeoutError("late"),
    ],
)
def test_whoever_does_not_answer_is_unavailable(error: Exception) -> None:
    """Retried, not failed."""
    assert type(raised(error)) is BackendUnavailable


def test_missing_credentials_are_refused_and_wrong_arguments_are_ours() -> None:
    """Neither is cured by trying again."""
    assert type(raised(boto.NoCredentialsError())) is Refused
    assert type(raised(boto.ParamValidationError(report="x"))) is ConfigError
    assert type(raised(boto.FlexibleChecksumError(error_msg="x"))) is IntegrityError


def test_every_kind_has_a_remedy() -> None:
    """A message says what to do."""
    assert {*CODES.values()} <= REMEDIES.keys()
    assert kind_of("", 0) is Refused
