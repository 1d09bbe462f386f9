"""The control plane: what operators see and do, on a port of its own."""
