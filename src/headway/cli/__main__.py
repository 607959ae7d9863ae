"""`python -m headway.cli`."""

import sys

from headway.cli import main

if __name__ == "__main__":
    sys.exit(main())
