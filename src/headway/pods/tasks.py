"""The tasks program: `python -m headway.pods.tasks job.json`, in the environment `tasks`.

Asks stable and candidate the questions of lm-evaluation-harness through their served endpoints: one side at a time and
few requests at once, because stable has users. It judges nothing; it hands back the scores, sample by sample, so that
the judge can compare the same questions on both sides.
"""

import contextlib
import difflib
import hashlib
import json
import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import requests

from headway.adapters.s3.client import S3Client, S3Connection
from headway.domain.bench import Side, SideTarget
from headway.domain.task_jobs import TaskJob, TaskResult, TaskScore
from headway.domain.value import digest
from headway.errors import BackendError, BackendUnavailable, ConfigError, Conflict, IntegrityError
from headway.pods import task_files
from headway.pods.io import Progress, run_program, write_json
from headway.pods.task_scores import Measured, pick

TRIES = 3
"""Of one request, with pauses from one to ten seconds."""
NOTED = re.compile(r"truncat|null content", re.IGNORECASE)
"""Warnings of the harness that change scores: prompts that were cut, answers that were none."""
TOOLS = ("lm_eval", "transformers", "datasets")
SCHEMA = 1


def run(job: TaskJob, client: S3Client | None, folder: Path, progress: Progress) -> TaskResult:
    """Ask every side every task, or go on where an earlier try stopped.

    Args:
        job: What to ask, and where.
        client: The store, for task files and tokenizers; none where the job names neither.
        folder: Where samples are kept until they are handed over.
        progress: Told how far it is.

    Raises:
        ConfigError: A task is unknown, its data cannot be had, or its metric cannot be compared sample by sample.
        BackendUnavailable: A side stopped answering; try again.
        BackendError: A side refuses what a task needs.
        Conflict: Another release answers where this one should.
    """
    seconds: dict[str, float] = {}
    work = folder / f"tasks-{digest(job)[:12]}"
    work.mkdir(parents=True, exist_ok=True)
    with _timed(seconds, "prepare"):
        progress(1, "fetching task files and tokenizers")
        included = _included(job, client, work)
        tokenizers = {
            side: task_files.tokenizer(uri, _needed(client), work / f"tokenizer-{side}")
            for side, uri in job.tokenizer_uris.items()
            if not job.tasks.chat
        }
        progress(3, "loading the tasks")
        harness = _Harness(job, included.folder if included else None, tokenizers)
        kinds = {name: harness.output_types(name) for name in job.tasks.names}
        _require_chat_can(job, kinds)
    steps = [(name, target) for name in job.tasks.names for target in job.targets]
    scores: list[TaskScore] = []
    for number, (name, target) in enumerate(steps):
        progress(5 + 90 * number / len(steps), f"{name}: asking {target.side}")
        kept = work / f"{number:03d}.json"
        score = _kept(kept)
        if score is None:
            with _timed(seconds, target.side):
                measured = _measure(job, harness, name, target, scored="generate_until" not in kinds[name])
            score = measured.score
            kept.with_suffix(".jsonl").write_text("".join(line + "\n" for line in measured.lines), encoding="utf-8")
            write_json(kept, score.to_json())
        print(f"{name}, {target.side}: {score.metric} {score.value:.4f} of {score.n}", flush=True)  # noqa: T201
        scores.append(score)
    records = folder / "samples.jsonl"
    content = _records(job, work, len(steps))
    records.write_bytes(content)
    return TaskResult(
        release=job.release,
        scores=tuple(scores),
        tools={name: version(name) for name in TOOLS},
        include_sha256=included.sha256 if included else "",
        notes=harness.notes(),
        records_sha256=hashlib.sha256(content).hexdigest(),
        seconds=seconds,
    )


class _Harness:
    """The harness with the tasks it knows.

    Args:
        job: What to ask.
        include: Folder of task files of one's own.
        tokenizers: Folder of each side's tokenizer.
    """

    def __init__(self, job: TaskJob, include: Path | None, tokenizers: Mapping[Side, Path]) -> None:
        import lm_eval.utils
        from jinja2 import BaseLoader, StrictUndefined
        from jinja2.sandbox import SandboxedEnvironment
        from lm_eval.tasks import TaskManager

        # Templates of task files are rendered by an environment that can reach anything; this one cannot.
        sandbox = SandboxedEnvironment(loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True)
        sandbox.filters["regex_replace"] = lm_eval.utils.regex_replace
        lm_eval.utils.env = sandbox
        self.warnings = _Warnings()
        logging.getLogger("lm_eval").addHandler(self.warnings)
        self._job = job
        self._include = include
        self._tokenizers = tokenizers
        self._models: dict[Side, Any] = {}
        # Reading the thousands of tasks that the harness brings takes longer than asking a small one.
        self._known = TaskManager(include_path=str(include) if include else None, include_defaults=not include)
        if include and not set(job.tasks.names) <= set(self._known.all_tasks):
            self._known = TaskManager(include_path=str(include))

    def output_types(self, name: str) -> set[str]:
        """Load a task with its data; return how its questions are asked, such as `multiple_choice`."""
        if name not in self._known.all_tasks:
            near = difflib.get_close_matches(name, self._known.all_tasks, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else "look at the names of its tasks"
            raise ConfigError(f"lm-evaluation-harness has no task `{name}`, nor do the included files; {hint}")
        with self._at_home():
            try:
                leaves = self._known.load([name])["tasks"]
            except Exception as error:  # data sets and task files fail in any way, and it must be named
                raise ConfigError(
                    f"the task {name} cannot be loaded: {_first_line(error)}; if it is the data that is missing, bring "
                    "it with the task by quality.tasks.include_uri",
                    task=name,
                ) from error
        return {str(task.OUTPUT_TYPE) for task in leaves.values()}

    def evaluate(self, name: str, target: SideTarget) -> dict[str, Any]:
        """Ask one side one task; return the harness's own result."""
        from lm_eval import simple_evaluate

        tasks, seed = self._job.tasks, self._job.seed
        with self._at_home():
            result = simple_evaluate(
                model=self._model(target),
                tasks=[name],
                num_fewshot=tasks.num_fewshot,
                limit=tasks.limit,
                # Standard errors follow from the samples.
                bootstrap_iters=0,
                log_samples=True,
                apply_chat_template=tasks.chat,
                task_manager=self._known,
                random_seed=seed,
                numpy_random_seed=seed,
                torch_random_seed=seed,
                fewshot_random_seed=seed,
            )
        return dict(result)

    def notes(self) -> tuple[str, ...]:
        """Return the warnings that change scores, with how often each was given."""
        return tuple(f"{times} x {text}" for text, times in sorted(self.warnings.noted.items()))

    def _model(self, target: SideTarget) -> Any:
        if target.side not in self._models:
            self._models[target.side] = self._make_model(target)
        return self._models[target.side]

    def _make_model(self, target: SideTarget) -> Any:
        from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

        job = self._job
        common: dict[str, Any] = {
            "model": target.served_model,
            "num_concurrent": job.tasks.concurrency,
            "max_retries": TRIES,
            "max_length": job.max_length,
            "seed": job.seed,
            "timeout": job.request_timeout_s,
            # Takes the place of all headers: no key of the environment goes out.
            "header": dict(target.headers) or {"accept": "application/json"},
        }
        if job.tasks.chat:
            return LocalChatCompletion(base_url=f"{target.base_url}/v1/chat/completions", **common)
        model = LocalCompletionsAPI(
            base_url=f"{target.base_url}/v1/completions",
            tokenizer=str(self._tokenizers[target.side]),
            tokenizer_backend="huggingface",
            **common,
        )
        # The harness sends token ids, to which the server adds nothing; the model was trained with its first token.
        model.add_bos_token = _adds_bos(model.tokenizer)
        return model

    def _at_home(self) -> contextlib.AbstractContextManager[None]:
        """Work in the folder of the task files, to which their data is relative."""
        return contextlib.chdir(self._include) if self._include else contextlib.nullcontext()


class _Warnings(logging.Handler):
    """Keeps what the harness warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        self.noted: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning, and print it once."""
        text = " ".join(record.getMessage().split())
        if "Exception:" not in text:
            self.last = text[:500]
        # Lengths differ from prompt to prompt; the kind of warning is what counts.
        kind = re.sub(r"\d+", "N", text)[:160]
        if NOTED.search(kind):
            self.noted[kind] += 1
            if self.noted[kind] > 1:
                return
        print(f"lm_eval: {text[:500]}", file=sys.stderr, flush=True)  # noqa: T201 - the job's log


def _measure(job: TaskJob, harness: _Harness, name: str, target: SideTarget, *, scored: bool) -> Measured:
    started = time.monotonic()
    _require_side(job, target, scored=scored)
    with _translated(target, harness):
        found = harness.evaluate(name, target)
    _require_side(job, target, scored=scored)
    return pick(name, target.side, found, job.tasks.metrics.get(name), seconds=time.monotonic() - started)


def _require_side(job: TaskJob, target: SideTarget, *, scored: bool) -> None:
    """Ask a side one short thing, so that what it lacks is named before hundreds of requests fail."""
    body: dict[str, Any] = {"model": target.served_model, "max_tokens": 1, "temperature": 0}
    if job.tasks.chat:
        path, body = "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": "Hello"}]}
    else:
        path, body = "/v1/completions", {**body, "prompt": "Hello", **({"echo": True, "logprobs": 1} if scored else {})}
    try:
        answer = requests.post(
            f"{target.base_url}{path}", json=body, headers=target.headers, timeout=job.request_timeout_s
        )
    except requests.RequestException as error:
        raise BackendUnavailable(f"{target.side} at {target.base_url} does not answer: {error}") from error
    if answer.status_code != 200:
        text = " ".join(answer.text[:300].split())
        raise _of_status(answer.status_code)(f"{target.side}: {path} answered HTTP {answer.status_code}: {text}")
    served = answer.headers.get("x-headway-release")
    if served is not None and served != target.release:
        raise Conflict(f"{target.side} should be release {target.release}, {served} answered; the route was changed")
    if scored and not job.tasks.chat:
        choice = ((answer.json() or {}).get("choices") or [{}])[0]
        if not (choice.get("logprobs") or {}).get("token_logprobs"):
            raise BackendError(
                f"{target.side}: {path} gives no log-probabilities of the prompt (`echo` with `logprobs`), which "
                "multiple-choice tasks need; use tasks that let the model write its answer"
            )


@contextlib.contextmanager
def _translated(target: SideTarget, harness: _Harness) -> Iterator[None]:
    """Name who failed, and how, in headway's errors."""
    who = f"{target.side} at {target.base_url}"
    try:
        yield
    except (aiohttp.ClientResponseError, requests.HTTPError) as error:
        response = getattr(error, "response", None)
        status = error.status if isinstance(error, aiohttp.ClientResponseError) else getattr(response, "status_code", 0)
        raise _of_status(int(status))(
            f"{who} answered HTTP {status} {TRIES} times in a row: {harness.warnings.last}"
        ) from error
    except (TimeoutError, aiohttp.ClientError, requests.RequestException) as error:
        raise BackendUnavailable(f"{who} stopped answering: {type(error).__name__}: {error}") from error


def _of_status(status: int) -> type[BackendError]:
    return BackendUnavailable if status >= 500 or status in (408, 429) else BackendError


def _require_chat_can(job: TaskJob, kinds: Mapping[str, set[str]]) -> None:
    unable = [name for name, kind in kinds.items() if kind != {"generate_until"}]
    if job.tasks.chat and unable:
        raise ConfigError(
            f"{', '.join(unable)} compare log-likelihoods, which a chat endpoint does not give; set quality.tasks.chat "
            "to false, or use tasks that let the model write its answer"
        )


def _adds_bos(tokenizer: Any) -> bool:
    """Tell whether a tokenizer puts a first token before every text (and nothing after it)."""
    plain = list(tokenizer("a", add_special_tokens=False).input_ids)
    return list(tokenizer("a").input_ids) == [tokenizer.bos_token_id, *plain]


def _included(job: TaskJob, client: S3Client | None, work: Path) -> task_files.Included | None:
    uri = job.tasks.include_uri
    if uri is None:
        return None
    return task_files.include(uri, _needed(client), work / "include", job.tasks.include_sha256)


def _needed(client: S3Client | None) -> S3Client:
    if client is None:
        raise ConfigError("the job names task files or tokenizers in S3, and there is no store to read them from")
    return client


def _kept(path: Path) -> TaskScore | None:
    """Return what an earlier try measured; the file appears whole, after its samples."""
    return TaskScore.model_validate_json(path.read_bytes()) if path.exists() else None


def _records(job: TaskJob, work: Path, steps: int) -> bytes:
    header = json.dumps({"run": {"schema_version": SCHEMA, "job_digest": digest(job)}}, separators=(",", ":"))
    parts = [(work / f"{number:03d}.jsonl").read_bytes() for number in range(steps)]
    return b"".join([header.encode() + b"\n", *parts])


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[name] = round(seconds.get(name, 0.0) + time.monotonic() - started, 3)


def _store() -> S3Client:
    """Connect as the environment says; credentials are found by botocore itself."""
    endpoint, region = os.environ.get("HEADWAY_S3_ENDPOINT"), os.environ.get("AWS_REGION")
    return S3Client(S3Connection(endpoint=endpoint or None, region=region or "us-east-1"))


def upload(result: TaskResult, records: Path, uri: str, client: S3Client) -> TaskResult:
    """Put the samples where the report reads them.

    Raises:
        BackendUnavailable: The store does not answer; the next try finds the samples on the disk.
        IntegrityError: The file on the disk is no longer the one that was made.
    """
    started = time.monotonic()
    content = records.read_bytes()
    if hashlib.sha256(content).hexdigest() != result.records_sha256:
        raise IntegrityError(f"{records} was changed while it was handed over; run the step again")
    client.put(uri, content, sha256=result.records_sha256)
    seconds = {**result.seconds, "upload": round(time.monotonic() - started, 3)}
    return result.model_copy(update={"records_uri": uri, "seconds": seconds})


def main(arguments: list[str]) -> int:
    """Run the program in the current folder; return its exit code."""
    folder = Path.cwd()
    # Before the harness and its libraries are imported, which read them once.
    os.environ.setdefault("HF_DATASETS_CACHE", str(folder / "datasets"))
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TQDM_DISABLE", "1")

    def work(job: TaskJob, progress: Progress) -> TaskResult:
        in_store = bool(job.records_uri or job.tasks.include_uri or (job.tokenizer_uris and not job.tasks.chat))
        client = _store() if in_store else None
        result = run(job, client, folder, progress)
        if job.records_uri:
            progress(98, "handing over the samples")
            result = upload(result, folder / "samples.jsonl", job.records_uri, _needed(client))
        progress(100, "done")
        return result

    return run_program(arguments, TaskJob, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
