"""How the unit tests run."""

import os

from headway.cli import ONE_THREAD

# Before anything imports numpy. Tests run in as many processes as there are cores: threads of a linear algebra library
# beside them wait for each other in loops, and what takes half a minute takes three.
for name in ONE_THREAD:
    os.environ.setdefault(name, "1")
