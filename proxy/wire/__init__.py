"""Formats without I/O: bytes and values in, bytes and values out."""
