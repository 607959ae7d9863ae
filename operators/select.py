"""The first step: one release a model at a time, and one version, frozen."""

from collections.abc import Collection
from typing import Any, ClassVar

from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.timezone import utcnow
from airflow.triggers.base import BaseTrigger

from headway.domain.model import Selection
from headway.domain.release import ReleaseRef
from headway.domain.value import slug
from headway.errors import ConfigError, Conflict, ModelRejected, NotFound, Refused
from headway.release import recall, select
from operators.base import OpenRelease, WaitingOperator
from operators.lease import TTL_S, holder_of
from operators.links import ModelLink
from operators.triggers import LeaseTrigger

ALIAS_RECORD = "alias"
"""Record of what the profile's alias named when the release began; reconcile tells by it whether the alias moved."""


class SelectOperator(WaitingOperator):
    """Takes the model's lease, waiting for another release of the model to end, and freezes the version."""

    step = "select"
    template_fields: Collection[str] = ("model", "version", "alias", "while_alias")
    operator_extra_links = (ModelLink(),)
    late_hint: ClassVar[str] = "see what it waits for in Airflow, fail that run if it is stuck, and start again"

    def __init__(
        self,
        *,
        version: int | str | None = None,
        alias: str | None = None,
        while_alias: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep the arguments.

        Args:
            version: Number of the version; none for the alias.
            alias: Alias to resolve; none for the profile's.
            while_alias: Release the version only if this alias names it when the release begins.
            kwargs: Of the base.
        """
        super().__init__(**kwargs)
        self.version = version
        self.alias = alias
        self.while_alias = while_alias
        self.model_url = ""

    def begin(self, release: OpenRelease) -> str:
        """Refuse what can be refused at once."""
        release.backend.profile(release.model)
        if release.backend.traffic.route(release.model).paused:
            raise Refused(f"{release.model} is paused; `headway resume {release.model}` lets releases start again")
        # Here too, so that what is stale does not wait for its turn first.
        self._skip_stale(release)
        return release.model

    def ended(self, release: OpenRelease, subject: str) -> bool:
        """Take the lease, unless another release has it."""
        try:
            release.backend.lease.acquire(slug(release.model), release.holder, TTL_S, utcnow())
        except Conflict as error:
            self.log.info("waiting: %s", error.message)
            return False
        return True

    def finish(self, release: OpenRelease, subject: str) -> None:
        """Freeze the version, or find the one that an earlier try froze."""
        self._skip_stale(release)
        alias, version = _asked(self.alias, self.version)
        profile = release.backend.profile(release.model)
        self._keep_alias(release, profile.alias)
        selection = release.recall("select", Selection)
        if selection is None:
            selection = release.keep(_select(release, None if version else alias or profile.alias, version))
        ref = ReleaseRef(
            release=release.release,
            model=release.model,
            version=selection.model.version,
            source_digest=selection.source_digest,
        )
        self.model_url = release.backend.model_url(ref.model, ref.version)
        self.ref = ref.to_json()

    def deadline_s(self, release: OpenRelease) -> float:
        """A release that waits longer than this is no longer what somebody asked for."""
        return 6 * 3600.0

    def inline_s(self, release: OpenRelease) -> float:
        """A lease that is taken is taken for minutes; waiting in place would hold a worker for nothing."""
        return 0.0

    def abandon(self, release: OpenRelease, subject: str) -> str:
        """Nothing was begun; say who has the lease."""
        return f"{release.model} is being released by {holder_of(release.backend, release.model, utcnow())}"

    def trigger(self, release: OpenRelease, subject: str, **common: Any) -> BaseTrigger:
        """Wait for the lease; there is none of ours to renew."""
        return LeaseTrigger(lease_of=release.model, asker=release.holder, deadline=common["deadline"])

    def _skip_stale(self, release: OpenRelease) -> None:
        """End without a release if the alias that asked for this version names another one by now.

        A message of the registry may come late, or wait for its turn while the next one does. What an earlier try of
        this task has frozen stays.
        """
        alias, _ = _asked(self.while_alias, None)
        _, version = _asked(None, self.version)
        if alias is None or version is None or release.recall("select", Selection) is not None:
            return
        try:
            named = release.backend.registry.resolve(release.model, alias=alias).version
        except NotFound:
            named = None
        if named == version:
            return
        now_names = f"version {named}" if named else "no version"
        why = f"alias {alias} of {release.model} names {now_names} by now, so nobody asks for version {version}"
        release.backend.ledger.append(release.key(recall.STALE), {"version": version, "named": named, "reason": why})
        raise AirflowSkipException(why)

    def _keep_alias(self, release: OpenRelease, alias: str) -> None:
        try:
            named = release.backend.registry.resolve(release.model, alias=alias).version
        except NotFound:
            named = None
        release.backend.ledger.append(release.key(ALIAS_RECORD), {"alias": alias, "version": named})


def _select(release: OpenRelease, alias: str | None, version: int | None) -> Selection:
    backend = release.backend
    try:
        return select.run(release.model, backend.registry, backend.weights, alias=alias, version=version)
    except ModelRejected:
        # It has no source digest to be remembered by, and must be remembered all the same.
        refused = backend.registry.resolve(release.model, alias=alias, version=version)
        backend.ledger.append(release.key(recall.REFUSED), recall.refused_ref(release.release, refused).to_json())
        raise


def _asked(alias: Any, version: Any) -> tuple[str | None, int | None]:
    """Read the form: Airflow renders an empty field as none, `None` or an empty text."""
    named = None if alias in (None, "", "None") else str(alias)
    if version in (None, "", "None"):
        return named, None
    if named:
        raise ConfigError(f"both a version ({version}) and an alias ({named}) were given; give one")
    try:
        return None, int(version)
    except ValueError as error:
        raise ConfigError(f"version is {version!r}; it must be a number such as 3") from error
