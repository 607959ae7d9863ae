"""What `judge` and `calibrate` are given: a profile by name or file, records here or in the store."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headway.domain.profile import Profile
from headway.errors import ConfigError, IntegrityError, NotFound
from headway.judge.records import Run
from headway.pods.records_parquet import read_any
from headway.settings import Settings

S3 = "s3://"


class Named(NamedTuple):
    """A profile and the file that it is in."""

    path: Path
    profile: Profile


class Records(NamedTuple):
    """A records file."""

    content: bytes
    run: Run


def named_profile(given: str) -> Named:
    """Return the profile that a person named: a file, or a model that has a profile in `profiles/`.

    Raises:
        ConfigError: There is no such profile, or it is not valid.
    """
    from headway import wiring

    path = Path(given)
    if path.suffix in {".yaml", ".yml"}:
        return Named(path, wiring.read_profile(path))
    folder = Settings.load().checkout / "profiles"
    profile = wiring.find_profile(wiring.load_profiles(folder), given, folder)
    return next(
        Named(file, profile) for file in sorted(folder.glob("*.yaml")) if wiring.read_profile(file).model == given
    )


def read(where: str) -> bytes:
    """Return a file's content, from this machine or from `s3://`.

    Raises:
        NotFound: There is no such file.
        ConfigError: It cannot be read.
    """
    if where.startswith(S3):
        return _store()(where)
    try:
        return Path(where).read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {where}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {where}: {error.strerror}") from error


def records(where: str) -> Records:
    """Return the records in a file of JSON lines or Parquet.

    Raises:
        NotFound: There is no such file.
        IntegrityError: It holds no records, or is damaged.
    """
    content = read(where)
    try:
        return Records(content, read_any(content))
    except IntegrityError as error:
        raise IntegrityError(f"{where}: {error.message}", **error.facts) from error


def beside(where: str, name: str) -> str:
    """Return the address of another file in the folder of a file."""
    if where.startswith(S3):
        return f"{where.rpartition('/')[0]}/{name}"
    return str(Path(where).parent / name)


def _store() -> Callable[[str], bytes]:
    """Return how the stack's object store is read; a local file needs none of it."""
    from headway import wiring

    return wiring.connect().weights.read
