"""What the stack is made of: secrets, the gateway's files, the programs' arguments."""

import json
import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.adapters.local import gateway, secrets, services
from headway.adapters.local.jobs import LocalJobs
from headway.adapters.local.layout import S3_ROLES, LocalLayout
from headway.domain.job import Job, Program
from headway.errors import ConfigError, Conflict

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def layout(tmp_path: Path) -> LocalLayout:
    made = LocalLayout.make(home=tmp_path / "h", cache=tmp_path / "c", base_port=30000, checkout=CHECKOUT)
    secrets.ensure(made)
    gateway.ensure(made)
    return made


def test_secrets_are_made_once_and_for_the_owner_only(layout: LocalLayout) -> None:
    """A second `up` must not change the keys that databases were encrypted with."""
    before = {path.name: path.read_text() for path in layout.secrets.iterdir()}

    assert secrets.ensure(layout) == []
    assert {path.name: path.read_text() for path in layout.secrets.iterdir()} == before
    assert {stat.S_IMODE(path.stat().st_mode) for path in layout.secrets.iterdir()} == {0o600}
    assert stat.S_IMODE(layout.secrets.stat().st_mode) == 0o700


def test_a_lost_credentials_file_is_made_again_with_its_identity(layout: LocalLayout) -> None:
    """Server and client never disagree on a key."""
    layout.s3_credentials("stage").unlink()
    secrets.ensure(layout)
    identities = json.loads(layout.secret(secrets.S3_IDENTITIES).read_text())["identities"]
    keys = {item["name"]: item["credentials"][0]["accessKey"] for item in identities}

    assert set(keys) == set(S3_ROLES)
    assert keys["stage"] == secrets.read_s3(layout.s3_credentials("stage"))[0]


NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def test_a_replaced_webhook_secret_is_good_for_a_while(layout: LocalLayout) -> None:
    """What was signed before the rotation still comes in, and a second `up` changes nothing."""
    [first] = secrets.webhook_secrets(layout, NOON)

    until = secrets.rotate_webhook(layout, NOON, 60)

    second, before = secrets.webhook_secrets(layout, NOON)
    assert (before, until) == (first, NOON + timedelta(seconds=60))
    assert second != first
    assert secrets.ensure(layout) == []
    assert secrets.webhook_secrets(layout, until) == (second,)
    assert {stat.S_IMODE(path.stat().st_mode) for path in layout.secrets.iterdir()} == {0o600}


def test_a_secret_that_may_be_in_use_is_not_lost_by_two_rotations(layout: LocalLayout) -> None:
    """Nobody knows whether the registry got the second one before the third is made."""
    until = secrets.rotate_webhook(layout, NOON, 60)
    both = secrets.webhook_secrets(layout, NOON)

    with pytest.raises(Conflict, match="rotate again after that"):
        secrets.rotate_webhook(layout, until - timedelta(seconds=1), 60)

    assert secrets.webhook_secrets(layout, NOON) == both
    assert secrets.rotate_webhook(layout, until, 60) > until


def test_webhook_secrets_that_are_not_there_or_damaged(layout: LocalLayout) -> None:
    """No secret is an empty list, which believes nobody; a damaged file is one clear error."""
    secrets.rotate_webhook(layout, NOON, 60)
    layout.secret(secrets.WEBHOOK_SECRET).unlink()
    assert secrets.webhook_secrets(layout, NOON) == ()
    with pytest.raises(ConfigError, match="headway up"):
        secrets.rotate_webhook(layout, NOON, 60)
    secrets.ensure(layout)
    for damaged in ("one", "one two", "one 2026-12-01T12:00:00", "one two three"):
        layout.secret(secrets.WEBHOOK_SECRET_BEFORE).write_text(damaged)
        with pytest.raises(ConfigError, match="cannot be read") as error:
            secrets.webhook_secrets(layout, NOON)
        assert "one" not in error.value.message.split(" ")


def test_the_pair_for_artifacts_fits_together(layout: LocalLayout) -> None:
    """A lost public half is made again from the private one; the private one is never replaced."""
    private, public = layout.signing_key.read_bytes(), layout.artifact_key.read_bytes()
    layout.artifact_key.unlink()

    assert secrets.ensure(layout) == [layout.artifact_key.name]
    assert (layout.signing_key.read_bytes(), layout.artifact_key.read_bytes()) == (private, public)
    layout.artifact_key.write_text("changed")
    secrets.ensure(layout)
    assert layout.artifact_key.read_bytes() == public


def test_a_pair_of_one_s_own_is_used_and_none_is_made(tmp_path: Path) -> None:
    """The path reaches Airflow's tasks, which start the programs."""
    own: dict[str, Any] = {"signing_key": tmp_path / "own.pem", "artifact_key": tmp_path / "own.pub"}
    layout = LocalLayout.make(home=tmp_path / "h", cache=tmp_path / "c", base_port=30000, checkout=CHECKOUT, **own)

    assert not [name for name in secrets.ensure(layout) if name.startswith("artifact")]
    assert services.airflow_env(layout)["HEADWAY_SIGNING_KEY"] == str(tmp_path / "own.pem")
    assert "HEADWAY_SIGNING_KEY" not in layout.child_env("airflow")


@pytest.mark.parametrize(
    ("program", "gets"),
    [("quantize", {"HEADWAY_SIGNING_KEY"}), ("stage", {"HEADWAY_ARTIFACT_KEY"}), ("bench", set()), ("quality", set())],
)
def test_each_program_gets_its_half_of_the_pair_and_no_more(
    layout: LocalLayout, program: Program, gets: set[str]
) -> None:
    """Least rights: whoever only reads artifacts cannot sign one."""
    job = Job(name="j", program=program, environment="airflow", payload={}, deadline_s=60)
    extra = LocalJobs(layout)._extra(job)

    assert {name for name in extra if name.endswith("_KEY")} == gets
    assert not any(
        value in extra.values() for value in (layout.signing_key.read_text(), layout.artifact_key.read_text())
    )


def test_only_the_admin_may_do_everything() -> None:
    """Least rights: every other action names its bucket."""
    for role, actions in secrets.S3_ACTIONS.items():
        if role != "admin":
            assert all(":" in action for action in actions), role
    assert not any(action.startswith("Write") for action in secrets.S3_ACTIONS["stage"])


def test_no_secret_is_an_argument(layout: LocalLayout) -> None:
    """Arguments can be read by every user of the machine."""
    values = [line for path in layout.secrets.iterdir() for line in re.findall(r"[\w-]{20,}=*", path.read_text())]
    for service in services.services(layout).values():
        assert not [value for value in values if any(value in word for word in service.command)], service.name


def test_everything_listens_on_loopback_and_on_ports_of_the_stack(layout: LocalLayout) -> None:
    ports = set(layout.named_ports())
    for service in services.services(layout).values():
        words = " ".join(service.command)
        assert "0.0.0.0" not in words  # noqa: S104
        named = {int(port) for port in re.findall(r"port(?:\.grpc)?[= ](\d+)", words)} - {0}
        assert named <= ports, service.name
    bootstrap = yaml.safe_load(layout.envoy_bootstrap.read_text())
    listeners = bootstrap["static_resources"]["listeners"]
    addresses = [listener["address"]["socket_address"] for listener in listeners]
    addresses.append(bootstrap["admin"]["address"]["socket_address"])
    assert {address["address"] for address in addresses} == {"127.0.0.1"}
    assert {address["port_value"] for address in addresses} == {30000, 30001, 30002}


def test_clients_cannot_choose_a_side(layout: LocalLayout) -> None:
    """The public listener drops the header before it looks for a route; the internal one does not."""
    listeners = yaml.safe_load(layout.envoy_bootstrap.read_text())["static_resources"]["listeners"]
    text = {listener["name"]: json.dumps(listener) for listener in listeners}

    assert '{"remove": "x-headway-cluster"}' in text["public"]
    assert "x-headway-cluster" not in text["internal"]


def test_routes_of_a_running_stack_are_kept(layout: LocalLayout) -> None:
    """`up` must not take a released model off the gateway."""
    layout.envoy_public_routes.write_text("resources: [released]\n")
    gateway.ensure(layout)

    assert layout.envoy_public_routes.read_text() == "resources: [released]\n"


def test_before_any_release_the_gateway_says_why_it_does_not_answer(layout: LocalLayout) -> None:
    for path in (layout.envoy_public_routes, layout.envoy_internal_routes):
        answer = json.loads(path.read_text())["resources"][0]["virtual_hosts"][0]["routes"][0]["direct_response"]
        assert answer["status"] == 503
        assert "alias" in json.loads(answer["body"]["inline_string"])["error"]["message"]


def test_changed_code_is_another_definition(tmp_path: Path) -> None:
    """Airflow never reloads plugins, so the next `up` must see that it has to restart it."""
    code = tmp_path / "plugins" / "a.py"
    code.parent.mkdir()
    code.write_text("x = 1\n")
    before = services.code_digest(tmp_path)
    code.write_text("x = 2\n")

    assert services.code_digest(tmp_path) != before
