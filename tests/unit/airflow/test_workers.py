"""Processes that may hang, crash or talk nonsense: each order has one answer, in time."""

import os
import signal
import sys
from time import monotonic
from typing import Any

from operators.workers import Answer, Workers

DOES = """
import json, os, sys, time
for line in sys.stdin:
    does = json.loads(line)["does"]
    if does == "hangs":
        time.sleep(600)
    if does == "dies":
        os._exit(7)
    if does == "half":
        sys.stdout.write('{"pid"'); sys.stdout.flush(); time.sleep(600)
    if does == "nonsense":
        print("nonsense", flush=True); continue
    print(json.dumps({"pid": os.getpid(), "long": "x" * (does == "long") * 1_000_000}), flush=True)
"""


def answers(*does: str, count: int = 1, each_s: float = 4.0, all_s: float = 60.0) -> list[Answer]:
    """Give these orders to workers."""
    orders: dict[str, dict[str, Any]] = {f"{number}": {"does": one} for number, one in enumerate(does)}
    workers = Workers((sys.executable, "-S", "-c", DOES), count=count, each_s=each_s, all_s=all_s)
    return list(workers.answers(orders))


def test_one_process_answers_many_orders() -> None:
    """Starting one takes longer than most orders."""
    found = answers("works", "works", "long", "works")

    assert len({answer.body["pid"] for answer in found if answer.body}) == 1
    assert [answer.fault for answer in found] == [""] * 4
    assert len((found[2].body or {})["long"]) == 1_000_000


def test_each_bad_order_costs_itself_alone() -> None:
    """Its process is ended, and the next order has a new one."""
    found = answers("works", "hangs", "works", "half", "works", "dies", "works", "nonsense", "works")

    assert [bool(answer.body) for answer in found] == [True, False] * 4 + [True]
    assert [answer.name for answer in found] == [str(number) for number in range(9)]
    assert "took longer than 4 s" in found[1].fault
    assert "took longer than 4 s" in found[3].fault
    assert "exit code 7" in found[5].fault
    assert "without an answer" in found[7].fault


def test_a_hang_holds_up_one_worker_of_two() -> None:
    """The others go on meanwhile."""
    began = monotonic()
    found = answers("hangs", *["works"] * 8, count=2)

    assert [bool(answer.body) for answer in found] == [False] + [True] * 8
    assert monotonic() - began < 20


def test_a_run_ends_even_if_every_order_hangs() -> None:
    """What it did not reach is named, and the next run tries it again."""
    found = answers(*["hangs"] * 30, each_s=1.0, all_s=2.5)

    assert "was not reached within 2 s; the next run tries it again" in found[-1].fault
    assert all(answer.fault for answer in found)


def test_no_process_is_left_behind() -> None:
    """Neither of an order that hung, nor of one that was answered."""
    found = answers("works", "hangs", "works")

    for answer in found:
        if answer.body:
            assert not _runs(int(answer.body["pid"]))


def test_no_orders_start_nothing() -> None:
    """A stack without such models pays nothing."""
    assert answers() == []


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIG_DFL)
    except ProcessLookupError:
        return False
    return True
