"""The `evidence:` block of a profile file: written into its text, so that comments and order stay."""

import re
from pathlib import Path
from typing import Any

import yaml

from headway.domain.profile import Evidence, parse_profile
from headway.errors import ConfigError

KEY = "evidence"


def block(evidence: Evidence, indent: str = "  ") -> str:
    """Return the block as YAML lines below `canary:`."""
    data = evidence.to_json()
    spread, trials = data.pop("spread"), data.pop("trials")
    lines = [f"{KEY}:", "  # Written by `headway calibrate`; worth nothing once margins, blocks or load change."]
    lines += [f"  {name}: {_flow(value)}" for name, value in data.items()]
    lines.append(f"  spread: {_flow(spread)}")
    lines += ["  trials:", *(f"    - {_flow(trial)}" for trial in trials)] if trials else []
    return "".join(f"{indent}{line}\n" for line in lines)


def with_evidence(text: str, evidence: Evidence, *, origin: str) -> str:
    """Return a profile's text with this evidence, in place of any that it had.

    Args:
        text: Content of the profile file.
        evidence: What to write.
        origin: Name of the file, for the error.

    Raises:
        ConfigError: The text cannot be changed line by line, such as a `canary` in braces.
    """
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    start = next((i for i, line in enumerate(lines) if re.match(r"canary:\s*(#.*)?$", line)), None)
    if start is None:
        if any(line.startswith("canary:") for line in lines):
            raise _by_hand(origin, evidence)
        lines += ["canary:\n"]
        start = len(lines) - 1
    end = _end_of(lines, start + 1, 0)
    indents = [_indent(line) for line in lines[start + 1 : end] if _speaks(line)]
    width = indents[0] if indents else 2
    old = next((i for i in range(start + 1, end) if re.match(rf" {{{width}}}{KEY}:", lines[i])), None)
    if old is not None:
        stop = _end_of(lines, old + 1, width)
        del lines[old:stop]
        end -= stop - old
    fresh = "".join([*lines[:end], block(evidence, " " * width), *lines[end:]])
    if _differs(text, fresh, evidence):
        raise _by_hand(origin, evidence)
    parse_profile(yaml.safe_load(fresh), origin=origin)
    return fresh


def write(path: Path, evidence: Evidence) -> None:
    """Put the evidence into a profile file, whole or not at all.

    Raises:
        ConfigError: The file cannot be read, changed or written.
    """
    try:
        fresh = with_evidence(path.read_text(encoding="utf-8"), evidence, origin=path.name)
        new = path.with_name(path.name + ".new")
        new.write_text(fresh, encoding="utf-8")
        new.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write the evidence into {path}: {error.strerror}") from error


def _by_hand(origin: str, evidence: Evidence) -> ConfigError:
    return ConfigError(
        f"{origin} has no `canary:` block of its own lines to write into; put this below it by hand:\n{block(evidence)}"
    )


def _differs(before: str, after: str, evidence: Evidence) -> bool:
    """Tell whether more than the evidence changed, or the evidence did not arrive."""
    try:
        old, new = yaml.safe_load(before), yaml.safe_load(after)
    except yaml.YAMLError:
        return True
    canaries = [dict(data.get("canary") or {}) for data in (old, new)]
    found = [canary.pop(KEY, None) for canary in canaries]
    rest = [{**data, "canary": canary} for data, canary in zip((old, new), canaries, strict=True)]
    return rest[0] != rest[1] or found[1] is None or Evidence.model_validate(found[1]) != evidence


def _end_of(lines: list[str], start: int, width: int) -> int:
    """Return the line after the last one that is deeper than `width`; comments and empty lines after it stay out."""
    end = start
    for number in range(start, len(lines)):
        if _speaks(lines[number]):
            if _indent(lines[number]) <= width:
                break
            end = number + 1
    return end


def _speaks(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
