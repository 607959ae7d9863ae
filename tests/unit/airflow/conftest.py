"""An Airflow of its own for these tests: configured before it is imported, with its database in a temporary folder."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HOME = Path(tempfile.mkdtemp(prefix="headway-airflow-"))

os.environ |= {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
    # A random key of each process could not read what another one wrote.
    "AIRFLOW__CORE__FERNET_KEY": "81HqDtbqAywKSOumSha3BhWNOdQ26slT6K0YaZeZyPs=",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow.db",
    "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(HOME / "logs"),
}

from operators.hook import HeadwayHook  # noqa: E402 - Airflow reads its configuration when it is imported
from tests.unit.airflow.fake_backend import FakeBackend  # noqa: E402


@pytest.fixture(scope="session")
def airflow_database() -> Iterator[None]:
    """An empty database of Airflow; takes about five seconds, once."""
    from airflow.utils.db import initdb

    initdb()
    yield
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """Fakes of all ports, which operators and triggers get from the hook."""
    fake = FakeBackend()
    monkeypatch.setattr(HeadwayHook, "connect", staticmethod(lambda: fake))
    return fake


@pytest.fixture
def world(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """Two versions of a model, `champion` on the first, and programs that do what they should."""
    from operators.base import WaitingOperator
    from operators.release import ShiftOperator
    from tests.unit.airflow.world import fill

    for operator in (WaitingOperator, ShiftOperator):
        monkeypatch.setattr(operator, "every_s", 0.0)
    return fill(backend)
