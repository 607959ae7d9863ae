"""The table of what serves where, against the vLLM that is installed: by its own words, and by a run on this CPU."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headway.adapters.local.layout import LocalLayout
from headway.adapters.local.ray_head import engine_environment
from headway.domain import serving
from headway.domain.hardware import ACCELERATORS
from headway.domain.weights import GROUPED, Scheme
from tests.conftest import CHECKOUT
from tests.factories import make_shape
from tests.tiny_model import HEADS, HIDDEN
from tests.tiny_schemes import write_scheme, write_widened

pytestmark = [pytest.mark.component, pytest.mark.timeout(600)]

PROBE = CHECKOUT / "tests" / "probes" / "serves.py"
GROUP_SIZE = 32
NOTHING_LEARNED = 100.0
"""A negative log-likelihood of a token that only broken arithmetic gives."""
FLOATS: tuple[Scheme, ...] = ("fp8", "fp8-dynamic")


def ask(layout: LocalLayout, folder: Path, *arguments: str) -> tuple[dict[str, Any] | None, str]:
    """Run the probe in the serving environment; return its result, none if it failed, and what it said."""
    done = subprocess.run(
        [layout.python("serve"), PROBE, *arguments],
        cwd=folder,
        env={**os.environ, **engine_environment(layout)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    said = done.stdout + done.stderr
    return (json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None), said


def test_the_table_says_what_this_version_says(layout: LocalLayout, tmp_path: Path) -> None:
    """An upgrade that moves a limit fails here, and not on a device."""
    said, log = ask(layout, tmp_path)

    assert said is not None, log[-2000:]
    rows = serving.SERVES
    assert said["version"] in (serving.__doc__ or ""), "read the sources of this version, then change the table"
    assert set(serving.GROUP_SIZES) == set(said["groups"]) - {-1}
    assert {(rows[name].native, rows[name].least) for name in FLOATS} == {(said["fp8 native"], said["fp8 least"])}
    assert rows["w8a8"].least == said["w8a8 least"]
    assert {rows[name].least for name in GROUPED} == {said["w4a16 least"], said["marlin least"]}
    assert rows["nvfp4"].cpu == (said["nvfp4 on cpu"] > 0)


def test_what_is_refused_on_cpu_fails_in_vllm(layout: LocalLayout, tmp_path: Path) -> None:
    """A version of vLLM that can do it makes the table too strict, and fails here."""
    assert refused("fp8") is not None

    served, log = ask(layout, tmp_path, str(write_scheme(tmp_path / "model", "fp8")), "float32")

    assert served is None
    assert "static_scaled_fp8_quant" in log


def test_four_bits_answer_as_their_values_do(layout: LocalLayout, tmp_path: Path) -> None:
    """The kernel for CPUs, against the same weights written out as numbers and served by vLLM's own."""
    assert refused("w4a16-gptq") is None
    packed = write_scheme(tmp_path / "packed", "w4a16-gptq", group_size=GROUP_SIZE)
    plain = write_widened(tmp_path / "plain", packed, group_size=GROUP_SIZE)

    found, log = ask(layout, tmp_path, str(packed), "float32")
    wanted, plain_log = ask(layout, tmp_path, str(plain), "float32")

    assert found is not None, log[-3000:]
    assert wanted is not None, plain_log[-3000:]
    assert found["nll"] == pytest.approx(wanted["nll"], abs=1e-3)
    assert found["nll"] < NOTHING_LEARNED


def refused(scheme: Scheme) -> str | None:
    """Ask the table about the tiny model on a CPU."""
    return serving.refusal(
        scheme,
        ACCELERATORS["cpu"],
        make_shape(head_dim=HIDDEN // HEADS),
        group_size=GROUP_SIZE,
        tensor_parallel=1,
        dtype="float32",
    )
