"""The `Traffic` port on Envoy with watched files.

`envoy/routes.json` is the truth; the files that Envoy reads are rendered from it and replaced by rename, endpoints
before routes, so that no route ever names a cluster without a place to go.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from pydantic import ValidationError

from headway.adapters.local import cluster_files, envoy
from headway.adapters.local.layout import HOST, LocalLayout
from headway.domain.traffic import Route
from headway.errors import BackendUnavailable, IntegrityError

TAKEN_WITHIN_S = 10.0
POLL_S = 0.02


class LocalTraffic:
    """The `Traffic` port.

    Args:
        layout: Where the gateway's files and its admin interface are.
        port_of: Tells the port of a cluster by its name; by default the one of its slot.
    """

    def __init__(self, layout: LocalLayout, port_of: envoy.PortOf | None = None) -> None:
        self._layout = layout
        self._port_of = port_of or self._slot_port
        self._state = layout.envoy / "routes.json"

    def route(self, model: str) -> Route:
        """Return the model's routing state; an empty route if there is none."""
        return self._read().get(model, Route(model=model))

    def routes(self) -> Sequence[Route]:
        """Return every model's routing state, sorted by model."""
        return list(self._read().values())

    def shift(self, route: Route) -> None:
        """Make the gateway route like this; returns when the gateway has taken it.

        Raises:
            BackendUnavailable: The gateway does not answer or did not take it in time. The state is kept: the gateway
                reads it when it comes back, and the same call again waits for that.
        """
        with self._changed() as routes:
            routes[route.model] = route
        self._apply()

    def remove(self, model: str) -> None:
        """Forget the model; the gateway answers 503 for it with a reason."""
        with self._changed() as routes:
            routes.pop(model, None)
        self._apply()

    def refresh(self) -> None:
        """Render the files again from the state: after a restart a cluster may be at another port."""
        self._apply()

    def _apply(self) -> None:
        with self._locked("apply"):
            routes = list(self._read().values())
            folder = str(self._layout.envoy)
            clusters = envoy.clusters(routes, folder)
            endpoints = envoy.endpoints(routes, self._port_of, HOST)
            tables = {
                self._layout.envoy_public_routes: ("public", envoy.route_table("public", routes)),
                self._layout.envoy_internal_routes: ("internal", envoy.route_table("internal", routes)),
            }
            growing = set(self._cluster_names(self._layout.envoy_clusters)) <= set(_names(clusters))
            for name, found in endpoints.items():
                _replace(self._layout.envoy / envoy.endpoints_file(name), found)
            if growing:
                _replace(self._layout.envoy_clusters, clusters)
                self._wait({"cluster_manager.cds.version_text": clusters["version_info"]})
            self._wait({f"cluster.{name}.version_text": found["version_info"] for name, found in endpoints.items()})
            for path, (_, table) in tables.items():
                _replace(path, table)
            self._wait(
                {f"http.{name}.rds.{name}.version_text": table["version_info"] for name, table in tables.values()}
            )
            if not growing:
                # A model that went: its clusters go after the routes that name them.
                gone = set(self._cluster_names(self._layout.envoy_clusters)) - set(_names(clusters))
                _replace(self._layout.envoy_clusters, clusters)
                self._wait({"cluster_manager.cds.version_text": clusters["version_info"]})
                for name in gone:
                    (self._layout.envoy / envoy.endpoints_file(name)).unlink(missing_ok=True)

    def _wait(self, wanted: Mapping[str, str]) -> None:
        """Return when the gateway shows every version that it was given."""
        end = time.monotonic() + TAKEN_WITHIN_S
        while True:
            shown = self._versions()
            late = {name: version for name, version in wanted.items() if shown.get(name) != version}
            if not late:
                return
            if time.monotonic() > end:
                name, version = next(iter(late.items()))
                raise BackendUnavailable(
                    f"the gateway did not take the new routes within {TAKEN_WITHIN_S:.0f} s: {name} should be "
                    f"{version} and is {shown.get(name, 'not there')}; look into {self._layout.log('gateway')}",
                    late=sorted(late),
                )
            time.sleep(POLL_S)

    def _versions(self) -> dict[str, str]:
        url = f"{self._layout.envoy_admin_url}/stats"
        session = requests.Session()
        session.trust_env = False
        try:
            with session:
                answer = session.get(url, params={"filter": "version_text$", "type": "TextReadouts"}, timeout=5)
                answer.raise_for_status()
        except requests.RequestException as error:
            raise BackendUnavailable(
                f"the gateway's admin interface at {self._layout.envoy_admin_url} does not answer "
                f"({type(error).__name__}); "
                "the routes are kept and taken when it comes back; `headway up` starts what is down",
            ) from error
        lines = (line.partition(": ") for line in answer.text.splitlines())
        return {name: value.strip().strip('"') for name, _, value in lines}

    def _cluster_names(self, path: Path) -> list[str]:
        try:
            return _names(json.loads(path.read_text()))
        except (FileNotFoundError, json.JSONDecodeError):
            return []

    def _slot_port(self, cluster: str) -> int | None:
        record = cluster_files.read(self._layout, cluster)
        return record.ports.at(cluster_files.HTTP) if record else None

    def _read(self) -> dict[str, Route]:
        try:
            kept = json.loads(self._state.read_text())
            return {model: Route.model_validate(route) for model, route in sorted(kept["routes"].items())}
        except FileNotFoundError:
            return {}
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError, ValidationError) as error:
            raise IntegrityError(
                f"{self._state} is not what headway wrote there ({error}); the gateway keeps serving what it has. Put "
                "the file right, or delete it and release the models again",
                path=str(self._state),
            ) from error

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Route]]:
        with self._locked("state"):
            routes = self._read()
            yield routes
            content = {model: route.to_json() for model, route in sorted(routes.items())}
            _replace(self._state, {"schema_version": 1, "routes": content})

    @contextmanager
    def _locked(self, what: str) -> Iterator[None]:
        self._layout.envoy.mkdir(parents=True, exist_ok=True)
        with (self._layout.envoy / f".{what}.lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def _names(discovery: Mapping[str, Any]) -> list[str]:
    return [str(resource["name"]) for resource in discovery["resources"]]


def _replace(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON (which is YAML) by rename, and only if it differs: Envoy reads a file at the moment it appears."""
    text = json.dumps(value, indent=1, sort_keys=True)
    if path.exists() and path.read_text() == text:
        return
    part = path.with_name(f".{path.name}.part")
    with part.open("w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    part.replace(path)
