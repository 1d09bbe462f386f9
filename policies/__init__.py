"""Decides: pure functions of what they are given. No await, no clock, no files, no randomness of its own."""
