"""Which programs the rig runs, at which versions, and where their builds are kept.

A module of `local/rig` pins one upstream: its `go.mod` and `go.sum` are the whole truth about versions. A build is kept
in `HEADWAY_CACHE/rig/<module>-<digest>/`, where the digest covers all that decides its bytes, so it is never stale.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MODULES_FOLDER = ROOT / "local" / "rig"
OLDEST_GO = (1, 26)
LINKER_FLAGS = "-s -w"
# One value of CGO_ENABLED for every program: Go keeps what it has compiled apart by it.
GO_ENVIRONMENT = {
    "CGO_ENABLED": "0",
    "GOFLAGS": "-mod=readonly -buildvcs=false -trimpath",
    "GOTOOLCHAIN": "local",
    "GOWORK": "off",
}


class RigNotBuiltError(Exception):
    """A program of the rig is not there; the message says what to do."""


@dataclass(frozen=True, eq=False)
class Module:
    """One upstream and the programs that are built from it.

    Attributes:
        name: Its folder in `local/rig`, or in `parent`.
        path: The Go module that it pins.
        programs: Program name to Go package.
        stamps: Variables that upstream's own build script sets: to `{version}`, `{major}`, `{minor}` or a word.
        parent: Where its folder is.
        verb: What builds it, for the message where it is not built.
    """

    name: str
    path: str
    programs: Mapping[str, str] = field(default_factory=dict)
    stamps: Mapping[str, str] = field(default_factory=dict)
    parent: Path = MODULES_FOLDER
    verb: str = "make rig"

    @property
    def folder(self) -> Path:
        """Where its `go.mod` is."""
        return self.parent / self.name

    @property
    def version(self) -> str:
        """The pinned version, as in `v1.35.4`."""
        found = re.search(
            rf"^\s*(?:require )?{re.escape(self.path)} (v\S+)", (self.folder / "go.mod").read_text(), re.MULTILINE
        )
        if found is None:
            raise RigNotBuiltError(f"{self.folder / 'go.mod'} requires no {self.path}; it must, that is what it pins")
        return found.group(1)

    @property
    def linker_flags(self) -> str:
        """What the linker is told: no debug tables, and the version that the program answers with."""
        major, minor = self.version.removeprefix("v").split(".")[:2]
        values = {"version": self.version, "major": major, "minor": minor}
        stamps = [f"-X {variable}={value.format(**values)}" for variable, value in self.stamps.items()]
        return " ".join([LINKER_FLAGS, *stamps])


def _kubernetes() -> Module:
    names = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    values = {"gitVersion": "{version}", "gitMajor": "{major}", "gitMinor": "{minor}", "gitTreeState": "clean"}
    return Module(
        "kubernetes",
        "k8s.io/kubernetes",
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in names},
        {f"{package}.{variable}": value for package in packages for variable, value in values.items()},
    )


ETCD = Module("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"})
KUBERNETES = _kubernetes()
KUBERAY = Module(
    "kuberay",
    "github.com/ray-project/kuberay/ray-operator",
    {"kuberay-operator": "github.com/ray-project/kuberay/ray-operator"},
)
KWOK = Module("kwok", "sigs.k8s.io/kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"})
GATEWAY_API = Module("gateway-api", "sigs.k8s.io/gateway-api")
MODULES = (ETCD, KUBERNETES, KUBERAY, KWOK, GATEWAY_API)
"""In the order of their building."""


def cache_folder() -> Path:
    """Return where the rig keeps what it has built."""
    return Path(os.environ.get("HEADWAY_CACHE") or Path.home() / ".cache" / "headway") / "rig"


@cache
def go_program() -> Path:
    """Return the Go compiler: that of PATH if it is new enough, else the one of the environment `rig`.

    Raises:
        RigNotBuiltError: There is neither.
    """
    on_path = shutil.which("go")
    if on_path and _release(_go_version(Path(on_path))) >= OLDEST_GO:
        return Path(on_path)
    environment = subprocess.run([ROOT / "local" / "env_path", "rig"], check=True, capture_output=True, text=True)
    packaged = Path(environment.stdout.strip()) / "bin" / "go"
    if packaged.exists():
        return packaged
    raise RigNotBuiltError(
        f"Go {'.'.join(map(str, OLDEST_GO))} or newer is neither on PATH nor in the environment `rig`; run `make rig`"
    )


def _go_version(go: Path) -> str:
    answer = subprocess.run([go, "env", "GOVERSION"], check=False, capture_output=True, text=True, env=go_environment())
    return answer.stdout.strip()


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"go(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def go_environment() -> dict[str, str]:
    """Return the variables of every Go command: the caller's, and what must be the same everywhere."""
    return {**os.environ, **GO_ENVIRONMENT}


@cache
def digest(module: Module) -> str:
    """Return the name of a module's build: all that decides its bytes, hashed."""
    sources = sorted(path.name for path in module.folder.glob("*.go"))
    parts = [(module.folder / name).read_bytes() for name in ("go.mod", "go.sum", *sources)]
    told = {"flags": module.linker_flags, "go": _go_version(go_program()), **GO_ENVIRONMENT, **module.programs}
    parts += [f"{key}={value}".encode() for key, value in sorted(told.items())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def build_folder(module: Module) -> Path:
    """Return where the programs of a module are, or will be."""
    return cache_folder() / f"{module.name}-{digest(module)}"


def program(name: str, modules: Sequence[Module] = MODULES) -> Path:
    """Return the path of a built program.

    Args:
        name: The program's.
        modules: Where it is looked up.

    Raises:
        RigNotBuiltError: It is not built.
    """
    module = next(one for one in modules if name in one.programs)
    path = build_folder(module) / name
    if not path.exists():
        raise RigNotBuiltError(f"{name} {module.version} is not built ({path} is not there); run `{module.verb}`")
    return path
