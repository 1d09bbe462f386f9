"""Raw-socket HTTP client and SSE parser: what really came over the wire, byte by byte. Stdlib only."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Stop = Callable[["Resp"], bool]

Header = tuple[str, object]


class Resp:
    """One answer as it came: head, body without its framing, and whether its end was proper."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.complete = False
        self.framing: str | None = None
        self.error: Exception | None = None
        self.t_head: float | None = None
        self.t_first: float | None = None
        self.t_total: float | None = None
        self.informational: list[int] = []

    def header(self, name: str) -> str | None:
        """Return the first value of a header, in any case of its name."""
        v = [v for k, v in self.headers if k.lower() == name.lower()]
        return v[0] if v else None

    def all(self, name: str) -> list[str]:
        """Return all values of a header."""
        return [v for k, v in self.headers if k.lower() == name.lower()]

    def json(self) -> Any:  # noqa: ANN401  whatever was sent
        """Return the body as JSON."""
        return json.loads(self.body)

    def text(self) -> str:
        """Concatenated generated text of choice 0, JSON or SSE."""
        if (self.header("content-type") or "").startswith("text/event-stream"):
            return joined(self.body).get(0, "")
        c = self.json()["choices"][0]
        return c["text"] if "text" in c else c["message"]["content"]

    def __repr__(self) -> str:
        return f"<Resp {self.status} complete={self.complete} {self.error or ''} {self.body[:200]!r}>"


class Raw:
    """One client connection, stepwise."""

    def __init__(self, base: str, timeout: float = 15) -> None:
        u = urlsplit(base)
        self.host = f"{u.hostname}:{u.port}"
        self.prefix = u.path.rstrip("/")
        self.s = socket.create_connection((u.hostname, u.port), timeout=timeout)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf, self.t0 = b"", time.monotonic()

    def send(self, b: bytes) -> None:
        """Send bytes as they are."""
        self.s.sendall(b)

    def request(
        self,
        method: str,
        target: str,
        headers: Iterable[Header] = (),
        body: bytes = b"",
        *,
        auto_length: bool = True,
    ) -> None:
        """Send a request, with a Content-Length unless a framing is given or `auto_length` is off."""
        hs = [("Host", self.host), *headers]
        low = {k.lower() for k, _ in hs}
        if auto_length and body and not low & {"content-length", "transfer-encoding"}:
            hs.append(("Content-Length", len(body)))
        self.t0 = time.monotonic()
        self.send(
            (f"{method} {self.prefix}{target} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in hs) + "\r\n").encode(
                "latin-1"
            )
            + body
        )

    def read_more(self) -> None:
        """Read once into `buf`. Raises EOFError at the end."""
        b = self.s.recv(65536)
        if not b:
            raise EOFError
        self.buf += b

    def read_head(self, r: Resp) -> None:
        """Read up to the end of the head; interim answers are kept aside."""
        while True:
            while b"\r\n\r\n" not in self.buf:
                self.read_more()
            raw, self.buf = self.buf.split(b"\r\n\r\n", 1)
            lines = raw.decode("latin-1").split("\r\n")
            st = int(lines[0].split(" ")[1])
            if 100 <= st < 200:
                r.informational.append(st)
                continue
            r.status, r.headers = st, [tuple(x.strip() for x in line.split(":", 1)) for line in lines[1:]]
            r.t_head = time.monotonic() - self.t0
            return

    def _got(self, r: Resp, b: bytes) -> None:
        if b and r.t_first is None:
            r.t_first = time.monotonic() - self.t0
        r.body += b

    def read_body(self, r: Resp, *, head_only: bool = False, stop: Stop | None = None) -> None:  # noqa: C901, PLR0912  one branch a framing
        """stop(resp) -> True ends reading early (used before a client disconnect)."""
        te, cl = (r.header("transfer-encoding") or "").lower(), r.header("content-length")
        if head_only or r.status in (204, 304):
            r.complete = True
        elif "chunked" in te:
            r.framing = "chunked"
            while True:
                while b"\r\n" not in self.buf:
                    self.read_more()
                size, self.buf = self.buf.split(b"\r\n", 1)
                size = int(size.split(b";")[0], 16)
                left = size
                while left:
                    if not self.buf:
                        self.read_more()
                    b, self.buf = self.buf[:left], self.buf[left:]
                    left -= len(b)
                    self._got(r, b)
                    if stop and stop(r):
                        return
                while len(self.buf) < 2:
                    self.read_more()
                self.buf = self.buf[2:]
                if size == 0:
                    r.complete = True
                    return
        elif cl is not None:
            r.framing, left = "length", int(cl)
            while left:
                if not self.buf:
                    self.read_more()
                b, self.buf = self.buf[:left], self.buf[left:]
                left -= len(b)
                self._got(r, b)
                if stop and stop(r):
                    return
            r.complete = True
        else:
            r.framing = "close"
            try:
                while True:
                    if not self.buf:
                        self.read_more()
                    b, self.buf = self.buf, b""
                    self._got(r, b)
                    if stop and stop(r):
                        return
            except EOFError:
                r.complete = True

    def response(self, *, head_only: bool = False, stop: Stop | None = None) -> Resp:
        """Read one answer; what went wrong on the way is its `error`."""
        r = Resp()
        try:
            self.read_head(r)
            self.read_body(r, head_only=head_only, stop=stop)
        except (EOFError, OSError, ValueError) as e:
            r.error = e
        r.t_total = time.monotonic() - self.t0
        return r

    def close(self, *, rst: bool = False) -> None:
        """Close the connection, by reset if asked."""
        if rst:
            self.s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.s.close()


def call(
    base: str,
    method: str,
    target: str,
    headers: Iterable[Header] = (),
    body: bytes = b"",
    *,
    timeout: float = 15,
    head_only: bool = False,
    stop: Stop | None = None,
) -> Resp:
    """Send one request over a connection of its own and return the answer."""
    c = Raw(base, timeout)
    try:
        c.request(method, target, headers, body)
        return c.response(head_only=head_only, stop=stop)
    finally:
        c.close()


def sse(body: bytes) -> tuple[list[tuple[str, str]], list[str]]:
    """Parse an event stream as WHATWG says: [(event, data)], plus comments.

    An unterminated trailing event is not dispatched, exactly as in a browser or SDK.
    """
    if body.startswith(b"\xef\xbb\xbf"):
        body = body[3:]
    text = body.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    out, comments, data, event = [], [], [], ""
    for line in text.split("\n")[:-1]:
        if line == "":
            if data:
                out.append((event or "message", "\n".join(data)))
            data, event = [], ""
        elif line.startswith(":"):
            comments.append(line[1:])
        else:
            f, _, v = line.partition(":")
            v = v.removeprefix(" ")
            if f == "data":
                data.append(v)
            elif f == "event":
                event = v
    return out, comments


def sse_json(body: bytes) -> list[Any]:
    """Return the JSON values of all events but `[DONE]`."""
    out = []
    for _, d in sse(body)[0]:
        if d != "[DONE]":
            out.append(json.loads(d))
    return out


def joined(body: bytes) -> dict[int, str]:
    """Return the text of each choice, put together from its events."""
    acc = {}
    for o in sse_json(body):
        for c in o.get("choices", []):
            t = c.get("text")
            if t is None:
                t = (c.get("delta") or {}).get("content") or ""
            acc[c["index"]] = acc.get(c["index"], "") + t
    return acc


def has_error_event(body: bytes) -> bool:
    """Tell whether one of the events is an error."""
    for name, d in sse(body)[0]:
        try:
            o = json.loads(d)
        except ValueError:
            continue
        if name == "error" or (isinstance(o, dict) and o.get("error")):
            return True
    return False


def uniq() -> str:
    """Return a text that was never sent before."""
    return "case-" + uuid.uuid4().hex[:10]


def parallel(fns: Sequence[Callable[[], Resp]]) -> list[Resp]:
    """Call all functions at once and return what they return, in order."""
    out = [None] * len(fns)

    def go(i: int) -> None:
        out[i] = fns[i]()

    ts = [threading.Thread(target=go, args=(i,)) for i in range(len(fns))]
    [t.start() for t in ts]
    [t.join(30) for t in ts]
    return out
