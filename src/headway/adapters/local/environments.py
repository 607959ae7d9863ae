"""The virtual environments of the embedded stack: named by their lock files, so other pins are another environment."""

import hashlib
from pathlib import Path
from typing import Literal

from headway.errors import ConfigError

EnvironmentName = Literal["airflow", "serve", "quantize", "tools", "tasks"]

ENVIRONMENTS: tuple[EnvironmentName, ...] = ("airflow", "serve", "quantize", "tools")
ON_DEMAND: tuple[EnvironmentName, ...] = ("tasks",)
"""Environments that only some profiles need: `local/setup.sh NAME` builds them, `make setup` does not."""


def lock_digest(checkout: Path, environment: EnvironmentName) -> str:
    """Return the first 12 hex digits of the sha256 of an environment's lock file.

    Raises:
        ConfigError: The checkout has no such lock file.
    """
    path = checkout / "local" / "locks" / f"{environment}.lock"
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        message = f"cannot read {path} ({error.strerror}); run headway from a complete checkout"
        raise ConfigError(message, path=str(path)) from error


def environment_pythons(checkout: Path, cache: Path, envs_dir: Path | None = None) -> dict[EnvironmentName, Path]:
    """Return the Python of every environment, whether it is built or not.

    Args:
        checkout: Folder of the project; its lock files name the environments.
        cache: Folder that clones share.
        envs_dir: Folder with ready environments `<name>/` to use instead of those that the lock files name.
    """
    names = (*ENVIRONMENTS, *ON_DEMAND)
    if envs_dir is not None:
        return {name: envs_dir / name / "bin" / "python" for name in names}
    return {name: cache / "envs" / f"{name}-{lock_digest(checkout, name)}" / "bin" / "python" for name in names}


def how_to_build(environment: EnvironmentName) -> str:
    """Return the command that builds an environment."""
    return f"local/setup.sh {environment}" if environment in ON_DEMAND else "make setup"
