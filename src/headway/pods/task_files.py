"""Brings what a task run needs onto the disk: task files of one's own, and each side's tokenizer.

The harness runs what a task file says: `!function` imports Python, a YAML tag may build any object, a data set may come
from anywhere. Files from a bucket are data here, so all of that is refused before the harness sees it.
"""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pydantic import ValidationError

from headway.adapters.s3.client import S3Client
from headway.domain.value import digest
from headway.domain.weights import Manifest
from headway.errors import ConfigError, IntegrityError, NotFound
from headway.units import MIB, format_bytes

SUFFIXES = frozenset({".yaml", ".yml", ".json", ".jsonl", ".csv", ".parquet", ".txt", ".md"})
"""Files that may be brought: tasks, data, and words about them. Never code."""
LOADERS = frozenset({"json", "csv", "parquet", "text"})
"""Data sets that are read from the files themselves."""
MEANS = frozenset({"acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match", "likelihood"})
"""Metrics that the harness has itself and that are means of the samples. It would fetch code for a name it lacks."""
MAX_BYTES = 512 * MIB
"""Most that task files may be together; they are read into memory once."""
MAX_TOKENIZER_BYTES = 256 * MIB
TOKENIZER_SUFFIXES = (".json", ".txt", ".model", ".jinja")
"""Files of an artifact, beside its weights, from which a tokenizer is loaded."""


class Included(NamedTuple):
    """Task files on the disk."""

    folder: Path
    sha256: str
    """Digest of their names and contents."""


def include(uri: str, client: S3Client, folder: Path, wanted_sha256: str | None) -> Included:
    """Write the task files of a tar file or a prefix to a folder.

    Args:
        uri: `s3://bucket/some.tar` (gzip and others too), or a prefix that ends in a slash.
        client: The store.
        folder: Where they go; made if absent.
        wanted_sha256: Digest that they must have; none accepts any.

    Raises:
        ConfigError: There is none, a name is no plain relative path, or a task file says more than data.
        IntegrityError: They have another digest than the profile insists on.
    """
    files = dict(_of_prefix(uri, client) if uri.endswith("/") else _of_tar(uri, client))
    if not any(PurePosixPath(name).suffix in (".yaml", ".yml") for name in files):
        raise ConfigError(f"{uri} brings no task file (.yaml); it has {', '.join(sorted(files)) or 'nothing'}", uri=uri)
    found = digest(sorted([name, hashlib.sha256(content).hexdigest()] for name, content in files.items()))
    if wanted_sha256 is not None and found != wanted_sha256:
        raise IntegrityError(
            f"the task files at {uri} have digest {found}, the profile insists on {wanted_sha256}; somebody changed "
            "them: look at the change, then set quality.tasks.include_sha256 to the new digest",
            uri=uri,
        )
    for name, content in files.items():
        if PurePosixPath(name).suffix in (".yaml", ".yml"):
            require_data_only(name, content, set(files))
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return Included(folder, found)


def require_data_only(name: str, content: bytes, files: set[str]) -> None:
    """Refuse a task file that would run code or read anything but the files it came with.

    Args:
        name: Its name, for the error.
        content: Its bytes.
        files: All files that were brought, by their paths.

    Raises:
        ConfigError: Says what was found, and where.
    """
    import yaml

    try:
        found = yaml.safe_load(content)
    except yaml.constructor.ConstructorError as error:
        # `!function utils.x` and Python's own tags are no plain data.
        raise ConfigError(
            f"{name} has a tag that is more than data ({error.problem}); task files from a bucket may run no code: say "
            "it with the fields of the harness, or use a task that the harness brings itself",
            file=name,
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is no YAML: {error}", file=name) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{name} holds a {type(found).__name__}; a task file is a mapping", file=name)
    for path, key, value in _walk(found):
        fault = _fault(PurePosixPath(name).parent, key, value, files)
        if fault:
            raise ConfigError(f"{name}: `{path}` is {value!r}; {fault}", file=name, key=path)


def tokenizer(uri: str, client: S3Client, folder: Path) -> Path:
    """Write an artifact's tokenizer to a folder, verified by the artifact's manifest; return the folder.

    Raises:
        NotFound: There is no such artifact.
        IntegrityError: A file differs from the manifest.
    """
    known = client.read_json(uri + "manifest.json")
    if known is None:
        raise NotFound(f"there is no artifact at {uri}, so its tokenizer cannot be had; was it swept?", uri=uri)
    try:
        manifest = Manifest.model_validate(dict(known))
    except ValidationError as error:
        raise IntegrityError(f"the manifest at {uri} cannot be read: {error}", uri=uri) from error
    folder.mkdir(parents=True, exist_ok=True)
    for file in manifest.files:
        name = PurePosixPath(file.path).name
        if file.path != name or not name.endswith(TOKENIZER_SUFFIXES) or name.endswith(".safetensors.index.json"):
            continue
        if file.size_bytes > MAX_TOKENIZER_BYTES:
            raise ConfigError(f"{uri}{name} has {format_bytes(file.size_bytes)}, too much for a tokenizer", uri=uri)
        content = client.read(uri + name)
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise IntegrityError(f"{uri}{name} differs from the artifact's manifest; quantize again", uri=uri)
        (folder / name).write_bytes(content)
    return folder


def _of_prefix(uri: str, client: S3Client) -> Iterator[tuple[str, bytes]]:
    items = list(client.list(uri))
    _require_size(uri, sum(item.size_bytes for item in items))
    for item in items:
        name = item.uri.removeprefix(uri)
        if name and not name.endswith("/"):
            yield _plain(uri, name), client.read(item.uri, etag=item.etag)


def _of_tar(uri: str, client: S3Client) -> Iterator[tuple[str, bytes]]:
    _require_size(uri, client.head(uri).size_bytes)
    try:
        with tarfile.open(fileobj=io.BytesIO(client.read(uri)), mode="r:*") as archive:
            total = 0
            for member in archive:
                if member.isdir():
                    continue
                name = _plain(uri, member.name.removeprefix("./"))
                opened = archive.extractfile(member) if member.isfile() else None
                if opened is None:
                    raise ConfigError(f"{uri} has {member.name}, which is no plain file; links are not taken", uri=uri)
                total += member.size
                _require_size(uri, total)
                yield name, opened.read()
    except tarfile.TarError as error:
        raise ConfigError(
            f"{uri} is no tar file ({error}); a prefix with single files must end in a slash", uri=uri
        ) from error


def _require_size(uri: str, size_bytes: int) -> None:
    if size_bytes > MAX_BYTES:
        raise ConfigError(
            f"the task files at {uri} have {format_bytes(size_bytes)} or more, at most {format_bytes(MAX_BYTES)} are "
            "taken; cut the data to what is asked",
            uri=uri,
        )


def _plain(uri: str, name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or str(path) != name:
        raise ConfigError(f"{uri} has a file {name!r}, which is no plain relative path", uri=uri)
    if path.suffix not in SUFFIXES:
        allowed = ", ".join(sorted(SUFFIXES))
        raise ConfigError(f"{uri} has a file {name}; task files may be {allowed}, and no code", uri=uri)
    return name


def _walk(value: Any, path: str = "", key: str = "") -> Iterator[tuple[str, str, Any]]:
    if isinstance(value, dict):
        for name, below in value.items():
            where = f"{path}.{name}" if path else str(name)
            yield where, str(name), below
            yield from _walk(below, where, str(name))
    elif isinstance(value, list):
        for number, below in enumerate(value):
            yield from _walk(below, f"{path}[{number}]", key)


def _fault(folder: PurePosixPath, key: str, value: Any, files: set[str]) -> str:
    """Say what is wrong with one field of a task file; empty if nothing is."""
    if key in ("class", "custom_dataset", "use_prompt"):
        return "it names code"
    if key in ("unsafe_code", "hf_evaluate") and value:
        return "it runs code that the file does not hold"
    if key == "dataset_path" and value not in LOADERS:
        return f"data comes from the files beside it: {', '.join(sorted(LOADERS))} with `dataset_kwargs.data_files`"
    if key == "dataset_kwargs" and (not isinstance(value, dict) or set(value) != {"data_files"}):
        return "it may hold `data_files` and nothing else"
    if key == "metric" and value not in MEANS:
        return f"metrics of one's own tasks are means of the samples: {', '.join(sorted(MEANS))}"
    if key in ("data_files", "include"):
        # The harness looks for data in the folder of all files, for an included task file beside the one that names it.
        base = folder if key == "include" else PurePosixPath()
        strange = [name for name in _leaves(value) if _beside(base, name) not in files]
        return f"{strange[0]!r} is not among the files that were brought" if strange else ""
    return ""


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for below in value:
            yield from _leaves(below)
    else:
        yield value


def _beside(folder: PurePosixPath, name: Any) -> str:
    # A pattern such as `*.jsonl` names no file, so it is refused too.
    return str(folder / name) if isinstance(name, str) and ".." not in PurePosixPath(name).parts else ""
