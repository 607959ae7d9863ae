"""llm-compressor itself on a tiny Llama: every scheme, twice, and what must come out."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.domain.calibration import bundled_digest
from headway.domain.weights import CALIBRATED, GROUPED, Recipe, Scheme
from headway.errors import IntegrityError
from headway.pods import structure
from headway.pods.shards import locate
from headway.settings import Settings
from tests.component.test_quantize import SRC, TINY

pytestmark = [pytest.mark.component, pytest.mark.timeout(300)]

LAYERS, LINEARS = 2, 14


def recipe(scheme: Scheme, *, kv: bool = False, group_size: int = 32) -> Recipe:
    """A recipe that looks at little: four rows of 32 tokens."""
    calibrated = scheme in CALIBRATED or kv
    return Recipe(
        scheme=scheme,
        group_size=group_size if scheme in GROUPED else None,
        kv_cache_scales=kv,
        calibration_digest=bundled_digest() if calibrated else None,
        calibration_samples=4 if calibrated else None,
        calibration_tokens=32 if calibrated else None,
    )


RECIPES: dict[str, tuple[Recipe, int | None]] = {
    "fp8-dynamic": (recipe("fp8-dynamic"), None),
    "fp8-dynamic-by-file": (recipe("fp8-dynamic"), 1),
    "fp8-dynamic-kv": (recipe("fp8-dynamic", kv=True), None),
    "fp8": (recipe("fp8"), None),
    "w8a8": (recipe("w8a8"), None),
    "w8a8-again": (recipe("w8a8"), None),
    "w8a8-kv": (recipe("w8a8", kv=True), None),
    "w4a16-gptq": (recipe("w4a16-gptq"), None),
    "w4a16-gptq-again": (recipe("w4a16-gptq"), None),
    "w4a16-awq": (recipe("w4a16-awq"), None),
    "nvfp4": (recipe("nvfp4"), None),
    "does-not-fit": (recipe("w4a16-gptq", group_size=48), None),
    "too-large": (recipe("w8a8"), 1000),
}


@dataclass
class Made:
    """What came out."""

    source: Path
    out: Path
    found: dict[str, dict[str, Any]]

    def model(self, name: str) -> structure.Model:
        """Return a result's headers and config."""
        return structure.inspect(self.out / name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """All recipes, made by one process."""
    folder = tmp_path_factory.mktemp("compress")
    source, out = folder / "source", folder / "out"
    source.mkdir()
    out.mkdir()
    python = Settings.load().layout().python("quantize")
    environment = {**os.environ, "PYTHONPATH": f"{SRC}:{SRC.parent}", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([python, "-c", TINY, source, "1"], check=True, env=environment)
    asked = json.dumps([[name, asked.to_json(), memory] for name, (asked, memory) in RECIPES.items()])
    ended = subprocess.run(
        [python, "-m", "tests.component.compress_main", source, out, asked],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    [line] = [line for line in ended.stdout.splitlines() if line.startswith("FOUND ")]
    return Made(source, out, json.loads(line.removeprefix("FOUND ")))


BUILT = [name for name in RECIPES if name not in ("nvfp4", "does-not-fit", "too-large")]


@pytest.mark.parametrize("name", BUILT)
def test_every_scheme_makes_a_whole_model(made: Made, name: str) -> None:
    """Its own check says so, here once more and apart from the run."""
    asked, _ = RECIPES[name]

    assert "error" not in made.found[name], made.found[name]
    assert structure.findings(made.model("../source"), made.model(name), asked) == []


@pytest.mark.parametrize("name", ["w8a8", "w4a16-gptq"])
def test_the_same_input_gives_the_same_bytes(made: Made, name: str) -> None:
    assert made.found[name]["digest"] == made.found[f"{name}-again"]["digest"]


def test_a_model_that_is_never_loaded_comes_out_the_same(made: Made) -> None:
    """How much memory a machine has is no input of an artifact."""
    loaded, by_file = made.found["fp8-dynamic"], made.found["fp8-dynamic-by-file"]

    assert (loaded["loaded"], by_file["loaded"]) == (True, False)
    assert loaded["digest"] == by_file["digest"]
    assert {error["kind"] for error in by_file["errors"]} == {"weight"}
    assert len(by_file["errors"]) == LINEARS
    assert all(0.005 < error["relative_error"] < 0.06 for error in by_file["errors"]), "3 bits of mantissa"


@pytest.mark.parametrize("name", [name for name in BUILT if name != "fp8-dynamic-by-file"])
def test_each_layer_is_compared_with_the_source(made: Made, name: str) -> None:
    errors = made.found[name]["errors"]

    assert [error["name"] for error in errors] == [f"model.layers.{layer}" for layer in range(LAYERS)]
    assert all(error["kind"] == "output" and 0 < error["relative_error"] < 0.5 for error in errors)


def test_progress_is_told_layer_by_layer(made: Made) -> None:
    """SmoothQuant and GPTQ each go through two layers and the rest of the model."""
    said = [message for message in made.found["w8a8"]["progress"] if message.startswith("w8a8: step")]

    assert said == [f"w8a8: step {step} of 6, a layer each" for step in range(1, 7)]


def test_the_scales_of_the_cache_are_there_for_each_layer(made: Made) -> None:
    """Without them vLLM would run the FP8 cache at a scale of 1.0, and say nothing."""
    names = {name for name in locate(made.out / "w8a8-kv") if name.endswith(("k_scale", "v_scale"))}

    assert names == {f"model.layers.{layer}.self_attn.{k}" for layer in range(LAYERS) for k in ("k_scale", "v_scale")}
    assert made.model("w8a8-kv").config["quantization_config"]["kv_cache_scheme"]["num_bits"] == 8
    assert "kv_cache_scheme" not in made.model("w8a8").config["quantization_config"]


def test_config_is_the_source_s_with_the_quantization_added(made: Made) -> None:
    """A newer transformers writes fields that an older serving engine reads otherwise."""
    before, after = made.model("../source").config, dict(made.model("w4a16-awq").config)
    said = after.pop("quantization_config")

    assert after == before
    assert said["ignore"] == ["lm_head"]
    assert "observer" not in json.dumps(said)


def test_a_group_that_does_not_divide_the_inputs_is_refused(made: Made) -> None:
    assert made.found["does-not-fit"]["kind"] == "ConfigError"
    assert "48" in made.found["does-not-fit"]["error"]


def test_a_scheme_that_is_not_built_is_refused_with_its_reason(made: Made) -> None:
    assert "compute capability 10.0" in made.found["nvfp4"]["error"]


def test_a_changed_scale_is_found_by_reading_it(made: Made, tmp_path: Path) -> None:
    """Zero makes its row vanish, NaN makes the whole answer NaN."""
    asked, _ = RECIPES["fp8-dynamic"]
    for name, bits in (("zero", b"\x00\x00"), ("nan", b"\xc0\x7f"), ("negative", b"\x80\xbf")):
        target = tmp_path / name
        shutil.copytree(made.out / "fp8-dynamic", target)
        where = locate(target)["model.layers.1.mlp.down_proj.weight_scale"]
        with where.path.open("r+b") as file:
            file.seek(where.body_start + where.tensor.start)
            file.write(bits)
        with pytest.raises(IntegrityError, match=r"1 scales .*layers\.1\.mlp\.down_proj") as caught:
            structure.check(made.source, target, asked)
        assert len(caught.value.facts["faults"]) == 1


def test_a_weight_of_which_nothing_is_left_is_found(made: Made, tmp_path: Path) -> None:
    asked, _ = RECIPES["w4a16-awq"]
    shutil.copytree(made.out / "w4a16-awq", tmp_path / "zeroed")
    where = locate(tmp_path / "zeroed")["model.layers.0.mlp.up_proj.weight_packed"]
    with where.path.open("r+b") as file:
        file.seek(where.body_start + where.tensor.start)
        file.write(bytes(where.tensor.end - where.tensor.start))

    with pytest.raises(IntegrityError, match=r"1 weights are nothing but zeros .*layers\.0\.mlp\.up_proj"):
        structure.check(made.source, tmp_path / "zeroed", asked)


def test_a_calibrated_model_has_the_dtypes_of_its_source(made: Made) -> None:
    """Although a CPU computes in float32."""
    for name in ("w8a8", "w4a16-gptq", "fp8", "fp8-dynamic-kv"):
        dtypes = {where.tensor.dtype for where in locate(made.out / name).values()}
        assert dtypes <= {"BF16", "I8", "I32", "I64", "F8_E4M3"}, name


def test_a_model_that_cannot_be_loaded_is_not_calibrated(made: Made) -> None:
    """An error with figures, instead of a program that the system has killed."""
    assert made.found["too-large"]["kind"] == "ConfigError"
    assert "do not fit 1000 B of memory" in made.found["too-large"]["error"]
