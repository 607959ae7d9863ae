"""A world for whole releases on the rig: a store, models, engines behind the played Ray, a gateway, metrics.

headway acts as its own account, with the rights of `k8s/base`. Real are the control plane, the operator, the store, the
pod programs (`rig/hands.py`) and every request through the gateway's player. Played are kubelets, Ray's dashboard and
the engines: `headway.pods.mock_vllm`, one for each cluster. What takes an engine of its own to make (reference,
artifact, the serving environment's word) lies in the store before a release begins, so that quantizing finds it there.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from time import time
from typing import Any, Self

import requests
import yaml

from headway.adapters.kubernetes import objects, rayservice
from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.kinds import POD as POD_KIND
from headway.adapters.kubernetes.kinds import RAY_SERVICE
from headway.adapters.kubernetes.site import ARTIFACT_KEYS, S3_SECRETS, SIGNING_SECRET
from headway.adapters.local import secrets
from headway.adapters.local.scrape import engine_samples
from headway.adapters.s3 import S3Client, S3Connection
from headway.domain.cluster import ClusterSpec
from headway.domain.traffic import Route
from headway.errors import HeadwayError
from headway.pods.mock_vllm import MockVllm
from headway.ports import REQUESTS, UPTIME
from headway.settings import Settings
from headway.wiring import KubernetesBackend
from tests.fakes import FakeMetrics
from tests.prometheus_server import prometheus_server

from .conftest import MAKERS, NO_PODS_WITHIN_S
from .rig.api import NAMESPACE, POD, SERVICE_ACCOUNT, Api, wait_until
from .rig.gateway import SERVICE, Gateway
from .rig.hands import hands
from .rig.rig import Rig
from .roles import controller
from .sites import CHECKOUT, KubernetesSite, prepared_site

MODEL = "tiny-chat"
ACCELERATOR, PER_REPLICA = "NVIDIA-H100-80GB-HBM3", 8
"""A replica fills a node of the rig, which has three of them: whoever fails takes nobody along."""
IMAGE = f"registry.example/ray-llm@sha256:{'5e' * 32}"
LOOK_EVERY_S = 0.5
EDGES_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Behaviour = Callable[[ClusterSpec], Mapping[str, Any]]


def profile(**changes: Any) -> dict[str, Any]:
    """Return a profile whose canary and bakes take seconds, and whose margins fit a busy machine."""
    return {
        "model": MODEL,
        "hardware": {"accelerator": ACCELERATOR, "per_replica": PER_REPLICA},
        "engine": {"max_model_len": 1024, "max_num_seqs": 8},
        "weights": {"schemes": ["none"]},
        "serving_image": IMAGE,
        "replicas": {"min": 1, "max": 1},
        "canary": {
            "blocks": 5,
            "requests_per_block": 10,
            "looks": [5],
            "rate_per_s": 4.0,
            "max_tokens": 4,
            "warmup_requests": 4,
            # A machine with two cores that plays a whole cluster is no place to tell ten percent.
            "p50_margin": 2.0,
            "p95_margin": 2.0,
            "p99_guard": 2.0,
            "error_margin_pct": 20.0,
            "max_lag_ms": 5000,
            "first_ttft_p95_ms": 10_000,
            "first_tpot_p95_ms": 5000,
        },
        "shift": {"steps_pct": [20, 100], "bake_s": 2, "max_latency_ratio": 20},
        "deadlines": {"rollout_s": 120, "canary_s": 300, "stage_s": 120},
        **changes,
    }


@dataclass
class Engines:
    """An engine for each cluster that there is, behind the Service that KubeRay makes for it.

    Attributes:
        behave: How the engine of a cluster answers.
        running: By name of the cluster.
    """

    rig: Rig
    client: Client
    namespace: str
    behave: Behaviour = lambda spec: {}
    running: dict[str, MockVllm] = field(default_factory=dict)
    specs: dict[str, ClusterSpec] = field(default_factory=dict)

    def follow(self) -> None:
        """Start engines of clusters that came, end those of clusters that went."""
        asked = {}
        for one in self.client.list(RAY_SERVICE, self.namespace):
            told = objects.annotation(one, objects.ASKED)
            if told is not None:
                asked[one["metadata"]["name"]] = ClusterSpec.model_validate_json(told)
        for name, spec in asked.items():
            if name not in self.running:
                behaviour = {"model": spec.model, "ttft_ms": 60.0, "itl_ms": 20.0, **self.behave(spec)}
                self.running[name] = MockVllm(keep_bodies=False, **behaviour).__enter__()
                self.specs[name] = spec
        self._follow_pods()
        gone = [name for name in self.running if name not in asked]
        for name in gone:
            self.running.pop(name).__exit__()
        if gone or len(self.running) != len(self._forwarded):
            self._forwarded = {f"{name}-serve-svc.*": f"127.0.0.1:{e.port}" for name, e in self.running.items()}
            self.rig.ray.forward(self._forwarded)

    def _follow_pods(self) -> None:
        """Let an engine fail as long as no replica of its cluster is ready: so answers Serve's proxy on the head."""
        pods = self.client.list(POD_KIND, self.namespace, labelSelector=f"{rayservice.PART}=replica")
        ready = {
            one["metadata"]["labels"][rayservice.CLUSTER]
            for one in pods
            if (objects.condition(one, "Ready") or {}).get("status") == "True"
        }
        for name, engine in self.running.items():
            engine.behaviour.mode = "ok" if name in ready else "http_503"

    def close(self) -> None:
        """End them all."""
        for one in self.running.values():
            one.__exit__()
        self.running.clear()
        self.rig.ray.forward({})

    _forwarded: dict[str, str] = field(default_factory=dict)


@dataclass
class Scraper:
    """Reads gateway and engines.

    Attributes:
        put: Takes a sample: name, labels, time, value.
        prefix: Of the names of engines' series.
    """

    put: Callable[[str, Mapping[str, str], datetime, float], None]
    prefix: str
    gateway: Gateway
    engines: Engines
    backend: KubernetesBackend
    _seen: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    _totals: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    _edges: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def read(self) -> None:
        """Put one sample of everything."""
        now = datetime.fromtimestamp(time(), UTC)
        self.put(UPTIME, {}, now, self.gateway.uptime_s)
        for route in self.backend.traffic.routes():
            self._gateway(route, now)
        for name, engine in list(self.engines.running.items()):
            spec = self.engines.specs[name]
            text = requests.get(f"{engine.url}/metrics", timeout=2).text
            for series, labels, value in engine_samples(text, model=spec.model, cluster=name):
                self.put(f"{self.prefix}{series}", labels, now, value)

    def _gateway(self, route: Route, now: datetime) -> None:
        sides = {"stable": route.stable, "candidate": route.candidate}
        for (name, service), counts in list(self.gateway.counts.items()):
            for side, found in sides.items():
                if found is None or service != f"{found.cluster}-serve-svc" or not self._is_public(name):
                    continue
                key = (route.model, side)
                before = self._seen.get((name, service), (0, 0, 0))
                ended = len(counts.took_s)
                totals = self._totals.setdefault(key, [0.0, 0.0, 0.0])
                totals[0] += counts.tried - before[0]
                totals[1] += counts.failed - before[1]
                totals[2] = counts.active
                edges = self._edges.setdefault(key, [0] * (len(EDGES_S) + 1))
                for took_s in counts.took_s[before[2] : ended]:
                    for index, edge in enumerate((*EDGES_S, float("inf"))):
                        edges[index] += took_s <= edge
                self._seen[(name, service)] = (counts.tried, counts.failed, ended)
        for (model, side), (tried, failed, active) in self._totals.items():
            labels = {"model": model, "side": side}
            self.put(REQUESTS, labels, now, tried)
            self.put("headway_request_errors_total", labels, now, failed)
            self.put("headway_requests_active", labels, now, active)
            for le, count in zip((*map(str, EDGES_S), "+Inf"), self._edges[(model, side)], strict=True):
                self.put("headway_request_seconds_bucket", {**labels, "le": le}, now, count)

    def _is_public(self, route: str) -> bool:
        return not self.gateway.only_on(route, "internal")


@dataclass
class World:
    """Everything together.

    Attributes:
        backend: What a task of Airflow would have.
        settings: What it is made from.
        gateway: Its listeners answer on this machine.
        faults: What went wrong in the threads that play the world.
    """

    rig: Rig
    place: KubernetesSite
    settings: Settings
    backend: KubernetesBackend
    gateway: Gateway
    engines: Engines
    scraper: Scraper
    s3: Callable[[str], S3Connection]
    signing_key: Path
    faults: list[str] = field(default_factory=list)

    @property
    def api(self) -> Api:
        """The administrator's client."""
        return self.place.api

    @property
    def namespace(self) -> str:
        """Where all of it is."""
        return self.place.site.namespace

    @property
    def url(self) -> str:
        """Address of the model for its users, without `/v1`."""
        return f"{self.gateway.url('public')}/{MODEL}"

    @property
    def route(self) -> Route:
        """How the model is routed."""
        return self.backend.traffic.route(MODEL)

    def write_profile(self, **changes: Any) -> None:
        """Replace the profile; releases that begin from now on follow it."""
        path = self.settings.checkout / "profiles" / f"{MODEL}.yaml"
        path.write_text(yaml.safe_dump(profile(**changes)))

    def services(self) -> set[str]:
        """Return the Services that there are."""
        return {one["metadata"]["name"] for one in self.api.list(SERVICE, self.namespace)}


@contextmanager
def keys(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Make the pair that signs artifacts: paths of the private and the public half."""
    layout = Settings(home=folder, base_port=18000).layout()
    layout.secrets.mkdir(parents=True)
    secrets.ensure(layout)
    yield layout.signing_key, layout.artifact_key


def checkout(folder: Path) -> Path:
    """Make a checkout with profiles of its own; all else is the real one."""
    made = folder / "checkout"
    (made / "profiles").mkdir(parents=True)
    for name in ("src", "operators", "dags", "plugins", "local", "k8s", "bin"):
        (made / name).symlink_to(CHECKOUT / name)
    return made


def put_secrets(place: KubernetesSite, credentials: Callable[[str], Path], pair: tuple[Path, Path]) -> None:
    """Put what pods need into the namespace, as a platform engineer does."""
    kind = {"apiVersion": "v1", "kind": "Secret"}
    roles = {"quantize": "quantize", "stage": "stage", "bench": "headway"}
    for role, name in S3_SECRETS.items():
        access, secret = secrets.read_s3(credentials(roles[role]))
        metadata = {"name": name, "namespace": place.site.namespace}
        content = {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret}
        place.api.create({**kind, "metadata": metadata, "stringData": content})
    signing, artifact = (path.read_text() for path in pair)
    metadata = {"name": SIGNING_SECRET, "namespace": place.site.namespace}
    place.api.create({**kind, "metadata": metadata, "stringData": {"signing.pem": signing}})
    metadata = {"name": ARTIFACT_KEYS, "namespace": place.site.namespace}
    place.api.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"artifact.pem": artifact}}
    )


@contextmanager
def prepared_place(rig: Rig) -> Iterator[KubernetesSite]:
    """Give a prepared namespace that stays as long as the caller wants; what is in it is gone afterwards."""
    name = f"headway-release-{token_hex(3)}"
    rig.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    wait_until(lambda: rig.api.get(SERVICE_ACCOUNT, "default", name), f"{name} has its account")
    try:
        with prepared_site(rig.kubeconfig, rig.api, rig, name) as place:
            yield place
    finally:
        for kind in MAKERS:
            rig.api.delete_all(kind, name)
        rig.api.delete(NAMESPACE, name)
        wait_until(lambda: not rig.api.list(POD, name), f"the pods of {name} are gone", NO_PODS_WITHIN_S)


@contextmanager
def played(world: World) -> Iterator[None]:
    """Let engines come and go with their clusters, and read all metrics, until the end."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_EVERY_S):
            for step in (world.engines.follow, world.scraper.read):
                try:
                    step()
                except (HeadwayError, requests.RequestException, OSError):
                    continue  # the API server is away, or an engine has just ended: the next look finds out

    def guarded() -> None:
        try:
            look()
        except Exception as error:  # noqa: BLE001 - a world that stands still must not look like a slow release
            world.faults.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)
        world.engines.close()
    assert not world.faults, world.faults


@contextmanager
def run_world(
    rig: Rig,
    place: KubernetesSite,
    folder: Path,
    *,
    s3: Callable[[str], S3Connection],
    pair: tuple[Path, Path],
    make: Callable[[Settings], KubernetesBackend] = KubernetesBackend,
    metrics: FakeMetrics | None = None,
    **settings: Any,
) -> Iterator[World]:
    """Run the world in a prepared namespace.

    Args:
        rig: The rig.
        place: The namespace.
        folder: Scratch space.
        s3: How a role reaches the store.
        pair: The keys that sign and verify artifacts.
        make: Makes the backend.
        metrics: Gets all samples in place of the stand-in of Prometheus.
        settings: Beside those that follow from the rest.

    Yields:
        The running world.
    """
    site = place.site
    store, node = s3("headway"), folder / "node"
    for made in (node, folder / "pods"):
        made.mkdir()
    credentials = {role: s3(role).credentials_file for role in ("quantize", "stage", "headway")}
    put_secrets(place, lambda role: Path(str(credentials[role])), pair)
    with ExitStack() as stack:
        kubeconfig = stack.enter_context(controller(rig, site.namespace))
        gateway = stack.enter_context(Gateway(rig.api, site.namespace, site.gateway, rig.ray))
        prometheus = stack.enter_context(prometheus_server())
        told = Settings.model_validate(
            {
                "backend": "kubernetes",
                "checkout": checkout(folder),
                "home": folder / "home",
                "kubeconfig": kubeconfig,
                "namespace": site.namespace,
                "node_root": str(node),
                "pods_image": "headway-pods",
                "quantize_image": "headway-quantize",
                "gateway": site.gateway,
                "pod_gateway_url": gateway.url("internal"),
                "s3_endpoint": store.endpoint,
                "s3_credentials": store.credentials_file,
                "prometheus_url": prometheus.url,
                **settings,
            }
        )
        backend = make(told)
        engines = Engines(rig, place.client, site.namespace)
        # Prometheus has of engines what recording rules record; the port knows them by our names.
        sink, prefix = (prometheus.put, "headway_") if metrics is None else (metrics.put, "")
        scraper = Scraper(sink, prefix, gateway, engines, backend)
        world = World(rig, place, told, backend, gateway, engines, scraper, s3, pair[0])
        world.write_profile()
        stack.enter_context(
            hands(
                rig,
                site.namespace,
                folder / "pods",
                python={"": Path(sys.executable)},
                claims={site.claim(ACCELERATOR): node},
                environment={"PYTHONPATH": f"{CHECKOUT / 'src'}", "OMP_NUM_THREADS": "1"},
            )
        )
        stack.enter_context(played(world))
        yield world


def client_of(world: World, role: str) -> S3Client:
    """Return a client of the store as one of its roles."""
    return S3Client(world.s3(role))


def when(condition: Callable[[], Any], what: str, action: Callable[[], Any], within_s: float = 120) -> "Deed":
    """Do something once a condition holds, beside what the test does meanwhile."""
    return Deed(condition, what, action, within_s)


DOERS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="deed")
"""Their threads live as long as this process: a program of the rig ends with the thread that has started it."""


class Deed:
    """Something that happens in the middle of a release; as a context manager, it must have happened at its end."""

    def __init__(self, condition: Callable[[], Any], what: str, action: Callable[[], Any], within_s: float) -> None:
        self._work = (condition, what, action, within_s)
        self._done: Future[None] | None = None

    def __enter__(self) -> Self:
        self._done = DOERS.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._done is not None
        self._done.result(self._work[3] + 30)

    def _run(self) -> None:
        condition, what, action, within_s = self._work
        wait_until(condition, what, within_s)
        action()
