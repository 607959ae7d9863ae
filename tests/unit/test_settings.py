"""Settings come from HEADWAY_ variables, and a wrong one is named."""

import re
from pathlib import Path

import pytest

from headway.errors import ConfigError
from headway.settings import PREFIX, Settings


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"{PREFIX}{name.upper()}", raising=False)


def test_without_any_setting_the_state_is_in_the_checkout() -> None:
    layout = Settings.load().layout()

    assert layout.home == layout.checkout / ".headway"
    assert layout.cache == Path.home() / ".cache" / "headway"
    assert layout.base_port == 18000
    assert (layout.checkout / "pyproject.toml").exists()


def test_variables_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HEADWAY_BASE_PORT", "31000")
    monkeypatch.setenv("HEADWAY_ENVS_DIR", str(tmp_path / "envs"))
    layout = Settings.load().layout()

    assert layout.home == tmp_path / "home"
    assert layout.airflow_url == "http://127.0.0.1:31003"
    assert layout.python("serve") == tmp_path / "envs" / "serve" / "bin" / "python"


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", "")

    assert Settings.load().home is None


def test_a_wrong_value_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_BASE_PORT", "many")

    with pytest.raises(ConfigError, match=r"HEADWAY_BASE_PORT: .*integer"):
        Settings.load()


def test_every_setting_says_what_it_is() -> None:
    """The docstring under a field is its documentation."""
    source = Path(__file__).parents[2].joinpath("src/headway/settings.py").read_text()

    for name in Settings.model_fields:
        assert re.search(rf'\n    {name}: [^\n]+\n    """', source), name


def test_keys_for_artifacts_come_as_a_pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Signing with one pair and verifying with another would refuse every artifact."""
    layout = Settings.load().layout()
    assert (layout.signing_key.parent, layout.artifact_key.parent) == (layout.secrets, layout.secrets)

    monkeypatch.setenv("HEADWAY_SIGNING_KEY", str(tmp_path / "own.pem"))
    with pytest.raises(ConfigError, match="are a pair"):
        Settings.load().layout()
    monkeypatch.setenv("HEADWAY_ARTIFACT_KEY", str(tmp_path / "own.pub"))
    layout = Settings.load().layout()
    assert (layout.signing_key, layout.artifact_key) == (tmp_path / "own.pem", tmp_path / "own.pub")
