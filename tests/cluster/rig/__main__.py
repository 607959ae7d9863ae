"""`make rig` builds and prepares the rig; `python -m tests.cluster.rig up` runs one until Ctrl-C, to look at."""

import signal
import sys
from collections.abc import Callable, Mapping
from threading import Event

from .build import build_programs
from .manifests import collect
from .prepare import prepared
from .processes import RigError
from .programs import RigNotBuiltError
from .rig import rig


def build() -> None:
    """Build what is not built, and prepare what is not prepared."""
    build_programs()
    collect()
    folder = prepared()
    print(f"the rig is ready ({folder.parent})")


def up() -> None:
    """Run a rig until it is interrupted."""
    with rig() as running:
        print(f"up after {max(running.timings.values()):.1f} s; Ctrl-C ends it")
        print(f"export KUBECONFIG={running.kubeconfig}")
        print(f"logs in {running.folder}; played Ray clusters at {running.ray.proxy_url}", flush=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        Event().wait()


def run(program: str, verbs: Mapping[str, Callable[[], None]], verb: str = "build") -> int:
    """Run one of a program's verbs; return the exit status."""
    if verb not in verbs:
        print(f"there is no verb {verb}; there are {', '.join(verbs)}", file=sys.stderr)
        return 2
    try:
        verbs[verb]()
    except (RigError, RigNotBuiltError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(run("rig", {"build": build, "up": up}, *sys.argv[1:2]))
