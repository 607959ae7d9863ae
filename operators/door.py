"""The webhook's door: MLflow's messages come in, runs of the DAG `release` go out.

It is served by Airflow's API server, so nothing here may hold up its event loop: what opens files or asks Airflow runs
in threads of its own. The API server's own threads are left alone, because the question to Airflow comes back to the
same server and needs one of them.

Nobody is authenticated here but by the signature. There is no redirect and no cookie.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from headway.domain import webhook
from headway.errors import ConfigError, HeadwayError, Refused

if TYPE_CHECKING:
    from operators.hook import Backend

log = logging.getLogger("headway.door")

RELEASE_DAG = "release"

READERS = 4
"""Messages that are verified and read at a time; the others wait without a thread."""

STARTERS = 1
"""Runs that are asked for at a time. Airflow writes its audit log in the event loop: with sqlite, two such requests at
once waited for each other's lock for a minute, and the API server answered nobody. One takes a tenth of a second."""

BODY_WITHIN_S = 10.0
"""A sender that is slower than that keeps a connection for nothing."""

PROFILES_FOR_S = 2.0
"""How long profiles are remembered: a hundred promotions at once must not read a hundred files a hundred times."""


class Answer(NamedTuple):
    """What the sender is told. MLflow tries again only after 429 and 5xx."""

    status: int
    result: str
    """One word: accepted, duplicate, ignored, refused, unreadable, too-large, too-slow, unavailable."""
    reason: str


class TooLarge(Exception):
    """The body has more bytes than a message can have."""


class Door:
    """Takes messages; everything but the reading of the body runs in threads.

    Args:
        connect: Gives the ports, at the first message.
        now: Gives the time.
    """

    def __init__(self, connect: "Callable[[], Backend]", now: Callable[[], datetime]) -> None:
        self._connect = connect
        self._now = now
        self._limits: tuple[CapacityLimiter, CapacityLimiter] | None = None
        self._aliases: tuple[float, Mapping[str, str], int] | None = None
        self._reading = Lock()

    async def take(self, request: Request) -> Answer:
        """Answer one message."""
        try:
            claimed = webhook.claim(request.headers, self._now())
        except Refused as error:
            return Answer(401, "refused", error.message)
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                body = await _body(request)
        except TooLarge:
            return Answer(413, "too-large", f"a message has {webhook.LARGEST_BYTES} bytes at most")
        except TimeoutError:
            return Answer(408, "too-slow", f"the message did not arrive within {BODY_WITHIN_S:.0f} s")
        except ClientDisconnect:
            return Answer(400, "unreadable", "the sender left before the message was whole")
        if self._limits is None:
            self._limits = (CapacityLimiter(READERS), CapacityLimiter(STARTERS))
        readers, starters = self._limits
        found = await to_thread.run_sync(self.understand, claimed, body, limiter=readers)
        if isinstance(found, Answer):
            return found
        return await to_thread.run_sync(start, self._connect(), found, claimed.delivery, limiter=starters)

    def understand(self, claimed: webhook.Claim, body: bytes) -> Answer | webhook.Promotion:
        """Verify and read a message; return the promotion that it tells of, or the answer. Runs in a thread."""
        try:
            backend = self._connect()
            webhook.verify(claimed, body, backend.webhook_secrets(self._now()))
        except Refused as error:
            return Answer(401, "refused", error.message)
        except HeadwayError as error:
            return Answer(503, "unavailable", error.message)
        try:
            event = webhook.read(body)
        except ConfigError as error:
            return Answer(400, "unreadable", error.message)
        why = webhook.ignored(event, *self._served(backend))
        if why is not None or isinstance(event, webhook.Other):
            return Answer(202, "ignored", why or "")
        return event

    def _served(self, backend: "Backend") -> tuple[Mapping[str, str], int]:
        """Return for each model with a sound profile its alias, and how many faults there are."""
        with self._reading:
            kept = self._aliases
            if kept is None or monotonic() - kept[0] > PROFILES_FOR_S:
                profiles, faults = backend.sound_profiles()
                kept = (monotonic(), {model: profile.alias for model, profile in profiles.items()}, len(faults))
                self._aliases = kept
        return kept[1], kept[2]


def start(backend: "Backend", event: webhook.Promotion, delivery: str) -> Answer:
    """Start the run of a message, or find that it was started already."""
    run_id = webhook.run_id(event, delivery)
    note = f"alias {event.alias} was set to version {event.version} in MLflow"
    try:
        run = backend.runs.trigger(RELEASE_DAG, run_id, webhook.run_conf(event), note=note)
    except HeadwayError as error:
        return Answer(503, "unavailable", error.message)
    return Answer(202, "accepted" if run.fresh else "duplicate", f"run {run_id}")


def make(
    connect: "Callable[[], Backend]",
    now: Callable[[], datetime] = lambda: datetime.now(UTC),  # noqa: TID251 - a door is where time enters
) -> FastAPI:
    """Return the application that the plugin mounts.

    Args:
        connect: Gives the ports, at the first message.
        now: Gives the time.
    """
    # What describes an interface is for people who are logged in; and a redirect would turn a message into a GET.
    app = FastAPI(title="headway", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    door = Door(connect, now)

    async def mlflow(request: Request) -> JSONResponse:
        answer = await door.take(request)
        level = logging.INFO if answer.status == 202 else logging.WARNING
        delivery = webhook.shown(request.headers.get(webhook.DELIVERY_HEADER, ""))
        log.log(level, "webhook %s: %d %s: %s", delivery, answer.status, answer.result, answer.reason)
        return JSONResponse({"result": answer.result, "reason": answer.reason}, answer.status)

    # Without the prefix under which the application is mounted.
    app.add_route("/webhooks/mlflow", mlflow, methods=["POST"])
    return app


async def _body(request: Request) -> bytes:
    """Return the body, of which no more is kept than may be. Raises TooLarge."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and (len(declared) > 9 or int(declared) > webhook.LARGEST_BYTES):
        raise TooLarge
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > webhook.LARGEST_BYTES:
            raise TooLarge
        body += chunk
    return bytes(body)
