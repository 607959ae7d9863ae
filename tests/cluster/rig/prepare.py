"""Makes the data that every rig starts from: etcd's, with all objects of `manifests.py` in it."""

import hashlib
import subprocess
import tempfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic, time

from .api import NAMESPACE, SERVICE_ACCOUNT, Api, Kind, condition, wait_until
from .control_plane import ControlPlane, Ports
from .credentials import Credentials
from .manifests import OPERATOR_NAMESPACE, objects
from .processes import Processes
from .programs import MODULES, cache_folder, digest

DEFINITION = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
SOURCES = ("annotations.py", "manifests.py", "prepare.py", "stages.py", "templates.py")
ESTABLISHED_WITHIN_S = 300
PREPARED = "rig/prepared"
"""Annotation of the namespace `default`; it says nothing to anybody."""


def prepared_folder() -> Path:
    """Return where the prepared data is, or will be: named by all that goes into it."""
    parts = [digest(module).encode() for module in MODULES]
    parts += [Path(__file__).with_name(name).read_bytes() for name in SOURCES]
    return cache_folder() / f"prepared-{hashlib.sha256(b'/'.join(parts)).hexdigest()[:12]}"


def prepared() -> Path:
    """Return the prepared data, made now if it is not there.

    Raises:
        RigNotBuiltError: The programs are not built.
        RigError: A program did not come up.
    """
    target = prepared_folder()
    if not target.exists():
        started = monotonic()
        content = objects()
        with tempfile.TemporaryDirectory(prefix="part-", dir=cache_folder()) as folder:
            data = _make(Path(folder), content)
            _move(data, target)
        print(f"{'prepared':<24} {len(content)} objects, {monotonic() - started:.0f} s", flush=True)
    return target


def copy_data(source: Path, target: Path) -> None:
    """Copy etcd's data without the zeros: 64 MB of its log are laid out ahead, and hold next to nothing."""
    subprocess.run(["cp", "--recursive", "--sparse=always", f"{source}/.", target], check=True)  # noqa: S607 - of coreutils


def _move(data: Path, target: Path) -> None:
    try:
        data.rename(target)
    except OSError:  # another process was as quick: its data is the same
        if not target.exists():
            raise


def _make(folder: Path, content: list[dict[str, object]]) -> Path:
    ports = Ports.free()
    credentials = Credentials(folder / "keys", f"https://127.0.0.1:{ports.api}", datetime.fromtimestamp(time(), UTC))
    processes = Processes(folder)
    plane = ControlPlane(folder, processes, ports, credentials)
    try:
        plane.start_etcd()
        plane.start_api()
        plane.wait_for("api")
        plane.start_controller_manager()
        api = Api(credentials.kubeconfig("admin"))
        _create(api, content)
        for namespace in ("default", OPERATOR_NAMESPACE):
            wait_until(partial(api.get, SERVICE_ACCOUNT, "default", namespace), f"the account of {namespace}")
        # A member that starts from a copy (`--force-new-cluster`) forgets what it does not know to be committed, and of
        # its last write it learns that with the next one.
        api.annotate(NAMESPACE, "default", {PREPARED: "true"})
        api.close()
    finally:
        processes.stop()
    for spare in (folder / "etcd").glob("member/wal/*.tmp"):
        spare.unlink()
    copy_data(folder / "etcd", folder / "data")
    return folder / "data"


def _create(api: Api, content: list[dict[str, object]]) -> None:
    definitions = [one for one in content if one["kind"] == DEFINITION.name]
    for one in definitions:
        api.create(one)
    wait_until(lambda: _established(api) == len(definitions), "the definitions are established", ESTABLISHED_WITHIN_S)
    for one in content:
        if one["kind"] != DEFINITION.name:
            api.create(one)


def _established(api: Api) -> int:
    return sum(condition(one, "Established") == "True" for one in api.list(DEFINITION))
