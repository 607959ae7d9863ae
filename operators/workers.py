"""Work that may hang or crash, in processes that can be ended: one order at a time each, with a limit on its time."""

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import Queue
from time import monotonic
from typing import Any, NamedTuple

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""A library's own threads would work against the other workers for the same cores."""
CHUNK_BYTES = 65_536


class Answer(NamedTuple):
    """What came of an order.

    Args:
        name: Of the order.
        body: What the worker said; none where it said nothing.
        fault: Why, in words that follow the name; empty with a body.
    """

    name: str
    body: Mapping[str, Any] | None
    fault: str = ""


class Workers:
    """Processes of one command that read an order a line and answer it by a line, both JSON.

    Args:
        command: What to start.
        count: How many at once.
        each_s: Longest time for one order; then its process is ended, and the next order gets a new one.
        all_s: Longest time for all orders; what has not begun by then is not done.
    """

    def __init__(self, command: Sequence[str], *, count: int, each_s: float, all_s: float) -> None:
        self._command = command
        self._count = count
        self._each_s = each_s
        self._all_s = all_s

    def answers(self, orders: Mapping[str, Mapping[str, Any]]) -> Iterator[Answer]:
        """Yield one answer for each order, in their order.

        Args:
            orders: What to do, by name.
        """
        ends = monotonic() + self._all_s
        free: Queue[_Worker] = Queue()

        def ask(name: str) -> Answer:
            worker = free.get()
            try:
                left_s = ends - monotonic()
                if left_s <= 0:
                    return Answer(
                        name, None, f"was not reached within {self._all_s:.0f} s; the next run tries it again"
                    )
                return worker.ask(name, orders[name], min(self._each_s, left_s))
            finally:
                free.put(worker)

        with ExitStack() as stack:
            for _ in range(min(self._count, len(orders))):
                worker = _Worker(self._command)
                stack.callback(worker.end)
                free.put(worker)
            pool = stack.enter_context(ThreadPoolExecutor(max_workers=max(free.qsize(), 1)))
            yield from pool.map(ask, orders)


class _Worker:
    """One process, started when it is first needed."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, name: str, order: Mapping[str, Any], limit_s: float) -> Answer:
        process = self._started()
        assert process.stdin is not None  # noqa: S101
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            line = self._line(process, monotonic() + limit_s)
            return Answer(name, json.loads(line))
        except TimeoutError:
            self.end()
            return Answer(name, None, f"took longer than {limit_s:.0f} s and was ended")
        except (OSError, EOFError, ValueError):
            code = self.end()
            return Answer(name, None, f"ended its process (exit code {code}) without an answer; the log says more")

    def end(self) -> int | None:
        """End the process and all that it started; return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, **THREADS},
                # A group of its own, so that all of it can be ended.
                start_new_session=True,
            )
        return self._process

    @staticmethod
    def _line(process: "subprocess.Popen[bytes]", ends: float) -> bytes:
        """Return the next line of the process; raises TimeoutError when it is late and EOFError when it ends."""
        assert process.stdout is not None  # noqa: S101
        found = b""
        while not found.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(ends - monotonic(), 0))
            if not ready:
                raise TimeoutError
            part = os.read(process.stdout.fileno(), CHUNK_BYTES)
            if not part:
                raise EOFError
            found += part
        return found
