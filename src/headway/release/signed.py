"""Whether a model is signed by whom its profile names, and whether what was signed is what would be served.

Signatures are made over a directory by the OpenSSF's model-signing. Every file that would be served must be signed, by
its sha256, which is known: no file is read. Two directories may have been signed:

- the model as it lies beside `config.json`. MLflow may spread it over two folders, so names count here, not folders.
  A signed file that is missing is a finding, unless it is a document (`DOCUMENTS`): those are often left behind.
- the whole version as MLflow stored it, with its `MLmodel`. Then paths count, and a signed file that is missing is a
  finding if it belongs to a folder that is served. The others (environments, examples) reach no engine.

MLflow's `log_model` of a loaded pipeline writes every file anew, so only the second way can work there; its copy of a
local path keeps the bytes.
"""

import hashlib
import re
from collections.abc import Iterator

from headway.domain.model import Selection
from headway.domain.profile import Signer
from headway.errors import ConfigError, ModelRejected
from headway.ports import Signatures, Signed, WeightStore
from headway.units import MIB, format_bytes

DOCUMENTS = re.compile(
    r"(.*/)?(\.git[a-z]*|[^/]*\.(md|png|jpe?g|gif|svg|pdf)|(README|LICEN[CS]E|NOTICE|USE_POLICY)(\.(txt|md))?)"
)
"""Names of files that no engine reads."""

MAX_BYTES = 16 * MIB
"""Of a signature: one of ten thousand files has 2 MiB."""


def check(
    selection: Selection, weights: WeightStore, signer: Signer | None, signatures: Signatures | None
) -> tuple[str | None, list[str]]:
    """Return who signed the selection (none: nobody was asked for, or nobody did), and what is wrong with that.

    Raises:
        ConfigError: A key of the signer cannot be read.
    """
    if signer is None:
        return None, []
    found = selection.signature
    if found is None:
        missing = (
            "it is not signed, and the profile says that it must be (weights.signer); sign the folder with "
            "model-signing, and upload the signature beside the files as model.sig"
        )
        return None, [missing] if signer.required else []
    if signatures is None:
        raise ConfigError("the profile names a signer (weights.signer), and nothing here can verify signatures")
    if found.size_bytes > MAX_BYTES:
        return None, [f"its signature has {format_bytes(found.size_bytes)}, which no signature has"]
    bundle = weights.read(found.uri)
    if hashlib.sha256(bundle).hexdigest() != found.sha256:
        return None, ["its signature was replaced since it was selected; start a new release"]
    try:
        signed = signatures.verify(bundle, signer)
    except ModelRejected as error:
        return None, list(error.facts["report"])
    wrong = list(_differences(selection, signed))
    return (None if wrong else signed.by), wrong


def _differences(selection: Selection, signed: Signed) -> Iterator[str]:
    """Compare what was signed with what was selected; the module's docstring says how."""
    root = selection.model.source_uri.rstrip("/") + "/"
    whole = "MLmodel" in signed.files
    names = {file.uri.removeprefix(root) if whole else file.path: file for file in selection.files}
    for name, file in names.items():
        told = signed.files.get(name)
        if told is None:
            yield f"`{name}` is not signed; remove it, or sign again"
        elif told != file.sha256:
            yield f"`{name}` is not what was signed: its sha256 is {file.sha256[:12]}, signed is {told[:12]}"
    folders = {name.rpartition("/")[0] for name in names}
    served = {file.path for file in selection.files}
    for name in sorted(set(signed.files) - set(names)):
        folder, _, base = name.rpartition("/")
        # In the merged layout a name of the tokenizer's folder gives way to the one of the model's.
        needed = folder in folders and base not in served if whole else not DOCUMENTS.fullmatch(name)
        if needed:
            yield f"`{name}` is signed and missing; upload it, or sign again without it"
