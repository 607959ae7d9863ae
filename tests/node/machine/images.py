"""Images without a builder: layers from folders, and one OCI archive that containerd imports in one go."""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .programs import cache_folder

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CHUNK_BYTES = 1 << 20
EPOCH = "1970-01-01T00:00:00Z"
USER = {"passwd": "headway:x:1000:1000::/tmp:/bin/bash", "group": "headway:x:1000:"}
"""Whom headway's pods run as: Python and Ray ask for the name."""
# /root is open: the Python of an environment may be below it.
FOLDERS = {"root": 0o755, "tmp": 0o1777, "var/tmp": 0o1777, "proc": 0o555, "sys": 0o555, "dev": 0o755}


@dataclass(frozen=True)
class Image:
    """What pods run in.

    Attributes:
        name: With its tag, as in `localhost/base:1`.
        layers: Lowest first.
        environment: Variables of every process, beside PATH.
        path: Where its programs are looked up.
        command: What runs where a pod says nothing.
    """

    name: str
    layers: Sequence["Layer"]
    environment: Mapping[str, str] = field(default_factory=dict)
    path: str = SYSTEM_PATH
    command: Sequence[str] = ("/bin/bash",)

    @property
    def config(self) -> bytes:
        """Its configuration, as OCI has it."""
        environment = {"PATH": self.path, **self.environment}
        return _json(
            {
                "architecture": "amd64",
                "os": "linux",
                "created": EPOCH,
                "config": {
                    "Env": [f"{key}={value}" for key, value in environment.items()],
                    "Cmd": list(self.command),
                },
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.sha256}" for layer in self.layers]},
            }
        )

    @property
    def manifest(self) -> bytes:
        """Its manifest, as OCI has it."""
        return _json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": _described(CONFIG_TYPE, self.config),
                "layers": [
                    {"mediaType": LAYER_TYPE, "digest": f"sha256:{layer.sha256}", "size": layer.path.stat().st_size}
                    for layer in self.layers
                ],
            }
        )

    @property
    def by_digest(self) -> str:
        """Its name by digest, as pods of a release have it."""
        return f"{self.name.rpartition(':')[0]}@sha256:{hashlib.sha256(self.manifest).hexdigest()}"


@dataclass(frozen=True)
class Layer:
    """A tar archive by the hash of its bytes."""

    path: Path
    sha256: str


def layer(folder: Path, name: str, content: Mapping[str, Path]) -> Layer:
    """Make a layer of files and folders of this machine; the same content gives the same bytes.

    Args:
        folder: Where the archive goes.
        name: What it is called there.
        content: Path in the image to what is put there.
    """
    path = folder / f"{name}.tar"
    part = path.with_suffix(".part")
    with tarfile.open(part, "w", format=tarfile.GNU_FORMAT) as archive:
        for place, source in sorted(content.items()):
            archive.add(source, arcname=place.strip("/") or ".", filter=_plain)
    part.replace(path)
    with path.open("rb") as archive_file:
        return Layer(path, hashlib.file_digest(archive_file, "sha256").hexdigest())


def base_layer(root: Path) -> Layer:
    """Return the layer with unpacked packages, made at the first call; every image begins with it.

    Args:
        root: The unpacked packages.
    """
    source = hashlib.sha256(f"{root.parent.name}/{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()}".encode())
    folder = cache_folder() / f"base-{source.hexdigest()[:12]}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(prefix="part-", dir=cache_folder()) as part:
            tree, made = Path(part) / "tree", Path(part) / "made"
            # The files are root's and stay as they are; the copy is settled, as the packages' scripts would do it.
            subprocess.run(["cp", "--archive", root, tree], check=True)  # noqa: S607 - of coreutils
            _settle(tree)
            made.mkdir()
            layer(made, "base", {"/": tree})
            made.rename(folder)
    path = folder / "base.tar"
    with path.open("rb") as archive:
        return Layer(path, hashlib.file_digest(archive, "sha256").hexdigest())


def _settle(tree: Path) -> None:
    """Do what the packages' scripts would have done: users, the shell, the index of libraries."""
    defaults = tree / "usr" / "share" / "base-passwd"
    for kind, entry in USER.items():
        standard = (defaults / f"{kind}.master").read_text()
        (tree / "etc" / kind).write_text(f"{standard}{entry}\n")
    for name, mode in FOLDERS.items():
        (tree / name).mkdir(parents=True, exist_ok=True)
        (tree / name).chmod(mode)
    shell = tree / "usr" / "bin" / "sh"
    if not shell.exists():
        shell.symlink_to("dash")
    for prose in ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt"):
        shutil.rmtree(tree / prose, ignore_errors=True)
    subprocess.run(["ldconfig", "-r", tree], check=True)  # noqa: S607 - of libc-bin


def archive_images(images: Sequence[Image], target: Path) -> None:
    """Write images as one OCI archive; a layer that several have is in it once.

    Args:
        images: Which.
        target: The archive.
    """
    layers = {one.sha256: one for image in images for one in image.layers}
    described = []
    with tarfile.open(target, "w") as archive:
        for one in layers.values():
            archive.add(one.path, arcname=f"blobs/sha256/{one.sha256}", filter=_plain)
        for image in images:
            for content in (image.config, image.manifest):
                _add(archive, f"blobs/sha256/{hashlib.sha256(content).hexdigest()}", content)
            described += [
                {
                    **_described(MANIFEST_TYPE, image.manifest),
                    "platform": {"architecture": "amd64", "os": "linux"},
                    "annotations": {"io.containerd.image.name": name},
                }
                for name in (image.name, image.by_digest)
            ]
        _add(archive, "index.json", _json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": described}))
        _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return a member whose bytes are the same wherever and whenever it was made."""
    member.mtime = 0
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return None if member.name.endswith("__pycache__") else member


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _described(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(content).hexdigest()}", "size": len(content)}


def _json(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
