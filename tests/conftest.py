"""Fixtures that several rooms share; they live in tests/support."""

from __future__ import annotations

from stores import any_store, own_valkey, own_valkey_on_tcp, valkey, valkey_server

__all__ = ["any_store", "own_valkey", "own_valkey_on_tcp", "valkey", "valkey_server"]
