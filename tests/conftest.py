"""What several layers of tests share."""

import socket
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from headway.adapters.local import supervisord
from headway.adapters.local.layout import HIGHEST_OFFSET, LocalLayout
from headway.adapters.local.processes import Supervisor, end_strays
from headway.settings import Settings

CHECKOUT = Path(__file__).parents[1]

# How long an example takes is the machine's business; pytest has a limit for the whole test.
hypothesis.settings.register_profile("headway", deadline=None, print_blob=True)
# For `make check`, which is run before every commit; `make test` tries the usual hundred.
hypothesis.settings.register_profile("quick", deadline=None, print_blob=True, max_examples=10)
hypothesis.settings.load_profile("headway")


def free_base_port() -> int:
    """Return a base port whose first twenty ports nobody listens on."""
    for base in range(30000, 60000 - HIGHEST_OFFSET, 2500):
        if all(_is_free(base + offset) for offset in range(20)):
            return base
    raise RuntimeError("no twenty free ports in a row below 60000")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def layout(tmp_path_factory: pytest.TempPathFactory) -> LocalLayout:
    """An empty stack of its own, with the environments of this checkout."""
    settings = Settings.load()
    return LocalLayout.make(
        home=tmp_path_factory.mktemp("hw"),
        cache=settings.layout().cache,
        base_port=free_base_port(),
        checkout=CHECKOUT,
        envs_dir=settings.layout().envs_dir,
    )


@pytest.fixture
def supervised(layout: LocalLayout) -> Iterator[LocalLayout]:
    """A stack in which nothing but supervisord runs."""
    for folder in layout.folders():
        folder.mkdir(parents=True, exist_ok=True)
    supervisord.launch(layout)
    yield layout
    Supervisor(layout).shutdown()
    end_strays({"HEADWAY_STACK": layout.stack_mark})
