"""Builds the programs of the rig from their pinned modules, each once.

A program that is there is left alone, so a build that was interrupted goes on where it ended; a program appears under
its name only when it is whole.
"""

import fcntl
import os
import resource
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep

from .programs import MODULES, ROOT, Module, RigNotBuiltError, build_folder, cache_folder, go_environment, go_program

ATTEMPTS = 3
"""Modules come over a network; what has come and what is compiled is kept, so another attempt is cheap."""
SHOWN_LINES = 15


def build_programs(modules: Sequence[Module] = MODULES) -> None:
    """Build what is not there yet, with one line for each program.

    Args:
        modules: In the order of their building.

    Raises:
        RigNotBuiltError: A program does not build; the message has the compiler's last words.
    """
    with _only_one():
        _bring_go()
        for module in modules:
            for name, package in module.programs.items():
                _build(module, name, package)


def _bring_go() -> None:
    try:
        go_program()
    except RigNotBuiltError:
        subprocess.run([ROOT / "local" / "setup.sh", "rig"], check=True)


def _build(module: Module, name: str, package: str) -> None:
    folder = build_folder(module)
    target = folder / name
    if target.exists():
        _line(name, module.version, "ready")
        return
    _line(name, module.version, "building ...")
    started, cpu_started_s = monotonic(), _cpu_s()
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{name}.part"
    run_go(module, "build", "-ldflags", module.linker_flags, "-o", str(part), package)
    part.replace(target)
    took = f"{monotonic() - started:5.0f} s ({_cpu_s() - cpu_started_s:.0f} s of CPU)"
    _line(name, module.version, f"built {took} {target.stat().st_size / 1e6:6.0f} MB")


def run_go(module: Module, *arguments: str) -> str:
    """Run a Go command in the folder of a module.

    Returns:
        What it printed.

    Raises:
        RigNotBuiltError: It failed three times.
    """
    command = [str(go_program()), *arguments]
    for attempt in range(1, ATTEMPTS + 1):
        done = subprocess.run(
            command, cwd=module.folder, env=go_environment(), check=False, capture_output=True, text=True
        )
        if done.returncode == 0:
            return done.stdout
        if attempt < ATTEMPTS:
            sleep(attempt * 5)
    said = "\n".join(done.stderr.splitlines()[-SHOWN_LINES:])
    raise RigNotBuiltError(
        f"`go {' '.join(arguments)}` in {module.folder} failed {ATTEMPTS} times; a second run goes on:\n{said}"
    )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _line(name: str, version: str, what: str) -> None:
    print(f"{name:<24} {version:<9} {what}", flush=True)


@contextmanager
def _only_one() -> Iterator[None]:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another build is at work in {folder}; waiting for it", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
