"""Headway's own adapters on the node: a store, two versions of a model, a gateway, and users who never pause."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import requests
import yaml

from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.clusters import KubernetesClusters
from headway.adapters.kubernetes.jobs import KubernetesJobs
from headway.adapters.kubernetes.site import Site
from headway.adapters.kubernetes.traffic import KubernetesTraffic
from headway.adapters.s3 import S3WeightStore
from headway.domain.release import ReleasePlan, ReleaseRef
from headway.domain.weight_jobs import QuantizeJob
from headway.pods import attest, publish
from headway.ports import REQUESTS
from headway.release import plan, quantize
from tests.cluster.release_world import keys, put_secrets
from tests.cluster.rig.api import GATEWAY, Kind, condition, wait_until
from tests.cluster.rig.programs import cache_folder
from tests.cluster.sites import CHECKOUT, CLAIM, KubernetesSite, local_volume
from tests.component.servers import S3Server, s3_server
from tests.factories import make_profile, make_selection, make_validated
from tests.fakes import FakeMetrics

from .conftest import make_environments
from .machine import gateway
from .machine.node import Node
from .machine.settings import HOST_ADDRESS
from .machine.stock import Stock

MODEL, NAMESPACE = "smollm2", "headway"
SERVICE = Kind("v1", "Service")
GATEWAY_SERVICE = "headway-gateway"
SMALL: dict[str, Any] = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "9Gi"}}
"""Of Ray's containers: two clusters with one replica each stand on two cores, if none asks for them."""
ANSWER_WITHIN_S = 60
PAUSE_S = 0.5
UP_WITHIN_S = 120
QUESTION = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0.7}
"""Sampled: a greedy answer would not show an engine that dies of the first sample."""


@dataclass
class Users:
    """Requests through the gateway, one after another from several users, and what came of them.

    Attributes:
        by_release: Answers by the release that gave them.
        failures: What went wrong, in words; the release that answered is part of them.
        slowest_s: The longest answer.
    """

    url: str
    metrics: FakeMetrics
    side_of: Callable[[str], str]
    by_release: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)
    _tried: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def answered(self) -> int:
        """How many got an answer."""
        return sum(self.by_release.values())

    def ask(self) -> None:
        """Send one request and keep what came of it."""
        began = monotonic()
        release, failure = "", ""
        try:
            answer = requests.post(f"{self.url}/v1/completions", json=QUESTION, timeout=ANSWER_WITHIN_S)
            release = answer.headers.get("x-headway-release", "")
            if not answer.ok or not answer.json()["choices"][0]["text"]:
                failure = f"{answer.status_code} of `{release}`: {answer.text[:300]}"
        except (requests.RequestException, ValueError, KeyError) as error:
            failure = f"{type(error).__name__}: {error}"
        at = datetime.fromtimestamp(time(), UTC)
        with self._lock:
            self.slowest_s = max(self.slowest_s, monotonic() - began)
            if failure:
                self.failures.append(f"{at:%H:%M:%S} after {monotonic() - began:.1f} s: {failure}")
            else:
                self.by_release[release] += 1
            side = self.side_of(release)
            self._tried[side] += 1
            self.metrics.put(REQUESTS, {"model": MODEL, "side": side}, at, self._tried[side])

    def loop(self) -> None:
        """Ask until it is enough."""
        while not self._ended.wait(PAUSE_S):
            self.ask()

    def end(self) -> None:
        """Say that it is enough."""
        self._ended.set()


@dataclass
class World:
    """Everything together.

    Attributes:
        public: Address of the gateway's public listener, as this machine sees it.
        signing_key: Signs artifacts; pods have its other half.
    """

    node: Node
    stock: Stock
    place: KubernetesSite
    store: S3Server
    public: str
    jobs: KubernetesJobs
    clusters: KubernetesClusters
    traffic: KubernetesTraffic
    weights: S3WeightStore
    signing_key: Path
    metrics: FakeMetrics = field(default_factory=FakeMetrics)
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        """Where headway's objects are."""
        return self.place.site.namespace

    def plan(self, version: int) -> ReleasePlan:
        """Return the plan of a version: served as it is, on the CPU, with one replica."""
        profile = make_profile(
            model=MODEL,
            engine={"max_model_len": 512, "max_num_seqs": 4, "kv_cache_gib": 0.25, "dtype": "float32"},
            weights={"schemes": ["none"]},
            replicas={"min": 1, "max": 1},
            shift={"steps_pct": [20, 100], "bake_s": 15},
            canary={
                "blocks": 2,
                "requests_per_block": 4,
                "rate_per_s": 0.5,
                "max_tokens": 4,
                "warmup_requests": 1,
                "first_ttft_p95_ms": 60_000,
                "first_tpot_p95_ms": 10_000,
            },
            serving_image=self.stock.serve.by_digest,
        )
        return plan.make(
            profile,
            make_selection(version, MODEL, str(version)),
            make_validated(),
            serving_image=self.stock.serve.by_digest,
            model_root=self.place.site.node_root,
        )

    def put_artifact(self, version: int) -> None:
        """Put the artifact of a version into the store, as quantizing leaves it."""
        made = self.plan(version)
        folder = cache_folder().parent / "demo-model" / f"v{version}"
        uri = self.weights.artifact_uri(made.artifact_digest)
        client = self.store.client()
        files = publish.list_files(folder)
        publish.upload(client, folder, files, uri, lambda percent, text: None)
        job = QuantizeJob.model_validate(quantize._job(made, self.weights, None, 1).payload)
        signed = attest.manifest_of(job, files, {}, {attest.SIGNING_KEY: str(self.signing_key)})
        publish.publish(client, signed, uri)

    @contextmanager
    def users(self, count: int = 2) -> Iterator[Users]:
        """Let users ask without a pause, until the end.

        Args:
            count: How many.
        """

        def side_of(release: str) -> str:
            candidate = self.traffic.route(MODEL).candidate
            return "candidate" if candidate is not None and candidate.release == release else "stable"

        asking = Users(f"{self.public}/{MODEL}", self.metrics, side_of)
        threads = [threading.Thread(target=asking.loop, daemon=True) for _ in range(count)]
        for one in threads:
            one.start()
        try:
            yield asking
        finally:
            asking.end()
            for one in threads:
                one.join(ANSWER_WITHIN_S)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Keep how long something took, and say it."""
        began = monotonic()
        yield
        self.timings[what] = monotonic() - began
        print(f"{what:<44} {self.timings[what]:6.1f} s", flush=True)


def reference(made: ReleasePlan) -> ReleaseRef:
    """Return what travels between the steps of a plan's release."""
    version = made.selection.model.version
    return ReleaseRef(
        release=f"{MODEL}-v{version}", model=MODEL, version=version, source_digest=made.selection.source_digest
    )


def until(look: Callable[[], Any], done: Callable[[Any], bool], what: str, within_s: float, every_s: float = 1) -> Any:
    """Look again and again until it is as wished, and return what was seen then.

    Raises:
        AssertionError: It never was; the message has the last sight.
    """
    ends = monotonic() + within_s
    while not done(seen := look()):
        assert monotonic() < ends, f"{what}: not within {within_s:.0f} s; the last look gave {seen!r}"
        sleep(every_s)
    return seen


@contextmanager
def run_world(node: Node, stock: Stock, folder: Path) -> Iterator[World]:
    """Run the world on a node, in a namespace as `k8s/overlays/dev` makes it.

    Args:
        node: A running node.
        stock: Its images.
        folder: Scratch space.

    Yields:
        The running world.
    """
    gateway.install(node.api, stock)
    _install_headway(node, stock)
    make_environments(node, NAMESPACE)
    with ExitStack() as stack:
        store = stack.enter_context(s3_server(folder / "s3", HOST_ADDRESS))
        site = Site(
            templates=small_templates(folder),
            namespace=NAMESPACE,
            pods_image=stock.pods.by_digest,
            quantize_image=stock.pods.by_digest,
            s3_endpoint=store.endpoint,
        )
        for one in local_volume(site, "cpu"):
            node.api.create(one)
        place = KubernetesSite(Client.connect(node.kubeconfig), site, node.api, None)
        stack.callback(place.client.close)
        pair = stack.enter_context(keys(folder / "keys"))
        put_secrets(place, store.credentials, pair)
        wait_until(lambda: _is_ready(node, site), "headway's namespace is ready", UP_WITHIN_S)
        address = (node.api.get(SERVICE, GATEWAY_SERVICE, gateway.NAMESPACE) or {})["spec"]["clusterIP"]
        yield World(
            node=node,
            stock=stock,
            place=place,
            store=store,
            public=f"http://{address}",
            jobs=KubernetesJobs(place.client, site, store.client("headway").read),
            clusters=KubernetesClusters(place.client, site),
            traffic=KubernetesTraffic(place.client, site),
            weights=S3WeightStore(store.connection("headway")),
            signing_key=pair[0],
        )


def _install_headway(node: Node, stock: Stock) -> None:
    """Apply the manifests for a cluster to try on, all but what Prometheus' operator would take; its kinds are absent.

    One change: Envoys run from the node's own image.
    """
    for one in yaml.safe_load_all(node.kubectl("kustomize", str(CHECKOUT / "k8s" / "overlays" / "dev"))):
        if one["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        if one["kind"] == "EnvoyProxy":
            envoys = one["spec"]["provider"]["kubernetes"]["envoyDeployment"]
            envoys["container"] = {"image": stock.envoy.name, "resources": {"requests": {"cpu": "50m"}}}
        node.api.apply(one)


def _is_ready(node: Node, site: Site) -> bool:
    bound = all(one["status"].get("phase") == "Bound" for one in node.api.list(CLAIM, site.namespace))
    return bound and condition(node.api.get(GATEWAY, site.gateway, site.namespace), "Programmed") == "True"


def small_templates(folder: Path) -> Path:
    """Write headway's templates with what a machine of two cores has to give; requests are a platform's to choose."""
    made = folder / "templates"
    made.mkdir()
    for path in (CHECKOUT / "k8s" / "templates").glob("*.yaml"):
        content = yaml.safe_load(path.read_text())
        if content["kind"] == "RayService":
            cluster = content["spec"]["rayClusterConfig"]
            cluster["autoscalerOptions"]["resources"] = {"requests": {"cpu": "50m"}, "limits": {"memory": "2Gi"}}
            for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
                group["rayStartParams"]["object-store-memory"] = "200000000"
                for container in group["template"]["spec"]["containers"]:
                    container["resources"] = SMALL
        (made / path.name).write_text(yaml.safe_dump(content))
    return made
