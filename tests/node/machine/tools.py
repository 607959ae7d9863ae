"""Programs of unpacked packages, run in place."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.rig.programs import RigNotBuiltError

from .packages import unpacked_folder

PLACES = ("usr/sbin", "usr/bin", "sbin", "bin")


@dataclass(frozen=True)
class Tools:
    """What `local/node/tools.packages` has brought.

    Attributes:
        root: Where it is unpacked.
    """

    root: Path

    @classmethod
    def unpacked(cls) -> "Tools":
        """Return them.

        Raises:
            RigNotBuiltError: They are not unpacked.
        """
        root = unpacked_folder("tools") / "root"
        if not root.exists():
            raise RigNotBuiltError(f"containerd and its like are not unpacked ({root} is not there); run `make node`")
        return cls(root)

    @property
    def environment(self) -> dict[str, str]:
        """What they are started with: they find each other, and their libraries."""
        path = os.pathsep.join(str(self.root / place) for place in PLACES)
        libraries = os.pathsep.join(str(self.root / "usr" / name / "x86_64-linux-gnu") for name in ("lib", "lib64"))
        return {"PATH": f"{path}{os.pathsep}{os.environ.get('PATH', os.defpath)}", "LD_LIBRARY_PATH": libraries}

    def find(self, name: str) -> Path:
        """Return the path of a program."""
        return next(path for place in PLACES if (path := self.root / place / name).exists())
