"""The type of what argparse hands to a command's `add_parser`, which has no public name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, _SubParsersAction

    Subparsers = _SubParsersAction[ArgumentParser]
