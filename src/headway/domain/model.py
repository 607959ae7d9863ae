"""A registered model: what the registry says, and where its files are."""

from typing import Literal

from headway.domain.value import Value, digest

Layout = Literal["transformers", "transformers-path", "plain"]
"""How MLflow stored it: `log_model` of a pipeline, `log_model` of a local path, or a plain directory."""


class ModelVersion(Value):
    """One immutable version in the registry. An alias is resolved to this once and never carried further."""

    name: str
    version: int
    source_uri: str
    """Where the files are, as an `s3://bucket/prefix` address."""
    run_id: str | None = None
    aliases: tuple[str, ...] = ()
    tags: dict[str, str] = {}


class SourceFile(Value):
    """One file of a model as the registry's store has it.

    `path` is the plain basename that the serving engine will see; `uri` may lie elsewhere, since MLflow spreads
    one model over two folders.
    """

    path: str
    uri: str
    size_bytes: int
    sha256: str


class Selection(Value):
    """What a release is about, frozen: the answer of the step `select`."""

    model: ModelVersion
    layout: Layout
    files: tuple[SourceFile, ...]
    selected_by: str
    """`alias champion` or `version 3`, for the report."""
    signature: SourceFile | None = None
    """The model's detached signature (`model.sig`), if it lies beside the files. It names no content of its own."""

    @property
    def source_digest(self) -> str:
        """Name the content: the digest of paths, sizes and sha256 of all files, whatever their addresses."""
        return digest(sorted([f.path, f.size_bytes, f.sha256] for f in self.files))

    @property
    def size_bytes(self) -> int:
        """Sum of the files."""
        return sum(f.size_bytes for f in self.files)


class LinearShape(Value):
    """The matrices of one name in all layers, such as `down_proj`."""

    name: str
    out_features: int
    in_features: int


class ModelShape(Value):
    """The figures of `config.json` and of the weights that memory depends on."""

    architecture: str
    hidden_size: int
    layers: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    parameters: int
    """Number of weights in the safetensors headers (shared tensors once)."""
    linear_parameters: int
    """Those in Linear layers that a quantization scheme may shrink: neither embeddings, norms nor `lm_head`."""
    dtype: str
    """The dtype that most weights have, in safetensors' spelling (`BF16`)."""
    weights_bytes: int
    linears: tuple[LinearShape, ...] = ()
    """Each shape of a Linear that a scheme may shrink, once; groups and kernels must fit it."""
