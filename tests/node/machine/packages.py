"""Debian packages, unpacked into a folder of the cache: nothing is installed on the machine.

The machine's own apt finds and fetches them, with its mirrors and keys. Their maintainer scripts do not run.
"""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster.rig.programs import RigNotBuiltError

from .programs import NODE_FOLDER, cache_folder

RELEASE = "bookworm"
"""Debian 12, whose versions of these packages the node was tried with."""
MERGED = ("bin", "lib", "lib64", "sbin")
"""Folders of the root that Debian keeps in /usr."""
QUIET = ("-q=2", "-o", "Debug::NoLocking=1")
SHOWN_LINES = 8


def names(listing: str) -> list[str]:
    """Return the packages that a list of `local/node` names."""
    lines = (NODE_FOLDER / f"{listing}.packages").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def unpacked_folder(listing: str) -> Path:
    """Return where the packages of a list are, or will be: named by the list."""
    told = "\n".join([RELEASE, *names(listing)]).encode()
    return cache_folder() / f"{listing}-{hashlib.sha256(told).hexdigest()[:12]}"


def unpack(listing: str) -> Path:
    """Fetch and unpack a list of packages, where that is not done yet; `packages.txt` says which versions came.

    Args:
        listing: `tools`: those that it names and no others. `image`: with all that they depend on.

    Returns:
        A folder with `root`.

    Raises:
        RigNotBuiltError: This is no such Debian, or its packages cannot be fetched.
    """
    target = unpacked_folder(listing)
    if not target.exists():
        _require_debian()
        fetch = _fetch_named if listing == "tools" else _fetch_closure
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="part-", dir=target.parent) as folder:
            part = Path(folder) / "whole"
            _unpack(fetch, names(listing), part, Path(folder) / "fetched")
            part.rename(target)
    return target


def _require_debian() -> None:
    release = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
    if f"VERSION_CODENAME={RELEASE}" not in release or not shutil.which("apt-get"):
        raise RigNotBuiltError(f"the node is made of Debian packages of {RELEASE}, and this is another system")


def _unpack(fetch: Callable[[Sequence[str], Path], None], wanted: Sequence[str], part: Path, fetched: Path) -> None:
    (fetched / "partial").mkdir(parents=True)
    if not any(Path("/var/lib/apt/lists").glob("*_Packages*")):
        _run("apt-get", *QUIET, "update")
    fetch(wanted, fetched)
    root = part / "root"
    for name in MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    archives = sorted(fetched.glob("*.deb"))
    for archive in archives:
        content = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE)  # noqa: S607 - dpkg
        # Packages have files in /bin too, and must not take the place of the link.
        line = ["tar", "--extract", "--keep-directory-symlink", "--directory", str(root)]
        done = subprocess.run(line, stdin=content.stdout, check=False)
        if content.wait() or done.returncode:
            raise RigNotBuiltError(f"{archive.name} cannot be unpacked; run `make node` again")
    (part / "packages.txt").write_text("".join(f"{archive.stem}\n" for archive in archives))


def _fetch_named(wanted: Sequence[str], folder: Path) -> None:
    _run("apt-get", *QUIET, "-o", "APT::Sandbox::User=root", "download", *wanted, where=folder)


def _fetch_closure(wanted: Sequence[str], folder: Path) -> None:
    """Fetch packages with their dependencies, as for a machine that has none yet."""
    status = folder / "status"
    status.touch()
    _run(
        "apt-get",
        *QUIET,
        *("-o", "APT::Sandbox::User=root"),
        *("-o", f"Dir::State::Status={status}"),
        *("-o", f"Dir::Cache::Archives={folder}"),
        *("-o", f"Dir::Log={folder}"),
        "--no-install-recommends",
        "--download-only",
        "--yes",
        "install",
        *wanted,
    )


def _run(*line: str, where: Path | None = None) -> None:
    done = subprocess.run(line, cwd=where, check=False, capture_output=True, text=True)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-SHOWN_LINES:])
        raise RigNotBuiltError(f"`{' '.join(line[:1] + line[-3:])}` failed; run `make node` again:\n{said}")
