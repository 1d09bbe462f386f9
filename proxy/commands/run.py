"""`tidegate run`: serve a configuration until told to stop.

Knows where the configuration is looked for and how a start that fails is told; the processes are `supervisor`'s.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.config_file import DEFAULT_NAME, ConfigurationFile, default_path

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from proxy.commands.parsers import Subparsers
    from proxy.config import Configuration
    from proxy.supervisor import Listening

_FAILED = 1
_MISUSED = 2

HOW_TO_START = f"""\
tidegate: no configuration: there is no ./{DEFAULT_NAME}, and none was named.

In a checkout, write ./run for tidegate.

To see it work at once, with a small real model and a key to try it with:

    tidegate demo

To serve your own models, write a configuration, check it, and run it:

    cp deploy/tidegate.example.yaml {DEFAULT_NAME}     # every setting, explained
    tidegate keys create --id key_me --user me       # a key, and the line for the file
    tidegate check {DEFAULT_NAME}
    tidegate run

The least that serves one model looks like this:

    upstreams:
      llama: {{kind: openai, base_url: "http://127.0.0.1:9000/v1"}}
    models:
      my-model: {{deployments: [{{upstream: llama}}]}}
    projects:
      - {{id: proj_default}}
    keys:
      - {{id: key_me, project: proj_default, user: me, sha256: "…"}}

A file of another name: tidegate run --config FILE. All commands: tidegate --help
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "run",
        help="serve a configuration",
        description="Serve a configuration until SIGTERM or Ctrl-C; answers under way are finished then.\n"
        "It is read again on SIGHUP, and when its file or one that it names changes: one that cannot be used\n"
        "is told in the log, and the one before it stays in force.",
        epilog="example:\n  tidegate run --config tidegate.yaml\n\n"
        "exit status: 0 ended as told, 1 the workers do not start, 2 cannot start",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"the configuration (default: ./{DEFAULT_NAME})")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Serve the configuration; without any, explain in one screen how to start."""
    path = arguments.config or default_path()
    if path is None:
        print(HOW_TO_START, end="", file=sys.stderr)
        return _MISUSED
    file = ConfigurationFile(path)
    return serve(file.read(), announce, file)


def serve(
    configuration: Configuration, announce: Callable[[Listening], None], file: ConfigurationFile | None = None
) -> int:
    """Serve until told to stop and return the exit status; `announce` is called when the gateway is up.

    `file` is what the configuration was read from, and is read again when it changes.
    """
    from proxy.errors import StoreUnavailable  # noqa: PLC0415  other commands need no server
    from proxy.listening import CannotListen  # noqa: PLC0415
    from proxy.supervisor import CannotStart, supervise  # noqa: PLC0415
    from proxy.workers import WorkersFailed  # noqa: PLC0415

    try:
        asyncio.run(supervise(configuration, announce, file))
    except (CannotStart, CannotListen, StoreUnavailable) as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return _MISUSED
    except WorkersFailed as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return _FAILED
    return 0


def announce(listening: Listening) -> None:
    """Print where the gateway answers, and the admin key if one was made."""
    print(f"tidegate: listening on {listening.data_url}, control plane on {listening.admin_url}", flush=True)
    if listening.made_admin_key is not None:
        print(
            f"tidegate: no admin key is configured; for this run it is {listening.made_admin_key} "
            "(shown once; `tidegate keys create --admin`, or `./run keys create --admin`, makes one to keep)",
            flush=True,
        )
