"""The calibration texts are an input like the model: read once, checked, and named by their digest."""

import hashlib

from headway.domain import calibration
from headway.domain.profile import Profile
from headway.errors import ConfigError, NotFound
from headway.ports import Checks, WeightStore

SUITE = "calibration"


def run(profile: Profile, weights: WeightStore, checks: Checks) -> str | None:
    """Check the texts that a profile names; return their sha256.

    Args:
        profile: Names the texts, and the languages that they must have.
        weights: Where they are.
        checks: Looks for empty rows, lengths, and texts that are there twice.

    Returns:
        None where the profile names none: the plan takes headway's own, if a scheme needs any.

    Raises:
        ConfigError: The texts are not there, or not fit to calibrate with; every fault is in the text.
    """
    wanted = profile.weights.calibration
    if wanted.uri is None:
        return None
    try:
        content = weights.read(wanted.uri)
    except NotFound as error:
        raise ConfigError(
            f"`weights.calibration.uri` of {profile.model} is {wanted.uri}, and there is nothing; put the texts there, "
            "or leave the key out to take headway's own",
            uri=wanted.uri,
        ) from error
    found = calibration.rows(content)
    table = calibration.check_rows(found, wanted.languages, wanted.samples)
    # The suite finds a language that is short as well; in numbers of rows a person understands it.
    told = [
        fault for fault in checks.check(SUITE, table) if not any(f" is_{name} " in fault for name in wanted.languages)
    ]
    faults = [*told, *calibration.shortfalls(found, wanted.languages, wanted.samples)]
    if faults:
        listing = "\n".join(f"  - {fault}" for fault in faults)
        raise ConfigError(
            f"the calibration texts {wanted.uri} of {profile.model} are not fit to calibrate with:\n{listing}",
            uri=wanted.uri,
            faults=faults,
        )
    return hashlib.sha256(content).hexdigest()
