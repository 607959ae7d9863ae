"""The world of these tests, and how to read it."""

from typing import Any

from headway.domain.profile import Profile
from headway.release import record
from tests.factories import make_profile
from tests.unit.airflow import played
from tests.unit.airflow.fake_backend import FakeBackend
from tests.unit.airflow.model_files import put_model

CANARY = {"blocks": 10, "requests_per_block": 15, "p50_margin": 0.5, "p95_margin": 1.0, "error_margin_pct": 5.0}


def profile(**changes: Any) -> Profile:
    """A profile whose bakes take no time."""
    return make_profile(**{"shift": {"steps_pct": [10, 50, 100], "bake_s": 0}, "canary": CANARY, **changes})


def fill(backend: FakeBackend) -> FakeBackend:
    """Register two versions of `tiny`, and let every program do what it should."""
    backend.kept_profiles["tiny"] = profile()
    put_model(backend, 1, "champion")
    put_model(backend, 2)
    weights = backend.weights
    backend.jobs.plays |= {
        "quantize": played.quantize(weights),
        "quality": played.quality(weights),
        "stage": played.stage,
        "bench": played.bench(weights),
    }
    return backend


def outcome(backend: FakeBackend, version: int) -> str:
    """Return how the only remembered release of a version ended."""
    states = record.read_state(backend.registry.tags("tiny", version))
    assert len(states) == 1, states
    return next(iter(states.values())).outcome
