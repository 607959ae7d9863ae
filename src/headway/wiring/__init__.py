"""Where adapters are chosen and built: the one place that knows settings and adapters.

Each port is built on first use. `headway rollback --direct` must not wait for the import of MLflow, nor need it.
"""

from headway.settings import Settings
from headway.wiring.backend import Backend
from headway.wiring.kubernetes import KubernetesBackend
from headway.wiring.local import LocalBackend
from headway.wiring.profiles import find_profile, load_profiles, read_calendar, read_profile, read_profiles

__all__ = [
    "Backend",
    "KubernetesBackend",
    "LocalBackend",
    "connect",
    "find_profile",
    "load_profiles",
    "read_calendar",
    "read_profile",
    "read_profiles",
]


def connect(settings: Settings | None = None) -> Backend:
    """Return the backend that the settings name.

    Args:
        settings: None to read them from the environment.

    Raises:
        ConfigError: A setting is wrong.
    """
    found = settings or Settings.load()
    return KubernetesBackend(found) if found.backend == "kubernetes" else LocalBackend(found)
