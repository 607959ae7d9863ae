"""The demo is the end-to-end test: it runs once, and the tests look at the world it leaves."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.adapters.local.layout import LocalLayout
from headway.settings import Settings
from headway.wiring import Backend, connect

CHECKOUT = Path(__file__).parents[2]
REUSE = "HEADWAY_E2E_REUSE"
"""Set while working on these tests: they look at the stack that an earlier demo left up, and the demo does not run."""
DEMO_S = 45 * 60
"""Ends a demo that hangs. It is no limit of its speed: a loaded machine may be slow and right."""


@dataclass(frozen=True)
class Stack:
    """The stack that the demo left up."""

    layout: LocalLayout
    backend: Backend

    def headway(self, *arguments: str, timeout_s: float = 120) -> "subprocess.CompletedProcess[str]":
        """Run the command line as a user does."""
        return subprocess.run(
            [str(CHECKOUT / "bin" / "headway"), *arguments],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


def run_demo(log: Path) -> None:
    """Run the demo as a user does."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w+") as output:
        ended = subprocess.run(
            [str(CHECKOUT / "bin" / "headway"), "demo"],
            cwd=CHECKOUT,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=DEMO_S,
            env={**os.environ, "COLUMNS": "160"},
            check=False,
        )
    text = log.read_text()
    sys.stdout.write(text)
    assert ended.returncode == 0, f"the demo ended with {ended.returncode}:\n{text[-4000:]}"


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """Run the demo, and take the stack down in the end."""
    log = CHECKOUT / ".headway" / "logs" / "demo.log"
    if not os.environ.get(REUSE):
        run_demo(log)
    settings = Settings()
    yield Stack(settings.layout(), connect(settings))
    subprocess.run([str(CHECKOUT / "bin" / "headway"), "down"], cwd=CHECKOUT, timeout=300, check=True)
