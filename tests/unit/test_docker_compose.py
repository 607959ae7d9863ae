"""The stack in containers is the embedded stack: the same services, the same ports, loopback only."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.adapters.local import services
from headway.adapters.local.layout import LocalLayout

CHECKOUT = Path(__file__).parents[2]
BASE_PORT = 18000


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded = yaml.safe_load((CHECKOUT / "docker-compose.yaml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_it_has_the_services_of_the_embedded_stack(compose: dict[str, Any]) -> None:
    """The scraper is not there: containers have a Prometheus of their own."""
    beside = {"postgres", "airflow-db"}

    assert set(compose["services"]) - beside == set(services.PROGRAMS) - {services.METRICS}


def test_published_ports_are_those_of_the_layout_and_on_loopback(compose: dict[str, Any], tmp_path: Path) -> None:
    names = LocalLayout.make(home=tmp_path, cache=tmp_path, base_port=BASE_PORT, checkout=CHECKOUT).named_ports()
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]

    for port in published:
        address, outside, inside = port.split(":")
        assert address == "127.0.0.1", port
        assert outside == inside
        assert int(outside) in names, port
    assert sorted(int(port.split(":")[1]) - BASE_PORT for port in published) == [0, 1, 2, 3, 4, 5]


def test_every_long_running_service_has_a_health_check(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert name == "airflow-db" or service["healthcheck"]["test"], name


def test_waits_name_services_that_exist_and_can_be_waited_for(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for other, how in service.get("depends_on", {}).items():
            assert other in compose["services"], name
            if how["condition"] == "service_healthy":
                assert "healthcheck" in compose["services"][other], (name, other)


def test_volumes_and_networks_are_declared(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert set(service["networks"]) <= set(compose["networks"]), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source.startswith((".", "/", "$")) or source in compose["volumes"], (name, volume)


def test_no_secret_has_a_default(compose: dict[str, Any]) -> None:
    """A forgotten variable stops the start; it does not become a known password."""
    text = (CHECKOUT / "docker-compose.yaml").read_text()

    for name in ("POSTGRES_PASSWORD", "AIRFLOW_FERNET_KEY", "AIRFLOW_JWT_SECRET", "MLFLOW_WEBHOOK_KEY"):
        assert f"${{{name}:?" in text
        assert f"${{{name}:-" not in text
        assert f"${{{name}}}" not in text


def test_dockerfiles_copy_what_is_there(compose: dict[str, Any]) -> None:
    files = {CHECKOUT / "docker" / "pods" / "Dockerfile"}
    files |= {CHECKOUT / s["build"]["dockerfile"] for s in compose["services"].values() if "build" in s}
    for file in files:
        for line in file.read_text().splitlines():
            if line.startswith("COPY"):
                for source in line.split()[1:-1]:
                    assert (CHECKOUT / source).exists(), (file.name, source)


def test_airflow_can_open_its_passwords_for_writing(compose: dict[str, Any]) -> None:
    """As it does at its start and at each login: not in a folder that is mounted read-only."""
    server = compose["services"]["airflow-api"]
    target = server["environment"]["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"]
    read_only = [volume.split(":")[-2] for volume in server["volumes"] if volume.endswith(":ro")]

    assert read_only
    assert not any(target.startswith(f"{folder}/") for folder in read_only)
    assert f"{target} && exec airflow api-server" in server["command"][-1]
