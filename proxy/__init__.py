"""Does: obeys decisions made in `policies` and makes none."""
