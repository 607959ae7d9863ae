"""The images of the node, made of what the machine has: unpacked packages, built programs, headway's own code.

The Python environments are too large for images that are imported at each start (6 GB): images have the programs'
PATH, and a pod finds the environment at its place by local volumes (`volumes.py`).
"""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.rig.programs import ROOT, RigNotBuiltError

from .images import SYSTEM_PATH, Image, base_layer, layer
from .packages import unpack
from .programs import program
from .settings import SANDBOX_IMAGE

CODE = "/opt/headway/src"
"""Where headway's own code is in an image."""
# The one folder that pods always have and may write to is their home.
PLAIN: Mapping[str, str] = {"HOME": "/tmp", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
# Ray starts as many idle workers as there are CPUs, each a whole Python; two cores would be busy with them for minutes.
FEW_WORKERS: Mapping[str, str] = {
    "RAY_num_prestart_python_workers": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_worker_niceness": "2",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True)
class Stock:
    """What there is to run in.

    Attributes:
        base: A small Debian; also what holds a pod's namespaces.
        serve: Serves models.
        pods: Runs headway's programs.
        envoy: The gateway's data plane.
        envoy_gateway: The gateway's control plane.
    """

    base: Image
    serve: Image
    pods: Image
    envoy: Image
    envoy_gateway: Image

    @property
    def images(self) -> tuple[Image, ...]:
        """All of them."""
        return (self.base, self.serve, self.pods, self.envoy, self.envoy_gateway)


def environment(name: str) -> Path:
    """Return where an environment of `local/locks` is.

    Raises:
        RigNotBuiltError: It is not built.
    """
    found = subprocess.run([ROOT / "local" / "env_path", name], check=True, capture_output=True, text=True)
    path = Path(found.stdout.strip())
    if not (path / ".complete").exists() and not (path / "bin" / "python").exists():
        raise RigNotBuiltError(f"the environment {name} is not built ({path} is not there); run `make setup`")
    return path


def python_home() -> Path:
    """Return the Python that the environments are made from: their `bin/python` is a link to it."""
    return Path(sys.base_prefix).resolve()


def stock(folder: Path) -> Stock:
    """Make the images.

    Args:
        folder: Where layers go that are made anew each time.

    Raises:
        RigNotBuiltError: Something is not built.
    """
    base = base_layer(unpack("image") / "root")
    serve, tasks = environment("serve"), environment("airflow")
    code = layer(folder, "code", {CODE: ROOT / "src"})
    envoy = layer(folder, "envoy", {"/usr/local/bin/envoy": envoy_program(tasks)})
    gateway = layer(folder, "envoy-gateway", {"/usr/local/bin/envoy-gateway": program("envoy-gateway")})
    tasks_path, serve_path = (f"{one}/bin:{SYSTEM_PATH}" for one in (tasks, serve))
    return Stock(
        base=Image(SANDBOX_IMAGE, [base], command=("sleep", "infinity")),
        serve=Image("localhost/headway-serve:1", [base], {**PLAIN, **FEW_WORKERS}, serve_path),
        pods=Image("localhost/headway-pods:1", [base, code], {**PLAIN, "PYTHONPATH": CODE}, tasks_path),
        envoy=Image("localhost/envoy:1", [base, envoy]),
        envoy_gateway=Image("localhost/envoy-gateway:1", [base, gateway]),
    )


def envoy_program(tasks: Path) -> Path:
    """Return the Envoy of the package index, as the embedded stack runs it."""
    return next(tasks.glob("lib/python*/site-packages/envoy/_bin/envoy"))
