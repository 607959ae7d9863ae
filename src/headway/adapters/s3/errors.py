"""The one map from botocore's errors to headway's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from botocore import exceptions as boto
from urllib3 import exceptions as urllib3

from headway.errors import (
    BackendUnavailable,
    ConfigError,
    Conflict,
    HeadwayError,
    IntegrityError,
    NotFound,
    Refused,
)

CODES: dict[str, type[HeadwayError]] = {
    **dict.fromkeys(
        ("NoSuchKey", "NoSuchBucket", "NoSuchUpload", "NoSuchVersion", "NoSuchAnnotation", "NotFound", "404"),
        NotFound,
    ),
    **dict.fromkeys(
        ("PreconditionFailed", "ConditionalRequestConflict", "OperationAborted", "BucketNotEmpty", "409", "412"),
        Conflict,
    ),
    **dict.fromkeys(
        (
            "InternalError",
            "ServiceUnavailable",
            "SlowDown",
            "RequestTimeout",
            "RequestTimeoutException",
            "Throttling",
            "ThrottlingException",
            "RequestLimitExceeded",
            "TooManyRequests",
            "429",
            "500",
            "502",
            "503",
            "504",
        ),
        BackendUnavailable,
    ),
    **dict.fromkeys(
        ("BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "IncompleteBody"),
        IntegrityError,
    ),
    **dict.fromkeys(
        (
            "AccessDenied",
            "AccountProblem",
            "AllAccessDisabled",
            "AnnotationLimitExceeded",
            "AnnotationNameTooLong",
            "AuthorizationHeaderMalformed",
            "BucketAlreadyExists",
            "BucketAlreadyOwnedByYou",
            "EncryptionTypeMismatch",
            "EntityTooLarge",
            "EntityTooSmall",
            "ExpiredToken",
            "Forbidden",
            "IdempotencyParameterMismatch",
            "InvalidAccessKeyId",
            "InvalidAnnotationName",
            "InvalidArgument",
            "InvalidBucketName",
            "InvalidObjectState",
            "InvalidPart",
            "InvalidPartOrder",
            "InvalidPrefix",
            "InvalidRange",
            "InvalidRequest",
            "InvalidSecurity",
            "InvalidToken",
            "InvalidWriteOffset",
            "KeyTooLongError",
            "MalformedXML",
            "MethodNotAllowed",
            "MissingContentLength",
            "NotImplemented",
            "ObjectAlreadyInActiveTierError",
            "ObjectNotInActiveTierError",
            "QuotaExceeded",
            "RequestTimeTooSkewed",
            "SignatureDoesNotMatch",
            "TokenRefreshRequired",
            "TooManyParts",
            "UnsupportedMediaType",
            "400",
            "401",
            "403",
            "405",
            "416",
            "501",
        ),
        Refused,
    ),
}
"""S3's error codes (Amazon's list, the bare statuses of HEAD requests, and SeaweedFS's own)."""

REMEDIES: dict[type[HeadwayError], str] = {
    BackendUnavailable: "check that the object store runs and that its address is right; headway tries again",
    Refused: "check the credentials of this role and its rights on the bucket",
    NotFound: "check the address",
    Conflict: "read again",
    IntegrityError: "the bytes changed on their way; try again, and look at the network if it stays",
    ConfigError: "correct the settings of the object store",
}

CLOCK_REMEDY = "the clocks of this machine and of the store differ too much; set both (chrony or another NTP client)"

_UNREACHABLE = (boto.HTTPClientError, boto.ConnectionError, boto.IncompleteReadError, urllib3.HTTPError, OSError)
_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.RefreshWithMFAUnsupportedError,
)


@contextmanager
def translated(what: str, **facts: Any) -> Iterator[None]:
    """Turn what botocore raises inside into headway's errors.

    Args:
        what: What was tried, such as `read s3://b/k`; it begins the message.
        facts: Fields for the error.
    """
    try:
        yield
    except boto.ClientError as error:
        raise _from_answer(error, what, facts) from error
    except (boto.FlexibleChecksumError, boto.ChecksumError, boto.MD5UnavailableError) as error:
        raise IntegrityError(f"cannot {what}: {error}; {REMEDIES[IntegrityError]}", **facts) from error
    except _CREDENTIALS as error:
        raise Refused(f"cannot {what}: {error}; {REMEDIES[Refused]}", **facts) from error
    except _UNREACHABLE as error:
        raise BackendUnavailable(f"cannot {what}: {error}; {REMEDIES[BackendUnavailable]}", **facts) from error
    except boto.BotoCoreError as error:
        raise ConfigError(f"cannot {what}: {error}; {REMEDIES[ConfigError]}", **facts) from error


def kind_of(code: str, status: int) -> type[HeadwayError]:
    """Return the class for an error code, by the HTTP status when the code is new to us."""
    if code in CODES:
        return CODES[code]
    if status >= 500 or status == 429:
        return BackendUnavailable
    return CODES.get(str(status), Refused)


def _from_answer(error: boto.ClientError, what: str, facts: dict[str, Any]) -> HeadwayError:
    answer = error.response.get("Error", {})
    code = str(answer.get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    kind = kind_of(code, status)
    said = str(answer.get("Message", ""))[:200]
    remedy = CLOCK_REMEDY if code == "RequestTimeTooSkewed" else REMEDIES[kind]
    return kind(f"cannot {what}: {code} {said}".rstrip() + f"; {remedy}", code=code, status=status, **facts)
