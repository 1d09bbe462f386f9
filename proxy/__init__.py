"""Does: obeys decisions made in `policies` and makes none."""

__version__ = "0.1.0"
