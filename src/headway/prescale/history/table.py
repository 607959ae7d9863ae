"""One table a model: what was asked of it in each bin, and what a tick saw and wanted there."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from headway.domain.series import Floats, Series
from headway.errors import ConfigError, IntegrityError
from headway.ports import Checks

COLUMNS = (
    "requests_per_s",
    "prompt_tokens",
    "output_tokens",
    "cached_share",
    "busy",
    "asked",
    "reactive",
    "cron",
)
"""Requests a second, mean tokens of a request, share (0 to 1) of prompt tokens from the cache; then, as a tick noted
them, the busy replicas that it saw, the floor that it asked for, and what others would have asked for."""
STEP_S = 600
METADATA = b"headway.history"
SCHEMA = 1
AT = pa.field("at", pa.timestamp("ms", tz="UTC"))
UNREADABLE = (
    *(pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError, AttributeError),
    *(ConfigError, IntegrityError),
)
"""What reading may end in where bytes are damaged: Arrow checks little of what a file says of itself."""


@dataclass(frozen=True, eq=False)
class History:
    """Bins of equal length, one after the other.

    Args:
        start_at: Begin of the first bin, UTC, on a multiple of the step since 1970.
        step_s: Length of a bin.
        columns: Values by name, one for each bin, NaN where nothing was measured or noted. A column that is not given
            is missing throughout.
    """

    start_at: datetime
    step_s: int
    columns: Mapping[str, Floats]

    def __post_init__(self) -> None:
        unknown = sorted(set(self.columns) - set(COLUMNS))
        lengths = {name: len(values) for name, values in self.columns.items()}
        if unknown:
            raise ConfigError(f"a history has no column {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
        if len(set(lengths.values())) > 1:
            raise ConfigError(f"the columns of a history differ in length: {lengths}")
        bins = next(iter(lengths.values()), 0)
        full = {name: np.asarray(self.columns.get(name, np.full(bins, np.nan)), dtype=np.float64) for name in COLUMNS}
        object.__setattr__(self, "columns", full)
        # A series knows which steps and begins are good.
        self.series()

    def __len__(self) -> int:
        return len(self.columns[COLUMNS[0]])

    @property
    def end_at(self) -> datetime:
        """End of the last bin."""
        return self.at(len(self))

    def at(self, index: int) -> datetime:
        """Return when bin `index` begins."""
        return self.start_at + timedelta(seconds=index * self.step_s)

    def series(self, column: str = "requests_per_s") -> Series:
        """Return one column."""
        return Series(self.start_at, self.step_s, self.columns[column])

    def noted(self, at: datetime, **values: float) -> "History":
        """Return the history with values set in the bin of a time; one that is not there yet is added.

        Raises:
            ConfigError: The time lies before the history, or there is no such column.
        """
        index = round((floor(at, self.step_s) - self.start_at).total_seconds()) // self.step_s
        if index < 0:
            raise ConfigError(f"{at} lies before the history, which begins at {self.start_at}")
        table = self.between(self.start_at, max(self.end_at, self.at(index + 1)))
        columns = dict(table.columns)
        for name, value in values.items():
            if name not in columns:
                raise ConfigError(f"a history has no column {name}; there are {', '.join(COLUMNS)}")
            columns[name] = columns[name].copy()
            columns[name][index] = value
        return History(self.start_at, self.step_s, columns)

    def between(self, start: datetime, end: datetime) -> "History":
        """Return the bins from `start` to `end`, both at the edge of a bin; those that are not there are missing."""
        bins = max(round((end - start).total_seconds()) // self.step_s, 0)
        shift = round((start - self.start_at).total_seconds()) // self.step_s
        mine = slice(min(max(shift, 0), len(self)), min(max(shift + bins, 0), len(self)))
        first = max(-shift, 0)
        columns = {}
        for name, values in self.columns.items():
            columns[name] = np.full(bins, np.nan)
            columns[name][first : first + mine.stop - mine.start] = values[mine]
        return History(start, self.step_s, columns)


def floor(at: datetime, step_s: int) -> datetime:
    """Return when the bin of a time begins, UTC."""
    return datetime.fromtimestamp(int(at.timestamp()) // step_s * step_s, UTC)


def to_parquet(history: History) -> bytes:
    """Return a history as a Parquet file, with the begin of each bin beside the values for other readers."""
    start_ms = round(history.start_at.timestamp()) * 1000
    at: NDArray[np.int64] = np.arange(len(history), dtype=np.int64) * (history.step_s * 1000) + start_ms
    header = {"schema_number": SCHEMA, "step_s": history.step_s, "start_s": start_ms // 1000}
    # Missing is null in the file, as other readers expect it.
    arrays = [pa.array(at, type=AT.type), *(pa.array(history.columns[name], from_pandas=True) for name in COLUMNS)]
    schema = pa.schema(
        [AT, *(pa.field(name, pa.float64()) for name in COLUMNS)], metadata={METADATA: json.dumps(header).encode()}
    )
    sink = BytesIO()
    # A thousand of these are written in a tick: without what makes the file smaller by little and takes its time.
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema),
        sink,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    )
    return sink.getvalue()


def from_parquet(content: bytes) -> History:
    """Return the history of a Parquet file.

    Raises:
        IntegrityError: It is cut, damaged, or no history.
    """
    try:
        table = pq.ParquetFile(BytesIO(content), page_checksum_verification=True).read(use_threads=False)
        header = json.loads((table.schema.metadata or {})[METADATA])
        if header["schema_number"] != SCHEMA:
            raise IntegrityError(f"it has schema {header['schema_number']}, and this version reads {SCHEMA}")
        columns = {name: table.column(name).to_numpy().astype(np.float64) for name in COLUMNS}
        history = History(datetime.fromtimestamp(header["start_s"], UTC), int(header["step_s"]), columns)
        # The pages have checksums, the header has none: it must say what the times do.
        ends = [round(history.at(index).timestamp()) * 1000 for index in (0, len(history) - 1)]
        at_ms = table.column("at").cast(pa.int64()).to_numpy()
        if len(history) and [at_ms[0], at_ms[-1]] != ends:
            raise IntegrityError(f"its times do not go from {history.start_at} on in steps of {history.step_s} s")
    except UNREADABLE as error:
        raise IntegrityError(
            f"the kept history is damaged or not one of headway's ({' '.join(str(error).split())[:200]}); delete it, "
            "and the next tick reads it anew from the metrics"
        ) from error
    return history


def rows(history: History, last_bins: int, *, model: str = "") -> list[dict[str, Any]]:
    """Return the newest bins as rows for the checks of the suite `traffic`; what is missing is none.

    Args:
        history: As it was collected.
        last_bins: How many.
        model: Whose; with it the rows of many models are checked as one table, which costs no more than one model's.
    """
    first = max(len(history) - last_bins, 0)
    found = []
    for index in range(first, len(history)):
        row: dict[str, Any] = {"model": model, "at_s": round(history.at(index).timestamp())}
        for name in COLUMNS:
            value = float(history.columns[name][index])
            row[name] = None if np.isnan(value) else value
        found.append(row)
    return found


def checked(histories: Mapping[str, History], checks: Checks, last_bins: int) -> dict[str, tuple[str, ...]]:
    """Check the newest bins of all models as one table, and return what is wrong with whose.

    One table of a thousand models costs about as much as that of one (great-expectations spends its time around it).

    Args:
        histories: By model.
        checks: Knows the suite `traffic`.
        last_bins: How many bins of each.

    Returns:
        Sentences by model; a model of which nothing is wrong is not in it. What concerns no model alone concerns all.
    """
    table = [row for model, history in histories.items() for row in rows(history, last_bins, model=model)]
    found: dict[str, list[str]] = {}
    for sentence in checks.check("traffic", table) if table else ():
        owners = [model for model in histories if sentence.startswith(f"traffic of {model}: ")]
        # A name may begin another; the longest is meant.
        for model in [max(owners, key=len)] if owners else histories:
            found.setdefault(model, []).append(sentence)
    return {model: tuple(sentences) for model, sentences in found.items()}
