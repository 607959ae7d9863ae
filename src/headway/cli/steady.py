"""A client that keeps asking through the gateway and counts what it gets: the demo's witness."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

import requests

LETTERS = "ABCDEFGHKLMNOPRSTVW"


@dataclass
class Tally:
    """What a steady client saw."""

    answered: int = 0
    failures: list[str] = field(default_factory=list)
    releases: Counter[str] = field(default_factory=Counter)
    """Answers by `x-headway-release`."""


class SteadyClient:
    """Asks a model at a steady pace from a thread of its own until the `with` block ends.

    Args:
        base_url: Address up to and without `/v1`, as an OpenAI client would be given it.
        model: Served name.
        period_s: Seconds from one question to the next; a slow answer delays no later question.
        timeout_s: Seconds after which a question counts as failed.
    """

    def __init__(self, base_url: str, model: str, *, period_s: float = 1.0, timeout_s: float = 60.0) -> None:
        self._url = f"{base_url}/v1/chat/completions"
        self._model = model
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._askers: list[threading.Thread] = []
        self._pacer = threading.Thread(target=self._pace, name="steady-client", daemon=True)
        self.tally = Tally()

    def __enter__(self) -> Self:
        self._pacer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pacer.join()
        for asker in self._askers:
            asker.join()

    def _pace(self) -> None:
        number = 0
        while not self._stop.wait(self._period_s):
            asker = threading.Thread(target=self._ask, args=(number,), daemon=True)
            asker.start()
            self._askers = [a for a in self._askers if a.is_alive()] + [asker]
            number += 1

    def _ask(self, number: int) -> None:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [
                {"role": "user", "content": f"Name a town that begins with {LETTERS[number % len(LETTERS)]}."}
            ],
            "max_tokens": 8,
        }
        try:
            answer = requests.post(self._url, json=body, timeout=self._timeout_s)
            content = answer.json()["choices"][0]["message"]["content"] if answer.ok else None
        except (requests.RequestException, ValueError, LookupError) as error:
            with self._lock:
                self.tally.failures.append(f"{type(error).__name__}: {error}"[:300])
            return
        with self._lock:
            if content is None:
                self.tally.failures.append(f"HTTP {answer.status_code}: {answer.text}"[:300])
            else:
                self.tally.answered += 1
                self.tally.releases[answer.headers.get("x-headway-release", "unknown")] += 1
