"""The demonstration's model is damaged as announced, and what is not whole is made again."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from headway.domain.safetensors import LENGTH_BYTES, header_length, parse_header
from tests.unit.test_safetensors import file_of, header_of

PROGRAM = Path(__file__).parents[2] / "local" / "demo_model.py"


@pytest.fixture
def program() -> ModuleType:
    """The program as a module; what it needs of the quantize environment is imported later."""
    spec = importlib.util.spec_from_file_location("demo_model", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_quarter_of_the_weights_is_zeroed_and_the_header_is_whole(program: ModuleType, tmp_path: Path) -> None:
    """It must load everywhere: only the quality gate may find it."""
    described, body = header_of({"a": ("F32", [50, 5]), "b": ("F32", [50, 5])})
    good, bad = tmp_path / "v1", tmp_path / "v3"
    good.mkdir()
    bad.mkdir()
    content = file_of(described, 0) + b"\xff" * body
    (good / "model.safetensors").write_bytes(content)
    (good / "config.json").write_text("{}")
    program.damage(bad, good)
    damaged = (bad / "model.safetensors").read_bytes()

    assert damaged.count(0) - content.count(0) == body // 4
    length = header_length(damaged[:LENGTH_BYTES], len(damaged))
    assert len(parse_header(damaged[LENGTH_BYTES : LENGTH_BYTES + length], len(damaged))) == 2
    assert (bad / "config.json").read_text() == "{}"


def test_a_set_with_a_cut_file_is_not_whole(program: ModuleType, tmp_path: Path) -> None:
    """Ctrl-C at any moment; the second run finishes."""
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "config.json").write_text("{}")
    assert not program._is_whole(tmp_path)
    program._write_marker(tmp_path)
    assert program._is_whole(tmp_path)

    (tmp_path / "v1" / "config.json").write_text("{")
    assert not program._is_whole(tmp_path)
    (tmp_path / "v1" / "config.json").write_text("{}")
    marker = tmp_path / program.MARKER
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "revision": 0}))
    assert not program._is_whole(tmp_path)


def test_pairs_become_halves(program: ModuleType) -> None:
    """llama.cpp keeps rotary dimensions side by side, Hugging Face in two halves."""
    np = pytest.importorskip("numpy")
    rows = np.arange(8).reshape(8, 1)

    assert program._interleaved_to_halves(rows, 2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
