"""An environment that only some profiles need is built on demand, and whoever lacks it is told how."""

from pathlib import Path

import pytest

from headway.adapters.local.doctor import examine
from headway.adapters.local.environments import ENVIRONMENTS, ON_DEMAND, how_to_build
from headway.adapters.local.jobs import LocalJobs
from headway.adapters.local.layout import LocalLayout
from headway.adapters.local.stack import require_environments
from headway.domain.job import Job
from headway.errors import ConfigError

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def layout(tmp_path: Path) -> LocalLayout:
    """A stack without a single environment."""
    return LocalLayout.make(
        home=tmp_path / "h", cache=tmp_path / "c", base_port=30000, checkout=CHECKOUT, envs_dir=tmp_path / "envs"
    )


def test_a_job_without_its_environment_names_the_command(layout: LocalLayout) -> None:
    """Nothing is left behind that a later try would adopt."""
    job = Job(name="tasks-r", program="tasks", environment="tasks", payload={}, deadline_s=60)

    with pytest.raises(ConfigError, match=r"not built: there is no .*run `local/setup\.sh tasks`"):
        LocalJobs(layout).submit(job)
    assert LocalJobs(layout).status("tasks-r").phase == "absent"


def test_the_stack_starts_without_what_is_built_on_demand(layout: LocalLayout) -> None:
    """A fresh machine has what `make setup` builds, and no more; the demo must run on it."""
    with pytest.raises(ConfigError, match=r"not built: airflow, serve, quantize; run `make setup`"):
        require_environments(layout)

    for name in ENVIRONMENTS:
        layout.python(name).parent.mkdir(parents=True)
        layout.python(name).touch()
    require_environments(layout)
    layout.python("serve").unlink()
    with pytest.raises(ConfigError, match=r"not built: serve;"):
        require_environments(layout)


def test_the_other_environments_come_with_make_setup(layout: LocalLayout) -> None:
    assert not set(ON_DEMAND) & set(ENVIRONMENTS)
    assert {how_to_build(name) for name in ENVIRONMENTS} == {"make setup"}
    assert [how_to_build(name) for name in ON_DEMAND] == ["local/setup.sh tasks"]
    assert not [finding for finding in examine(layout) if finding.what == "environment tasks"]


def test_setup_knows_the_environment_and_does_not_build_it_unasked() -> None:
    setup = (CHECKOUT / "local" / "setup.sh").read_text()

    assert "names=(airflow serve quantize tools)" in setup
    assert "[tasks]=" in setup
    assert "tasks" in (CHECKOUT / "local" / "locks" / "lock.sh").read_text()
