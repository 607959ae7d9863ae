"""What a model's configuration may not say: to run a program, to open files elsewhere, figures that cannot be."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

CODE_KEYS = frozenset({"auto_map", "custom_pipelines", "custom_generate", "trust_remote_code"})
"""Keys by which a configuration asks for a program (false and null ask for none)."""

KERNEL_KEYS = ("attn_implementation", "experts_implementation")
"""Ends of keys whose value may name a repository of compiled kernels, as `owner/name`."""

PATH_KEYS = ("vocab_file", "merges_file", "tokenizer_file", "spm_file")
"""Keys by which a tokenizer opens a file."""

MAX_NUMBER = 2**53
"""Above this no size is real, and other readers of JSON round it."""

_BASENAME = re.compile(r"[^/\\]+")


def asking(value: Any) -> Iterator[tuple[str, str]]:
    """Yield where a configuration asks for a program or a file, and for what."""
    for where, name, inner in _entries(value):
        if name in CODE_KEYS and inner not in (False, None):
            yield where, "names code to run with the model"
        elif name.endswith(KERNEL_KEYS) and isinstance(inner, str) and "/" in inner:
            yield where, "names compiled code to fetch"
        elif name in PATH_KEYS and isinstance(inner, str) and not _BASENAME.fullmatch(inner):
            yield where, f"opens `{inner[:80]}` outside of the model's folder"


def odd_figures(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the figures in `config.json` cannot be."""
    if not config:
        yield "`config.json` is empty"
    if not isinstance(config.get("text_config") or {}, dict):
        yield "`config.json` has a text_config that is no object"
    for where, _, value in _entries(config):
        for digits in (len(str(abs(number))) for number in _integers(value) if abs(number) > MAX_NUMBER):
            yield f"`config.json` says that {where} has {digits} digits, which cannot be"


def _integers(value: Any) -> Iterator[int]:
    """Yield the whole numbers of a value, or of lists in lists; those of objects are entries of their own."""
    if type(value) is int:
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from _integers(inner)


def _entries(value: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield place, name and value of every entry of every object."""
    if isinstance(value, dict):
        for name, inner in value.items():
            where = f"{path}.{name}" if path else str(name)
            yield where, name, inner
            yield from _entries(inner, where)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _entries(inner, f"{path}[{position}]")
