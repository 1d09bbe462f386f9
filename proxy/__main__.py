"""`python -m proxy`, the same as the command `tidegate`."""

from __future__ import annotations

import sys

from proxy.commands import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
