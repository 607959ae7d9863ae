"""What a cluster lacks for headway, and what to install. Looks only; a missing thing is a line, never an error."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from headway.adapters.kubernetes import doctor_platform, doctor_site
from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.doctor_platform import DEFINITIONS, SERVER
from headway.adapters.kubernetes.site import Site
from headway.domain.finding import Finding
from headway.errors import HeadwayError, Refused
from headway.ports import Metrics

Part = Callable[[], Iterator[Finding]]


class Needs(NamedTuple):
    """What is asked of a cluster.

    Args:
        accelerators: What profiles name, to the most that one replica takes.
        metrics: Where series are read; None: no Prometheus is named.
        now: Now, UTC.
    """

    accelerators: Mapping[str, int]
    metrics: Metrics | None
    now: datetime


def examine(client: Client, site: Site, needs: Needs) -> list[Finding]:
    """Look at everything that headway needs of a cluster.

    Args:
        client: Whose account is looked with; its rights are told too.
        site: What is known of the cluster.
        needs: What is asked of it.

    Returns:
        A line for each need. A server that does not answer, or knows no such account, is the only line.
    """
    server = list(_looked(SERVER, partial(doctor_platform.server, client)))
    if any((one.what, one.level) == (SERVER, "missing") for one in server):
        return server
    parts: Sequence[tuple[str, Part]] = (
        *((what, partial(doctor_platform.definitions, client, what)) for what in DEFINITIONS),
        ("CRDs of Prometheus", partial(doctor_platform.monitors, client)),
        ("KubeRay operator", partial(doctor_platform.operator, client)),
        (f"namespace {site.namespace}", partial(doctor_site.namespace, client, site)),
        (f"gateway {site.gateway}", partial(doctor_platform.gateway, client, site)),
        ("nodes", partial(doctor_site.accelerators, client, needs.accelerators)),
        *(
            (f"claim {site.claim(name)}", partial(doctor_site.claim, client, site, name))
            for name in sorted(needs.accelerators)
        ),
        ("priorities", partial(doctor_site.priorities, client)),
        ("accounts", partial(doctor_site.accounts, client, site)),
        ("secrets", partial(doctor_site.secrets, client, site)),
        ("quota", partial(doctor_site.quota, client, site)),
        ("rights", partial(doctor_site.account_rights, client, site)),
        ("metrics", partial(_metrics, needs)),
    )
    return [*server, *(finding for what, part in parts for finding in _looked(what, part))]


def _looked(what: str, part: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what a part finds; what stops it is a line too."""
    try:
        yield from part()
    except Refused as error:
        if error.facts.get("status") == 403:
            yield Finding(what, "note", "this account may not look", "look with an account that may, or ask for it")
            return
        yield Finding(what, "missing", error.message)
    except HeadwayError as error:
        yield Finding(what, "missing", error.message)


def _metrics(needs: Needs) -> Iterator[Finding]:
    if needs.metrics is None:
        yield Finding("metrics", "missing", "no Prometheus is named", "set HEADWAY_PROMETHEUS_URL")
        return
    since = needs.metrics.counting_since(needs.now)
    if since is None:
        remedy = "apply k8s/base/monitors.yaml and rules.yaml, and look at Prometheus' targets"
        yield Finding("metrics", "missing", "Prometheus answers, and nothing reads the gateway", remedy)
    else:
        yield Finding("metrics", "ok", f"the gateway is read; it counts since {since:%Y-%m-%d %H:%M} UTC")
