"""`python -m proxy`, the same as the command `tidegate`."""

from __future__ import annotations

import sys

from proxy import commands
from proxy.standard_streams import open_missing_streams


def main() -> int:
    """Run the command line; returns the exit status."""
    open_missing_streams()
    return commands.main()


if __name__ == "__main__":
    sys.exit(main())
