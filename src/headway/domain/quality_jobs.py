"""Input and output of the quality program, which puts an artifact before the serving environment."""

from typing import Literal

from pydantic import Field

from headway.domain.bench import CanaryAnswer
from headway.domain.profile import Engine
from headway.domain.release import QualityFigures
from headway.domain.value import Value
from headway.domain.weights import Scheme


class QualityJob(Value):
    """Ask the serving environment about an artifact."""

    depth: Literal["accepts", "answers"]
    """`accepts`: whether its own validator takes the quantization config, in seconds and without loading a weight.
    `answers`: also start the engine on it, and measure what it answers."""
    artifact_digest: str
    artifact_uri: str
    """An `s3://` address that ends in a slash."""
    scheme: Scheme
    served_model: str
    engine: Engine
    tensor_parallel: int = 1
    accelerator: str = "cpu"
    """As the profile names it; decides how the engine is started."""
    dest_root: str
    """Directory of the node below which artifacts are staged; used by `answers`."""
    reference_uri: str = ""
    """Where the figures of the source are; used by `answers`."""
    noise_uri: str = ""
    """Where the figures of the source served as it is are kept; see `BenchJob.noise_uri`."""
    start_s: int = Field(default=900, ge=10)
    """Seconds within which the engine must answer."""
    request_timeout_s: float = Field(default=120, gt=0)
    result_uri: str
    """Where the result is kept; the first one stays."""


class QualityResult(Value):
    """What the serving environment said."""

    schema_version: int = 1
    depth: Literal["accepts", "answers"]
    artifact_digest: str
    scheme: Scheme
    artifact_bytes: int
    versions: dict[str, str] = Field(default_factory=dict)
    """Of vLLM and compressed-tensors, as they serve."""
    findings: tuple[str, ...] = ()
    """Each reason why it would not serve: the validator's words, or weights that the engine did not find."""
    served: QualityFigures | None = None
    noise: QualityFigures | None = None
    """Figures of the source served as it is, where they are known."""
    answers: tuple[CanaryAnswer, ...] = ()
    why_missing: str = ""
    """Why there are no figures although they were asked for."""
    seconds: dict[str, float] = Field(default_factory=dict)
