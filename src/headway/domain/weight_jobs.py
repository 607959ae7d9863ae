"""Input and output of the pod programs that make and move weights."""

from typing import Literal

from pydantic import Field

from headway.domain.model import SourceFile
from headway.domain.profile import Quality
from headway.domain.release import QualityFigures
from headway.domain.value import Value
from headway.domain.weights import Recipe


class QuantizeJob(Value):
    """Make an artifact of a source, and the source's reference."""

    source_digest: str
    files: tuple[SourceFile, ...]
    recipe: Recipe
    calibration_uri: str | None = None
    """`s3://` address of the calibration texts that `recipe.calibration_digest` names; none: those of headway."""
    artifact_digest: str
    artifact_uri: str
    """Where the artifact's files go: an `s3://` address that ends in a slash."""
    reference_uri: str
    texts: tuple[str, ...]
    """The fixed texts, so that the program measures what the plan names."""
    prompt_set_digest: str
    quality: Quality
    """A source beyond these limits is not worth quantizing."""
    stable: QualityFigures | None = None
    """Figures of stable's source on the same texts."""


class LayerError(Value):
    """How far a part of the quantized model is from the source."""

    name: str
    kind: Literal["output", "weight"]
    """`output`: of a decoder layer, on a few calibration texts, with the error of the layers before it. `weight`: of a
    Linear's weights, where the model was never loaded."""
    relative_error: float | None
    """Euclidean norm of the difference over that of the source; none: not a finite number."""


class LayerErrors(Value):
    """The errors of an artifact, as they are kept beside it: the figures of a run, so no file of the artifact."""

    schema_version: int = 1
    artifact_digest: str
    content_digest: str
    layers: tuple[LayerError, ...]
    peak_rss_bytes: int | None = None
    seconds: dict[str, float] = Field(default_factory=dict)
    """Of the run that made the artifact."""


LAYER_ERRORS = "layer_errors.json"
"""Name of that object, beside the manifest."""


class QuantizeResult(Value):
    """What the quantize program did."""

    outcome: Literal["made", "found", "refused"]
    """`refused`: the source's own figures are beyond the limits, so nothing was made."""
    reason: str = ""
    artifact_digest: str
    content_digest: str | None = None
    source_bytes: int
    artifact_bytes: int | None = None
    seconds: dict[str, float] = Field(default_factory=dict)
    """Time of each part: fetch, reference, quantize, upload."""
    tools: dict[str, str] = Field(default_factory=dict)
    layer_errors: tuple[LayerError, ...] = ()
    """Of the artifact, also when it was found; empty where the source is served as it is."""
    peak_rss_bytes: int | None = None
    """Most memory that was resident while quantizing; none where nothing was quantized."""
    loaded: bool | None = None
    """Whether the model was loaded; otherwise its files were quantized one by one."""


class StageJob(Value):
    """Bring an artifact to this node, or look after what lies there."""

    mode: Literal["stage", "scrub"] = "stage"
    """`scrub`: hash again what is on the disk, and repair what differs; `artifact_digest` empty means everything."""
    artifact_digest: str = ""
    content_digest: str = ""
    """Bytes that the plan means, as `Manifest.content_digest`: an artifact that was deleted and made again may have
    others. Empty: whichever bear the artifact's digest."""
    artifact_uri: str
    """Where the artifact is, an `s3://` address that ends in a slash; for a scrub the address of all artifacts."""
    dest_root: str
    """Directory below which artifacts lie, each in a directory named by its digest."""
    pins: tuple[str, ...] = ()
    """Digests of artifacts that must not be evicted: those that serve, asked for, or were served before."""
    high_pct: float = Field(default=85, gt=0, le=100)
    """Use of the file system above which the least recently used artifacts are evicted ..."""
    low_pct: float = Field(default=70, gt=0, le=100)
    """... until its use is below this."""


class StageResult(Value):
    """What the stage program did."""

    outcome: Literal["staged", "hit", "scrubbed"]
    """`hit`: another run had staged it."""
    path: str
    artifact_digest: str
    size_bytes: int
    fetched_bytes: int = 0
    """Bytes that came from the store in this run."""
    resumed_bytes: int = 0
    """Bytes that an earlier, ended run had left and that proved right."""
    shared_bytes: int = 0
    """Bytes that the node had already, as files of other artifacts."""
    evicted: tuple[str, ...] = ()
    """Digests of artifacts that made room."""
    damaged: tuple[str, ...] = ()
    """Files whose bytes had changed on the disk, as `digest/name`; they were fetched again."""
    seconds: float
