"""Profiles and calendars, as files of one folder."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.domain.profile import Profile, parse_profile
from headway.errors import ConfigError
from headway.units import MIB, format_bytes

LARGEST_CALENDAR_BYTES = 4 * MIB


def load_profiles(folder: Path) -> dict[str, Profile]:
    """Read every `*.yaml` of a folder, by model.

    Raises:
        ConfigError: A file is no valid profile, or two name one model; every fault of every file is in the text.
    """
    profiles, faults = read_profiles(folder)
    if faults:
        raise ConfigError("\n".join(faults), folder=str(folder), faults=faults)
    return profiles


def read_profiles(folder: Path) -> tuple[dict[str, Profile], list[str]]:
    """Read every `*.yaml` of a folder: the valid profiles by model, and one text for each fault.

    Of two files for one model neither counts, because nobody can tell which was meant.
    """
    profiles: dict[str, Profile] = {}
    origins: dict[str, str] = {}
    faults: list[str] = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            profile = read_profile(path)
        except ConfigError as error:
            faults.append(error.message)
            continue
        if profile.model in origins:
            faults.append(f"{path.name} and {origins[profile.model]} are both for model {profile.model}; keep one")
            profiles.pop(profile.model, None)
            continue
        profiles[profile.model] = profile
        origins[profile.model] = path.name
    return profiles, faults


def read_calendar(folder: Path, profile: Profile) -> str | None:
    """Read the ICS file that a profile names, none if it names none.

    Args:
        folder: Of the profiles; the file's name is relative to it.
        profile: Whose events.

    Raises:
        ConfigError: The file is not there, not text, or too large.
    """
    name = profile.prescale.calendar
    if name is None:
        return None
    path = folder / name
    try:
        size_bytes = path.stat().st_size
        if size_bytes > LARGEST_CALENDAR_BYTES:
            raise ConfigError(
                f"prescale.calendar of {profile.model}: {path} has {format_bytes(size_bytes)}; "
                f"{format_bytes(LARGEST_CALENDAR_BYTES)} are read at most: keep the events of the next weeks",
                path=str(path),
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"prescale.calendar of {profile.model}: {path} cannot be read ({error}); correct the name or the file",
            path=str(path),
        ) from error


def read_profile(path: Path) -> Profile:
    """Read one profile file.

    Raises:
        ConfigError: It is no valid profile.
    """
    return parse_profile(_mapping(path), origin=path.name)


def _mapping(path: Path) -> dict[str, Any]:
    """Read one YAML file that holds keys and values."""
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path.name} is not YAML: {' '.join(str(error).split())}", path=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name} cannot be read: {error}", path=str(path)) from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path.name} is not a mapping of keys to values; see docs/profiles.md", path=str(path))
    return data


def find_profile(profiles: Mapping[str, Profile], model: str, folder: Path) -> Profile:
    """Return the profile of a model.

    Raises:
        ConfigError: There is none; names the nearest model and where profiles are.
    """
    if model in profiles:
        return profiles[model]
    near = difflib.get_close_matches(model, list(profiles), n=1, cutoff=0.5)
    known = f"did you mean `{near[0]}`?" if near else f"there are profiles for {', '.join(profiles) or 'no model'}."
    raise ConfigError(f"no profile for model `{model}`; {known} Profiles are in {folder}", model=model)
