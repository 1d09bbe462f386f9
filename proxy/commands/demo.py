"""`tidegate demo`: a gateway before a real small model, with a key and lines to paste.

Knows how to put model server, configuration and gateway together, and what to tell about it; each of them is built
elsewhere.
"""

from __future__ import annotations

import secrets
import shlex
import sys
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from proxy.commands.run import announce, serve
from proxy.config_values import read_address
from proxy.demo.configuration import demo_configuration
from proxy.demo.model_process import GENERATION_MARK, ModelProcess, ModelUnavailable
from proxy.demo.model_server import MODEL_NAME

if TYPE_CHECKING:
    from argparse import Namespace

    from proxy.commands.parsers import Subparsers
    from proxy.supervisor import Listening

_MISUSED: Final = 2
_KEY_PREFIX: Final = "tg-demo-"
_KEY_BYTES: Final = 18
_LOG_NAME: Final = "model-server.log"
_TOLD: Final = """
A real model ({model}) answers at {url} with this key:

    {key}

A completion:

    curl -s {url}/v1/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' -d '{plain}'

One that is always the same: run it twice, and the second comes from the cache (see Cache-Status):

    curl -si {url}/v1/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' -d '{fixed}'

The model server's own log, in which every generation is one line with "{mark}":

    {log}

What was used so far (in a checkout, ./run stands for tidegate):

    tidegate usage --data-dir {data_dir}

Metrics: {admin_url}/metrics

Every request is a line of JSON below. Ctrl-C stops all of it.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "demo",
        help="try it out: a gateway before a real small model",
        description="Start a small real model, a gateway before it, and print a key and lines to paste.",
        epilog="example:\n  tidegate demo --listen 127.0.0.1:9000\n\n"
        "exit status: 0 ended as told, 1 the workers do not start, 2 cannot start",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen", type=_address, default="127.0.0.1:8080", metavar="HOST:PORT", help="data plane (%(default)s)"
    )
    parser.add_argument(
        "--admin-listen",
        type=_address,
        default="127.0.0.1:8081",
        metavar="HOST:PORT",
        help="control plane (%(default)s)",
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="keep stores, records and logs here (default: a folder that goes with it)",
    )
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Start model and gateway, tell how to use them, and return the exit status once they are told to stop."""
    key = _KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    with ExitStack() as opened:
        data_dir = arguments.data_dir or Path(opened.enter_context(TemporaryDirectory(prefix="tidegate-demo-")))
        data_dir = data_dir.absolute()
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            model = opened.enter_context(ModelProcess(data_dir / _LOG_NAME))
        except OSError as error:
            return _refuse(f"data_dir {data_dir} cannot be used ({error.strerror}): make it writable or name another")
        except ModelUnavailable as error:
            return _refuse(str(error))
        configuration = demo_configuration(
            base_url=model.base_url,
            key=key,
            listen=arguments.listen,
            admin_listen=arguments.admin_listen,
            data_dir=data_dir,
        )

        def tell(listening: Listening) -> None:
            announce(listening)
            print(how_to_try(listening, key=key, data_dir=data_dir, log=model.log), flush=True)

        return serve(configuration, tell)


def how_to_try(listening: Listening, *, key: str, data_dir: Path, log: Path) -> str:
    """Return what a newcomer needs: the key, two lines to paste, and where to look."""
    return _TOLD.format(
        model=MODEL_NAME,
        url=listening.data_url,
        admin_url=listening.admin_url,
        key=key,
        plain=f'{{"model": "{MODEL_NAME}", "prompt": "Once upon a time", "max_tokens": 32}}',
        fixed=f'{{"model": "{MODEL_NAME}", "prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}}',
        mark=GENERATION_MARK,
        log=log,
        data_dir=shlex.quote(str(data_dir)),
    )


def _address(text: str) -> str:
    try:
        read_address(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return text


def _refuse(reason: str) -> int:
    print(f"tidegate: {reason}", file=sys.stderr)
    return _MISUSED
