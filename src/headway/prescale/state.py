"""What a model's forecast has learned: kept between two ticks as one document, which can be made anew any time."""

import json
import zipfile
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from io import BytesIO
from typing import Any, get_type_hints

import numpy as np

from headway.domain.series import Series
from headway.domain.value import digest
from headway.errors import ConfigError, IntegrityError
from headway.prescale.forecast import ensemble
from headway.prescale.forecast.ensemble import Learned

META = "meta"
UNREADABLE = (zipfile.BadZipFile, OSError, ValueError, KeyError, TypeError, EOFError, NotImplementedError)
"""What reading may end in where bytes are damaged."""


@dataclass(frozen=True, eq=False)
class State:
    """What is known of one model.

    Args:
        learned: What its forecast learned.
        learned_at: When it was learned from the whole history; since then it was rolled forward.
        kept_at: When it was stored.
        offset_s: Distance from UTC of the clock on which the days of the history were laid.
    """

    learned: Learned
    learned_at: datetime
    kept_at: datetime
    offset_s: int


def brought_up(state: State | None, series: Series, *, now: datetime, offset_s: int, anew: bool) -> State:
    """Return what is known at the end of a history: rolled forward where that is enough, otherwise learned.

    Args:
        state: What was known before; none if nothing was.
        series: The cleaned history, on the clock of now.
        now: Now, UTC.
        offset_s: That clock's distance from UTC.
        anew: Whether it is time to learn from the whole history.
    """
    connected = state is not None and series.first_bin < state.learned.until <= series.first_bin + len(series)
    if state is not None and connected and not anew and state.offset_s == offset_s:
        try:
            return State(ensemble.roll(state.learned, series), state.learned_at, state.kept_at, offset_s)
        except ConfigError:
            # Scores of other members than this release of headway has.
            pass
    return State(ensemble.learn(series), now, now, offset_s)


def to_npz(state: State) -> bytes:
    """Return the document of a state."""
    arrays: dict[str, Any] = {}
    plain = _parts(state, "", arrays)
    # float32: an error is known to a few digits, and this is read and written for every model.
    packed = {name: part.astype(np.float32) if part.ndim == 2 else part for name, part in arrays.items()}
    file = BytesIO()
    np.savez(file, **packed, **{META: np.frombuffer(json.dumps({"mark": mark(), **plain}).encode(), dtype=np.uint8)})
    return file.getvalue()


def from_npz(content: bytes) -> State:
    """Return the state that a document holds.

    Raises:
        IntegrityError: It is damaged, or another release of headway wrote it.
    """
    try:
        with np.load(BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        plain = json.loads(arrays.pop(META).tobytes())
        if plain.pop("mark") != mark():
            raise IntegrityError("another release of headway has learned it, with other members; it is learned again")
        state: State = _whole(State, "", plain, arrays)
    except UNREADABLE as error:
        raise IntegrityError(f"it is damaged ({type(error).__name__}: {error}); it is learned again") from error
    return state


def mark() -> str:
    """Return what changes when a stored state is of no use any more: the members, and how they are scored."""
    names = [member.name for member in ensemble.MEMBERS]
    return digest([names, list(ensemble.KNOTS), ensemble.KEPT_BINS, ensemble.STEP_S])


def _parts(value: Any, prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """Take a value apart: its arrays into `arrays`, by path, and the rest as plain JSON types."""
    plain: dict[str, Any] = {}
    for one in fields(value):
        part, path = getattr(value, one.name), f"{prefix}{one.name}"
        if isinstance(part, np.ndarray):
            arrays[path] = part
        elif is_dataclass(part):
            plain |= _parts(part, f"{path}.", arrays)
        else:
            plain[path] = part.isoformat() if isinstance(part, datetime) else part
    return plain


def _whole(kind: Any, prefix: str, plain: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """Put a value together again."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        path = f"{prefix}{name}"
        if path in arrays:
            found[name] = arrays[path].astype(np.float64)
        elif is_dataclass(hint):
            found[name] = _whole(hint, f"{path}.", plain, arrays)
        elif hint is datetime:
            found[name] = datetime.fromisoformat(plain[path])
        else:
            found[name] = tuple(plain[path]) if isinstance(plain[path], list) else plain[path]
    return kind(**found)
