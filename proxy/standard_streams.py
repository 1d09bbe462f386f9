"""The three standard streams, there whatever the process was started with.

Some daemonisers start a program with a standard stream closed. Its descriptor would then be given to the next thing
that is opened, and what is meant for standard error would be written into a socket. Knows nothing of what is written.
"""

from __future__ import annotations

import os
import sys

_STANDARD = (0, 1, 2)


def open_missing_streams() -> None:
    """Open the null device in place of each standard stream that is closed, here and for child processes."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) in _STANDARD:
        os.set_inheritable(descriptor, True)  # noqa: FBT003  the standard library's own signature
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  it lives as long as the process
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
