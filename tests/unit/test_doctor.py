"""The doctor names what is missing and what to do, and changes nothing."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.adapters.local import machine
from headway.adapters.local.doctor import examine
from headway.adapters.local.layout import LocalLayout
from headway.domain.finding import Finding

CHECKOUT = Path(__file__).parents[2]


def free_base_port() -> int:
    """Find a stretch of free ports for the services; the tests only look at the fixed ones."""
    for base in range(40000, 60000, 100):
        if not machine.port_holders(range(base, base + 15)):
            return base
    raise AssertionError("no free ports")


@pytest.fixture
def layout(tmp_path: Path) -> LocalLayout:
    envs = tmp_path / "envs"
    for name in ("airflow", "serve", "quantize", "tools"):
        (envs / name / "bin").mkdir(parents=True)
        (envs / name / "bin" / "python").symlink_to(sys.executable)
    return LocalLayout.make(
        home=tmp_path / "home", cache=tmp_path / "cache", base_port=free_base_port(), checkout=CHECKOUT, envs_dir=envs
    )


@pytest.fixture
def listener(layout: LocalLayout) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", layout.airflow_port)):
        yield layout.airflow_port


def found(layout: LocalLayout, what: str) -> Finding:
    return next(finding for finding in examine(layout) if finding.what == what)


def test_a_stack_that_was_never_started_lacks_nothing_but_a_start(layout: LocalLayout) -> None:
    finding = found(layout, "stack")

    assert (finding.level, finding.found) == ("note", "not running")
    assert "headway up" in finding.remedy


def test_looking_leaves_no_trace(layout: LocalLayout) -> None:
    examine(layout)

    assert not layout.home.exists()


def test_a_port_in_use_is_named_with_who_has_it(layout: LocalLayout, listener: int) -> None:
    finding = found(layout, f"port {listener}")

    assert finding.level == "missing"
    assert "Airflow: in use by" in finding.found
    assert f"pid {os.getpid()} (" in finding.found
    assert "HEADWAY_BASE_PORT" in finding.remedy


def test_an_environment_that_is_not_built_is_named(layout: LocalLayout) -> None:
    layout.python("serve").unlink()
    finding = found(layout, "environment serve")

    assert finding.level == "missing"
    assert "make setup" in finding.remedy


def test_our_own_process_on_a_port_is_fine(layout: LocalLayout, listener: int) -> None:
    assert machine.foreign_ports(layout, own_pids=[os.getpid()]) == {}
    assert set(machine.foreign_ports(layout, own_pids=[])) == {listener}


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may have more than the container may take."""
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 100000\n")
    monkeypatch.setattr(machine, "CGROUP_MEMORY", tmp_path)

    assert machine.total_memory_bytes() == 1000000
    assert machine.free_memory_bytes() == 400000


def test_a_container_without_a_limit_has_the_machines_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    monkeypatch.setattr(machine, "CGROUP_MEMORY", tmp_path)

    assert machine.total_memory_bytes() > 1 << 28
