"""The one map from what the API server and the connection to it say to headway's errors."""

import json
import re

from headway.adapters.kubernetes.kinds import INSTALLED_BY, Kind
from headway.errors import BackendUnavailable, ConfigError, Conflict, HeadwayError, NotFound, Refused

NO_SUCH_KIND = "the server could not find the requested resource"
QUOTA = re.compile(r"exceeded quota")
POD_SECURITY = re.compile(r"violates PodSecurity")
TELLING_CHARACTERS = 600
LEAST_CHARACTERS = 80
"""Enough of a page that does not belong there to know it by."""
UNKNOWN_FIELD = "unknown field"
NOBODY = "system:anonymous"
WEBHOOK = re.compile(r"denied the request|ValidatingAdmissionPolicy")


def refused(status: int, body: str, what: str, kind: Kind | None = None) -> HeadwayError:
    """Return the error for an answer of 400 and above.

    Args:
        status: HTTP status.
        body: Kubernetes' Status object, or whatever stood between.
        what: What was tried, such as `apply RayService headway/llama`; it begins the message.
        kind: What it was tried on.
    """
    reason, message = _said(body)
    error_class, remedy = _judged(status, reason, message, kind)
    said = " ".join(message.split())[:TELLING_CHARACTERS]
    return error_class(f"cannot {what}: {status} {reason}: {said}; {remedy}", status=status, reason=reason)


def unreachable(host: str, what: str, error: Exception) -> HeadwayError:
    """Return the error for a server that gave no answer at all."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text or "certificate verify failed" in text:
        return Refused(
            f"cannot {what}: the certificate of {host} is not signed by what the kubeconfig names; take the kubeconfig "
            "of this cluster",
            host=host,
        )
    return BackendUnavailable(
        f"cannot {what}: the API server at {host} does not answer ({type(error).__name__}); check that it runs and "
        "that the kubeconfig names it; headway tries again",
        host=host,
    )


def no_api_server(host: str, what: str, status: int, answer: str) -> HeadwayError:
    """Return the error for an answer that looks well and is none of Kubernetes'."""
    said = " ".join(answer.split())[:LEAST_CHARACTERS] or "nothing"
    return Refused(
        f"cannot {what}: {host} answered {status} with `{said}`, which no API server says; check that the kubeconfig "
        "names the API server, and not a page to log in or another program",
        host=host,
        status=status,
    )


def _said(body: str) -> tuple[str, str]:
    try:
        answer = json.loads(body)
        return str(answer.get("reason") or "Unknown"), str(answer.get("message") or body)
    except (json.JSONDecodeError, AttributeError):
        return "Unknown", body.strip() or "no text"


def _judged(status: int, reason: str, message: str, kind: Kind | None) -> tuple[type[HeadwayError], str]:
    """Return the class and the remedy."""
    if status == 401:
        return Refused, "the token of the kubeconfig is wrong or has expired (or its login failed); get a new one"
    if status == 403:
        return Refused, _forbidden(message)
    if status == 404:
        if NO_SUCH_KIND in message or (kind is not None and reason == "Unknown"):
            what = INSTALLED_BY.get(kind.group if kind else "", "what brings this kind")
            return Refused, f"install {what}; `headway doctor --kubernetes` names the version"
        return NotFound, "read again what there is"
    if status == 409:
        return Conflict, "somebody else changed or owns it; read it again"
    if status in (408, 410, 429) or status >= 500:
        return BackendUnavailable, "the API server is busy or restarting; headway tries again"
    if status in (400, 413, 422):
        return _invalid(message, kind)
    return Refused, "look into the API server's log"


def _invalid(message: str, kind: Kind | None) -> tuple[type[HeadwayError], str]:
    if UNKNOWN_FIELD in message and kind is not None and kind.group in INSTALLED_BY:
        return Refused, (
            f"the kinds of {kind.group} are too old here to know it: update {INSTALLED_BY[kind.group]}; `headway "
            "doctor --kubernetes` names the version (or correct k8s/templates, if it was changed)"
        )
    return ConfigError, "correct the profile or the template under k8s/templates that this came from"


def _forbidden(message: str) -> str:
    if QUOTA.search(message):
        return "raise the namespace's ResourceQuota, or free what it counts"
    if POD_SECURITY.search(message):
        return "the namespace's Pod Security level forbids it; apply k8s/base, whose templates keep it"
    if WEBHOOK.search(message):
        return "a policy of this cluster forbids it; change what it names in k8s/templates, or the policy"
    if NOBODY in message:
        return "the kubeconfig says not who asks (no user, or its login program failed); log in, and take that one"
    return "give this account the right (k8s/base has the Roles); `headway doctor --kubernetes` lists what is missing"
