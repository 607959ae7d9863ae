"""Who answers a model's requests."""

from urllib.parse import quote

from headway.domain.value import Value, slug


class Backend(Value):
    """A cluster as the gateway knows it."""

    cluster: str
    """Name of the cluster."""
    release: str
    """Id of the release that brought it; the answer header `x-headway-release`."""
    version: int
    cluster_digest: str


class TrafficSplit(Value):
    """Shares of live traffic in percent; they sum to 100."""

    stable_pct: int
    candidate_pct: int


class Route(Value):
    """The whole routing state of one model, kept where the gateway keeps it (route file, HTTPRoute).

    `previous` is the cluster that had the traffic before the last promotion: warm until `keep_previous_until`.
    """

    model: str
    stable: Backend | None = None
    candidate: Backend | None = None
    previous: Backend | None = None
    candidate_pct: int = 0
    candidate_pct_since: str | None = None
    """UTC time (ISO 8601) of the last change of `candidate_pct`; a bake is measured from it."""
    keep_previous_until: str | None = None
    """UTC time (ISO 8601) at which reconcile may delete the previous cluster."""
    hold_until: str | None = None
    """UTC time (ISO 8601) until which a held candidate waits for a person; then reconcile deletes it."""
    paused: bool = False
    """Whether a person froze releases and pre-scaling of this model."""

    @property
    def split(self) -> TrafficSplit:
        """Shares as the gateway applies them; a model without stable sends all to its candidate."""
        pct = self.candidate_pct if self.candidate else 0
        return TrafficSplit(stable_pct=100 - pct, candidate_pct=pct)


def path_of(model: str) -> str:
    """Return the path below which a model answers: its name if a URL can carry it as it is, else its slug."""
    return f"/{model if quote(model, safe='') == model else slug(model)}"
