"""An upstream that falls ill in a way it is told, in this process or in one of its own that can be killed and frozen.

As a program (`python ailing_upstream.py PORT FOLDER`) it looks into FOLDER for what ails it, and adds a byte to a file
there for every request, so that both outlast it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from fake_upstream import DONE, FakeUpstream, body_reply, ev, head, json_reply, sse_head, sse_reply, usage
from gateway import eventually, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fake_upstream import Ops, Req

SLOW_SECONDS = 10.0
RETRY_AFTER_SECONDS = 3
WORKED_SECONDS = 0.6
"""How long it takes before it resets a connection; an earlier reset may mean that nobody had read the request."""
_QUICKEST_SECONDS, _SLOWEST_SECONDS = 0.02, 0.06
_ERROR: Final = {"error": {"message": "I am not well.", "type": "server_error", "param": None, "code": None}}
_LONG_BODY: Final = b'{"id": "c-1", "choices": [' + b" " * 1000 + b"]}"


def well(req: Req, *, name: str = "", seconds: float = 0.0) -> Ops:
    """Answer as a model server does, after so long; the text says who answered."""
    asked = req.json()
    wait: Ops = [("sleep", seconds)] if seconds else []
    if not asked.get("stream"):
        choice = {"text": f"from {name}", "index": 0, "logprobs": None, "finish_reason": "stop"}
        return wait + json_reply(_completion([choice], usage=usage(9)))
    pieces = [
        ev(_completion([{"text": text, "index": 0, "logprobs": None, "finish_reason": finish}]))
        for text, finish in (("from ", None), (name, None), ("", "stop"))
    ]
    if (asked.get("stream_options") or {}).get("include_usage"):
        pieces.append(ev(_completion([], usage=usage(9))))
    return wait + sse_reply([*pieces, DONE])


def _completion(choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:  # noqa: ANN401  further members
    return {"id": "c-1", "object": "text_completion", "created": 1, "model": "m", "choices": choices, **more}


def _reset_within(req: Req) -> Ops:
    """Begin an answer and reset the connection: a whole one in its middle, a stream before its first event."""
    if req.json().get("stream"):
        return [("send", sse_head()), ("rst",)]
    length = [("Content-Type", "application/json"), ("Content-Length", len(_LONG_BODY))]
    return [("send", head(200, length) + _LONG_BODY[:500]), ("rst",)]


FAULTS: Final[Mapping[str, Callable[[Req], Ops]]] = {
    "slow": lambda req: well(req, name="the slow one", seconds=SLOW_SECONDS),
    "500": lambda _: json_reply(_ERROR, 500),
    "429": lambda _: json_reply(_ERROR, 429),
    "429 with Retry-After": lambda _: json_reply(_ERROR, 429, [("Retry-After", RETRY_AFTER_SECONDS)]),
    "401": lambda _: json_reply(_ERROR, 401),
    "HTML": lambda _: body_reply(b"<html><body>It works!</body></html>", ctype="text/html"),
    "garbage JSON": lambda _: body_reply(b'{"choices": [{"text": "hal'),
    "garbage": lambda _: [("send", b"\x16\x03\x01 this is no HTTP\r\n\r\n"), ("close",)],
    "reset within an answer": _reset_within,
    "reset without an answer": lambda _: [("sleep", WORKED_SECONDS), ("rst",)],
}
"""What may ail an upstream that is there, and how it answers then."""


class Ailing:
    """How an upstream answers: well, unless `fault` names one of the faults. `calls` are those there were."""

    def __init__(self, name: str, *, seed: int = 0) -> None:
        self.fault: str | None = None
        self.calls = 0
        self._name = name
        self._draw = random.Random(seed)  # noqa: S311  latencies that can be drawn again

    def __call__(self, req: Req) -> Ops:
        self.calls += 1
        return self.answer(req)

    def answer(self, req: Req) -> Ops:
        """Answer one request."""
        if self.fault is not None:
            return FAULTS[self.fault](req)
        if req.method == "GET":
            return json_reply({"object": "list", "data": []})
        return well(req, name=self._name, seconds=self._draw.uniform(_QUICKEST_SECONDS, _SLOWEST_SECONDS))


# ---------------------------------------------------------------- a process of its own
_FAULT_FILE = "fault"
_CALLS_FILE = "calls"


class UpstreamProcess:
    """Such an upstream in a process of its own, always at the same address; use it in a `with`."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True)
        self.name = name
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        (folder / _CALLS_FILE).touch()
        self.fall_ill(None)

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it."""
        self.kill()

    @property
    def url(self) -> str:
        """Return the address without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def calls(self) -> int:
        """How many requests have come, but for health checks."""
        return (self._folder / _CALLS_FILE).stat().st_size

    def fall_ill(self, fault: str | None) -> None:
        """Answer requests that come from now on as the fault says; None: be well."""
        written = self._folder / f"{_FAULT_FILE}.new"
        written.write_text(json.dumps(fault))
        written.replace(self._folder / _FAULT_FILE)

    def start(self) -> None:
        """Start the process and wait until it serves."""
        program = [sys.executable, __file__, str(self.port), str(self._folder)]
        self._process = subprocess.Popen(program, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "it ended before it served"

    def kill(self) -> None:
        """End it in the middle of whatever it does (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def freeze(self) -> None:
        """Stop it in its tracks; its kernel goes on taking connections."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wait_for_calls(self, count: int) -> None:
        """Wait until so many requests have come."""
        assert eventually(lambda: self.calls >= count)


class _Told(Ailing):
    """Reads what ails it from a folder, and counts there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.name)
        self._fault_file = folder / _FAULT_FILE
        self._counter = os.open(folder / _CALLS_FILE, os.O_WRONLY | os.O_APPEND)

    def __call__(self, req: Req) -> Ops:
        self.fault = json.loads(self._fault_file.read_text())
        if req.method == "POST":
            os.write(self._counter, b".")
        return self.answer(req)


def _serve(port: int, folder: Path) -> None:
    upstream = FakeUpstream(port)
    upstream.default = _Told(folder)
    upstream.start()
    print("ready", flush=True)  # noqa: T201  for whoever started it
    while True:
        time.sleep(1.0)
        upstream.log.clear()  # it would grow


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Path(sys.argv[2]))
