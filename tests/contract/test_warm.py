"""What every `Warm` adapter promises: room by model, held until it is given back."""

import pytest

from headway.errors import ConfigError
from headway.ports import Held, Warm

H100, L40S = "NVIDIA-H100-80GB-HBM3", "NVIDIA-L40S"


def asked(warm: Warm) -> list[Held]:
    """Return what is held, whether the room is there yet or not."""
    return [one._replace(ready=0) for one in warm.held()]


def test_nothing_is_held_before_somebody_asks(warm: Warm) -> None:
    """A fleet without plans costs nothing."""
    assert list(warm.held()) == []


def test_each_model_holds_its_own(warm: Warm) -> None:
    """Two models on the same nodes do not take each other's room away."""
    warm.hold("m", H100, 4, 2)
    warm.hold("n", H100, 8, 1)
    warm.hold("m", H100, 4, 2)

    assert asked(warm) == [Held("m", H100, 4, 2, 0), Held("n", H100, 8, 1, 0)]


def test_a_new_size_replaces_the_old_one(warm: Warm) -> None:
    """A changed profile leaves nothing behind."""
    warm.hold("m", H100, 4, 2)
    warm.hold("m", L40S, 1, 3)

    assert asked(warm) == [Held("m", L40S, 1, 3, 0)]


def test_zero_gives_all_back(warm: Warm) -> None:
    """Also where nothing is held."""
    warm.hold("m", H100, 4, 2)

    assert warm.hold("m", H100, 4, 0).replicas == 0
    assert warm.hold("m", H100, 4, 0).replicas == 0
    assert list(warm.held()) == []


@pytest.mark.parametrize(("accelerator", "per_replica", "replicas"), [("cpu", 1, 1), (H100, 0, 1), (H100, 1, -1)])
def test_what_cannot_be_held_is_refused(warm: Warm, accelerator: str, per_replica: int, replicas: int) -> None:
    """A machine without accelerators has nothing that could be kept free."""
    with pytest.raises(ConfigError, match="no room is held"):
        warm.hold("m", accelerator, per_replica, replicas)

    assert list(warm.held()) == []
