"""Where everything is: no two things share a port, and a child gets its environment and nothing else."""

from collections import Counter
from pathlib import Path

import pytest

from headway.adapters.local.layout import CLUSTER_PORTS, CLUSTER_SLOTS, ENVIRONMENTS, LocalLayout, checked_name
from headway.errors import ConfigError

CHECKOUT = Path(__file__).parents[2]


def make_layout(tmp_path: Path, base_port: int = 30000) -> LocalLayout:
    return LocalLayout.make(home=tmp_path / "h", cache=tmp_path / "c", base_port=base_port, checkout=CHECKOUT)


def test_no_two_things_share_a_port(tmp_path: Path) -> None:
    """Two clusters and all services run side by side."""
    layout = make_layout(tmp_path)
    ports = list(layout.named_ports())
    for slot in range(CLUSTER_SLOTS):
        cluster = layout.cluster_ports(slot)
        ports += [cluster.at(index) for index in range(CLUSTER_PORTS)]
        ports += range(cluster.worker_first, cluster.worker_last + 1)

    assert [port for port, times in Counter(ports).items() if times > 1] == []
    assert max(ports) < 65536


def test_a_cluster_keeps_to_its_slot(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)

    with pytest.raises(ConfigError, match="slot 6"):
        layout.cluster_ports(CLUSTER_SLOTS)
    with pytest.raises(ConfigError, match="number 40"):
        layout.cluster_ports(0).at(CLUSTER_PORTS)


@pytest.mark.parametrize("base_port", [80, 64000])
def test_a_base_port_without_room_is_refused(tmp_path: Path, base_port: int) -> None:
    with pytest.raises(ConfigError, match=f"HEADWAY_BASE_PORT is {base_port}"):
        make_layout(tmp_path, base_port)


def test_a_home_too_deep_for_a_socket_is_refused(tmp_path: Path) -> None:
    """The kernel would cut the path, and two stacks could meet in one socket."""
    with pytest.raises(ConfigError, match="shorter path"):
        make_layout(tmp_path / ("deep" * 30))


def test_two_stacks_have_two_marks(tmp_path: Path) -> None:
    """`down` of one never ends a process of the other."""
    assert make_layout(tmp_path / "a").stack_mark != make_layout(tmp_path / "b").stack_mark
    assert make_layout(tmp_path / "a").stack_mark == make_layout(tmp_path / "a").stack_mark


def test_a_child_inherits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the user has set, the same runs."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the user")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    env = make_layout(tmp_path).child_env("serve")

    assert not {"AWS_ACCESS_KEY_ID", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS"} & set(env)
    assert "AWS_SHARED_CREDENTIALS_FILE" not in env


def test_a_child_finds_the_same_stack(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)
    env = layout.child_env("quantize", role="quantize", extra={"HEADWAY_JOB": "quantize-1"})

    assert env["HEADWAY_HOME"] == str(layout.home)
    assert env["HEADWAY_BASE_PORT"] == "30000"
    assert env["HEADWAY_STACK"] == layout.stack_mark
    assert env["HEADWAY_JOB"] == "quantize-1"
    assert env["AWS_SHARED_CREDENTIALS_FILE"] == str(layout.s3_credentials("quantize"))
    assert env["HEADWAY_S3_ENDPOINT"] == "http://127.0.0.1:30005"


def test_environments_are_named_by_their_lock_files(tmp_path: Path) -> None:
    """Another lock file is another environment, so an old one is never changed under a running process."""
    layout = make_layout(tmp_path)

    for name in ENVIRONMENTS:
        folder = layout.python(name).parent.parent
        assert folder.parent == layout.cache / "envs"
        assert folder.name.startswith(f"{name}-")


def test_a_checkout_without_lock_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"airflow\.lock"):
        LocalLayout.make(home=tmp_path, cache=tmp_path, base_port=30000, checkout=tmp_path)


@pytest.mark.parametrize("name", ["", "Upper", "a b", "../x", "a:b", "-x", "x" * 121])
def test_a_process_name_that_supervisord_would_misread_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="process name"):
        checked_name(name)


def test_lock_files_name_no_index_and_no_path() -> None:
    """They must work behind any index."""
    for path in (CHECKOUT / "local" / "locks").glob("*.lock"):
        lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
        assert not [line for line in lines if "://" in line or "--index" in line or "--find-links" in line], path
        assert [line for line in lines if "--hash=sha256:" in line], path
