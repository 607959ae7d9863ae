"""The images of `docker/`, as text: no engine builds them here. What can be run without one is run."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from headway.adapters.kubernetes.programs import LIGHT, MEMORY, USER_ID

CHECKOUT = Path(__file__).parents[3]
DOCKER = CHECKOUT / "docker"
LOCKS = CHECKOUT / "local" / "locks"
FILES = sorted(DOCKER.glob("*/Dockerfile"))
HEAVY = {program for program in MEMORY if program not in LIGHT}


def text_of(image: str) -> str:
    return (DOCKER / image / "Dockerfile").read_text()


def pins(lock: str) -> dict[str, str]:
    """Return package to version of a lock file."""
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[[a-z,]+\])?==(\S+)", (LOCKS / f"{lock}.lock").read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_a_dockerfile_copies_what_is_there(path: Path) -> None:
    copied = [line.split()[1:-1] for line in path.read_text().splitlines() if line.startswith("COPY")]

    assert copied
    for source in [one for line in copied for one in line if not one.startswith("--")]:
        assert (CHECKOUT / source).exists(), source


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_a_dockerfile_installs_locked_wheels_and_ends_as_nobodys_root(path: Path) -> None:
    """What was tested is what is in it: by hash, and built by nobody."""
    lines = path.read_text()
    installs = re.findall(r"pip install[^&]*(?:&&|\n\n|$)", lines)

    assert installs
    for install in installs:
        assert "--no-deps" in install
        assert "--require-hashes" in install or "==" in install
        assert "--only-binary :all:" in install or "--no-build" in install
    assert re.findall(r"^USER (\S+)", lines, re.MULTILINE)[-1] != "root"


@pytest.mark.parametrize("image", ["pods", "quantize"])
def test_images_of_programs_run_as_the_user_of_their_pods(image: str) -> None:
    assert f"USER {USER_ID}\n" in text_of(image)


def test_airflows_image_has_the_templates_that_it_makes_objects_from() -> None:
    assert "COPY k8s/templates k8s/templates" in text_of("airflow")


def test_airflows_image_has_the_command_that_the_pages_name() -> None:
    """`kubectl exec` must find it; the checkout's own `bin/headway` needs the checkout's caches."""
    written = re.findall(r"printf '(.+?)' > /usr/local/bin/headway", text_of("airflow"))

    assert written == [r'#!/bin/sh\nexec python -m headway.cli "$@"\n']
    assert (CHECKOUT / "src" / "headway" / "cli" / "__main__.py").exists()


def test_the_pages_name_the_scheduler_as_its_chart_does() -> None:
    """The chart of Airflow makes a StatefulSet of a scheduler with the LocalExecutor, as long as logs are kept."""
    values = yaml.safe_load((CHECKOUT / "k8s" / "platform" / "airflow" / "values.yaml").read_text())
    keeps_logs = values.get("workers", {}).get("persistence", {}).get("enabled", True)
    pages = "".join(path.read_text() for path in (CHECKOUT / "docs").glob("*.md"))

    assert (values["executor"], keeps_logs) == ("LocalExecutor", True)
    assert "exec airflow-scheduler-0" in pages
    assert "deploy/airflow-scheduler" not in pages


def test_airflow_can_open_its_passwords_for_writing() -> None:
    """As it does at its start and at each login; a Secret's volume cannot be written to."""
    values = yaml.safe_load((CHECKOUT / "k8s" / "platform" / "airflow" / "values.yaml").read_text())
    server, folder = values["apiServer"], Path(values["config"]["core"]["simple_auth_manager_passwords_file"]).parent
    (mounted,) = [one["name"] for one in server["extraVolumeMounts"] if one["mountPath"] == str(folder)]
    (volume,) = [one for one in server["extraVolumes"] if one["name"] == mounted]
    (copies,) = server["extraInitContainers"]
    mounts = {one["mountPath"]: one["name"] for one in copies["volumeMounts"]}
    source, target = copies["command"][-2:]

    assert "emptyDir" in volume
    assert mounts[str(Path(source).parent)] == "headway-airflow"
    assert (mounts[str(folder)], target) == (mounted, values["config"]["core"]["simple_auth_manager_passwords_file"])
    assert copies["image"] == "{repository}:{tag}".format(**values["images"]["airflow"])


def test_the_light_image_has_the_versions_that_its_programs_are_tested_with() -> None:
    """The tests of stage and bench run in the environment `airflow`."""
    tested = pins("airflow")

    light = pins("pods")
    assert {package: tested.get(package) for package in light} == light
    assert not set(light) & {"torch", "vllm", "ray", "kubernetes", "mlflow"}


@pytest.mark.parametrize("program", sorted(LIGHT))
def test_the_light_image_has_what_its_programs_import(program: str) -> None:
    """Every import of headway's modules that such a program reaches is its own, Python's, or of the lock."""
    have = {name.replace("-", "_") for name in pins("pods")} | {"dateutil", "attr"}
    for module, name in foreign_imports(f"headway.pods.{program}"):
        assert name in have, f"{module} imports {name}, which local/locks/pods.in does not bring"


def foreign_imports(start: str) -> list[tuple[str, str]]:
    """Return what is imported, by which module, at the top of every module that a program reaches."""
    found: list[tuple[str, str]] = []
    left, seen = [start], {start}
    while left:
        module = left.pop()
        path = CHECKOUT / "src" / Path(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        for name in _imported(path):
            top = name.split(".")[0]
            if top == "headway":
                found_module = _module_of(name)
                if found_module not in seen:
                    seen.add(found_module)
                    left.append(found_module)
            elif top not in sys.stdlib_module_names:
                found.append((module, top))
    return found


@cache
def _imported(path: Path) -> list[str]:
    body = ast.parse(path.read_text()).body
    names: list[str] = []
    for node in body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def _module_of(name: str) -> str:
    """Return the module that a dotted name is, or is in."""
    parts = name.split(".")
    while parts:
        path = CHECKOUT / "src" / Path(*parts)
        if path.is_dir() or path.with_suffix(".py").exists():
            return ".".join(parts)
        parts.pop()
    raise AssertionError(name)


def test_the_walk_over_imports_sees_them() -> None:
    """Otherwise the test above could not fail."""
    assert ("headway.adapters.s3.client", "botocore") in foreign_imports("headway.pods.stage")
    assert {"aiohttp", "numpy"} <= {name for _, name in foreign_imports("headway.pods.bench")}


@pytest.mark.parametrize(
    ("program", "environment"), [("quantize", "quantize"), ("tasks", "tasks"), ("quality", "serve"), ("", "serve")]
)
def test_the_heavy_image_runs_each_program_in_its_environment(tmp_path: Path, program: str, environment: str) -> None:
    """Quality asks the engine that will serve; the other two would not fit beside it."""
    for name in ("serve", "quantize", "tasks"):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        python.chmod(0o755)
    launcher = str(DOCKER / "quantize" / "python")
    command = ["sh", launcher, "-m", "headway.pods.run", *filter(None, [program]), "--work=x"]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={"HEADWAY_ENVIRONMENTS": str(tmp_path)}
    )

    expected = " ".join(filter(None, [environment, "-m headway.pods.run", program, "--work=x"]))
    assert done.stdout.strip() == expected
    assert {"quantize", "quality", "tasks"} == HEAVY
