"""Scripted OpenAI-style upstream with byte-level control (stdlib only, loopback only).

Why raw asyncio and not aiohttp.web: several cases need bytes a well-behaved server
library refuses to send (RST in the middle of a chunk, a missing last chunk, a
connection that dies exactly when it is reused).

In-process use (what the suite does):
    up = FakeUpstream(); up.start()
    up.script(reply1, reply2)        # consumed in order, then `up.default` answers
    up.log                           # list[Req]: what the product really sent
Stand-alone use: `python fake_upstream.py 9099`, then
    POST /__ctl/script {"replies": [[["send_b64", "..."], ["sleep", 0.2], ["rst"]], ...]}
    POST /__ctl/reset , GET /__ctl/log

A reply is a list of ops, or a callable(Req) -> list of ops:
    ("send", bytes)  ("sleep", seconds)  ("rst",)  ("close",)  ("hold", seconds)
    ("do", callable)   called if the peer is still there after what was sent before
    ("until", callable)   goes on once it returns true
`sleep`, `hold` and `until` end early when the peer (the product) goes away; that is recorded
as Req.aborted_at, which is how "was the upstream cancelled?" is observed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import socket
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Sequence

    Header = tuple[str, object]
    Op = tuple[Any, ...]
    Ops = list[Op]
    Reply = Ops | Callable[["Req"], Ops]

UPSTREAM_KEY = "upstream-secret-key"  # what the product must present to us


class Req:
    """One request as it arrived, and what became of it."""

    def __init__(
        self, *, conn_id: int, nth: int, method: str, target: str, headers: list[tuple[str, str]], body: bytes
    ) -> None:
        self.conn_id, self.nth, self.method, self.target = conn_id, nth, method, target
        self.headers, self.body, self.t0 = headers, body, time.monotonic()
        self.aborted_at, self.done, self.dropped = None, False, False

    def header(self, name: str) -> str | None:
        """Return the first value of a header, in any case of its name."""
        vals = [v for k, v in self.headers if k.lower() == name.lower()]
        return vals[0] if vals else None

    def json(self) -> Any:  # noqa: ANN401  whatever was sent
        """Return the body as JSON."""
        return json.loads(self.body)

    @property
    def path(self) -> str:
        """Return the target without its query."""
        return urlsplit(self.target).path

    def public(self) -> dict[str, Any]:
        """Return the request as the stand-alone server's log shows it."""
        return {
            "conn": self.conn_id,
            "method": self.method,
            "target": self.target,
            "headers": self.headers,
            "body_b64": base64.b64encode(self.body).decode(),
            "aborted": self.aborted_at is not None,
            "done": self.done,
        }


# ---------------------------------------------------------------- reply builders
def head(status: int = 200, headers: Iterable[Header] = (), reason: str = "X") -> bytes:
    """Return the bytes of an answer's head."""
    lines = [f"HTTP/1.1 {status} {reason}"] + [f"{k}: {v}" for k, v in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(b: bytes) -> bytes:
    """Return one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(b), b)


def body_reply(body: bytes, status: int = 200, headers: Iterable[Header] = (), ctype: str = "application/json") -> Ops:
    """Return the reply with a whole body."""
    hs = [("Content-Type", ctype), ("Content-Length", len(body)), *headers]
    return [("send", head(status, hs) + body)]


def json_reply(obj: object, status: int = 200, headers: Iterable[Header] = ()) -> Ops:
    """Return the reply with a JSON body."""
    return body_reply(json.dumps(obj).encode(), status, headers)


def sse_head(headers: Iterable[Header] = ()) -> bytes:
    """Return the head of an event stream."""
    return head(200, [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"), *headers])


def sse_reply(
    pieces: Sequence[bytes | float], gap: float = 0.01, end: str = "ok", headers: Iterable[Header] = ()
) -> Ops:
    """Return the reply that is an event stream; each of `pieces` is one HTTP chunk written on its own.

    A float among them is a pause. end: ok | rst | fin (FIN without the last chunk).
    """
    ops = [("send", sse_head(headers))]
    for p in pieces:
        if isinstance(p, (int, float)):
            ops.append(("sleep", p))
        else:
            ops += [("send", chunk(p)), ("sleep", gap)]
    return ops + {"ok": [("send", b"0\r\n\r\n")], "rst": [("rst",)], "fin": [("close",)]}[end]


def ev(obj: object) -> bytes:
    """Return one event."""
    return b"data: " + (obj if isinstance(obj, bytes) else json.dumps(obj).encode()) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def tchunk(text: str, index: int = 0, finish: str | None = None, model: str = "m", **kw: object) -> dict[str, Any]:
    """Return the content of one event of a streamed completion."""
    return {
        "id": "cmpl-x",
        "object": "text_completion",
        "created": 1,
        "model": model,
        "choices": [{"text": text, "index": index, "logprobs": None, "finish_reason": finish}],
        **kw,
    }


def usage(total: int, prompt: int | None = None) -> dict[str, int]:
    """Return a usage object."""
    prompt = min(7, total) if prompt is None else prompt
    return {"prompt_tokens": prompt, "completion_tokens": total - prompt, "total_tokens": total}


def vec(text: object) -> list[float]:
    """Return the vector that stands for a text."""
    h = hashlib.sha256(json.dumps(text).encode()).digest()
    return [round(b / 255, 6) for b in h[:4]]


class App:
    """Well-behaved default.

    Every real generation carries a fresh serial number, so a repeated serial in a client response proves that it came
    from a cache.
    """

    def __init__(self, total_tokens: int = 20, latency: float = 0.0, tokens_streamed: int = 3) -> None:
        self.total, self.latency, self.streamed = total_tokens, latency, tokens_streamed
        self.serial = itertools.count(1)

    def __call__(self, req: Req) -> Ops:  # noqa: C901  one branch an endpoint
        n = next(self.serial)
        wait = [("sleep", self.latency)] if self.latency else []
        try:
            b = req.json()
        except ValueError:
            b = None
        if req.path.endswith("/models"):
            return wait + json_reply({"object": "list", "data": [{"id": "m", "object": "model"}]})
        if not isinstance(b, dict):
            return wait + json_reply({"error": {"message": "bad body", "type": "invalid_request_error"}}, 400)
        hs = [("x-request-id", f"req-{n}"), ("openai-processing-ms", "12")]
        if req.path.endswith("/embeddings"):
            inp = b.get("input")
            inp = inp if isinstance(inp, list) else [inp]
            return wait + json_reply(
                {
                    "object": "list",
                    "model": "e",
                    "usage": {"prompt_tokens": len(inp), "total_tokens": len(inp)},
                    "data": [{"object": "embedding", "index": i, "embedding": vec(t)} for i, t in enumerate(inp)],
                },
                headers=hs,
            )
        chat = "chat/" in req.path
        text, model = f"serial-{n};", b.get("model", "m")
        prompts = b.get("prompt", "")
        many = len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 1
        try:
            count = max(1, min(int(b.get("n") or 1), 32)) * many
        except (TypeError, ValueError):
            count = 1
        if b.get("stream") is True:
            pcs = []
            for t in range(self.streamed):
                for i in range(count):
                    piece = text if t == 0 else "tok "
                    c = (
                        {"index": i, "delta": {"content": piece}, "finish_reason": None}
                        if chat
                        else {"index": i, "text": piece, "logprobs": None, "finish_reason": None}
                    )
                    pcs.append(ev({"id": f"c-{n}", "model": model, "object": "chunk", "created": 1, "choices": [c]}))
            for i in range(count):
                c = (
                    {"index": i, "delta": {}, "finish_reason": "stop"}
                    if chat
                    else {"index": i, "text": "", "logprobs": None, "finish_reason": "stop"}
                )
                pcs.append(ev({"id": f"c-{n}", "model": model, "object": "chunk", "created": 1, "choices": [c]}))
            if (b.get("stream_options") or {}).get("include_usage") is True:
                pcs.append(
                    ev(
                        {
                            "id": f"c-{n}",
                            "model": model,
                            "object": "chunk",
                            "created": 1,
                            "choices": [],
                            "usage": usage(self.total),
                        }
                    )
                )
            return wait + sse_reply([*pcs, DONE], gap=0, headers=hs)
        full = text + "tok " * (self.streamed - 1)
        cs = [
            (
                {"index": i, "message": {"role": "assistant", "content": full}, "finish_reason": "stop"}
                if chat
                else {"index": i, "text": full, "logprobs": None, "finish_reason": "stop"}
            )
            for i in range(count)
        ]
        return wait + json_reply(
            {
                "id": f"c-{n}",
                "object": "text_completion",
                "created": 1,
                "model": model,
                "choices": cs,
                "usage": usage(self.total),
            },
            headers=hs,
        )


# ---------------------------------------------------------------- server
class _Conn:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cid: int) -> None:
        self.r, self.w, self.id, self.buf, self.eof = reader, writer, cid, bytearray(), False
        self.wake = asyncio.Event()
        self.pump = asyncio.ensure_future(self._pump())

    async def _pump(self) -> None:
        with contextlib.suppress(OSError):
            while b := await self.r.read(65536):
                self.buf += b
                self.wake.set()
        self.eof = True
        self.wake.set()

    async def need(self, cond: Callable[[], bool]) -> bool:
        while not cond():
            if self.eof:
                return False
            self.wake.clear()
            await self.wake.wait()
        return True

    async def read_request(self, nth: int) -> Req | None:
        if not await self.need(lambda: b"\r\n\r\n" in self.buf):
            return None
        raw, _, _ = bytes(self.buf).partition(b"\r\n\r\n")
        del self.buf[: len(raw) + 4]
        lines = raw.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        hs = [tuple(x.strip() for x in line.split(":", 1)) for line in lines[1:]]
        low = {k.lower(): v for k, v in hs}
        body = b""
        if low.get("expect", "").lower() == "100-continue":
            self.w.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in low.get("transfer-encoding", "").lower():
            while True:
                if not await self.need(lambda: b"\r\n" in self.buf):
                    return None
                size, _, _ = bytes(self.buf[:64]).partition(b"\r\n")
                del self.buf[: len(size) + 2]
                size = int(size.split(b";")[0], 16)
                if not await self.need(lambda end=size + 2: len(self.buf) >= end):
                    return None
                body += bytes(self.buf[:size])
                del self.buf[: size + 2]
                if size == 0:
                    break
        elif low.get("content-length"):
            size = int(low["content-length"])
            if not await self.need(lambda: len(self.buf) >= size):
                return None
            body = bytes(self.buf[:size])
            del self.buf[:size]
        return Req(conn_id=self.id, nth=nth, method=method, target=target, headers=hs, body=body)


class FakeUpstream:
    """The server, on a thread of its own; with `tls` it speaks https."""

    def __init__(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.port, self._ids, self.loop = port, itertools.count(1), None
        self.tls = tls
        self.reset()

    def reset(self) -> None:
        """Forget log and script."""
        self.log, self.replies, self.default, self.kill_reused = [], [], App(), False

    def script(self, *replies: Reply) -> None:
        """Answer the next requests with these replies, in order."""
        self.replies = list(replies)

    @property
    def url(self) -> str:
        """Return the address without a path."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def served(self) -> list[Req]:
        """Return the requests that got an answer."""
        return [r for r in self.log if not r.dropped]

    def wait(self, cond: Callable[[], Any], timeout: float = 5.0) -> bool:
        """Wait until a condition is true, and tell whether it is."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if cond():
                return True
            time.sleep(0.02)
        return bool(cond())

    def start(self) -> FakeUpstream:
        """Begin to serve."""
        ready = threading.Event()

        def run() -> None:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
            srv = self.loop.run_until_complete(
                asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=2**26, ssl=self.tls)
            )
            self.port = srv.sockets[0].getsockname()[1]
            ready.set()
            self.loop.run_forever()

        threading.Thread(target=run, daemon=True).start()
        ready.wait(5)
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        conn, nth = _Conn(reader, writer, next(self._ids)), 0
        try:
            while True:
                req = await conn.read_request(nth)
                if req is None:
                    break
                nth += 1
                if req.target.startswith("/__ctl/"):
                    writer.write(self._control(req))
                    await writer.drain()
                    continue
                self.log.append(req)
                if self.kill_reused and req.nth > 0:
                    req.dropped = True
                    self._rst(conn)
                    return
                rep = self.replies.pop(0) if self.replies else self.default
                if not await self._run(conn, req, rep(req) if callable(rep) else rep):
                    return
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            conn.pump.cancel()
            writer.close()

    def _rst(self, conn: _Conn) -> None:
        conn.w.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        conn.w.transport.abort()

    async def _run(self, conn: _Conn, req: Req, ops: Ops) -> bool:  # noqa: C901, PLR0911, PLR0912  one branch an op
        for op in ops:
            k = op[0]
            if conn.eof:
                req.aborted_at = time.monotonic()
                return False
            if k == "send":
                try:
                    conn.w.write(op[1])
                    await conn.w.drain()
                except ConnectionError:
                    req.aborted_at = time.monotonic()
                    return False
            elif k in ("sleep", "hold"):
                end = time.monotonic() + op[1]
                while (left := end - time.monotonic()) > 0 and not conn.eof:  # noqa: ASYNC110  bytes wake it too
                    await asyncio.sleep(min(left, 0.05))
                if conn.eof and time.monotonic() < end:
                    req.aborted_at = time.monotonic()
                    return False
            elif k == "until":
                while not op[1]() and not conn.eof:  # noqa: ASYNC110  another thread's event
                    await asyncio.sleep(0.01)
                if conn.eof:
                    req.aborted_at = time.monotonic()
                    return False
            elif k == "do":
                op[1]()
            elif k == "rst":
                await asyncio.sleep(0.05)
                self._rst(conn)
                return False
            elif k == "close":
                await asyncio.sleep(0.05)
                req.done = True
                return False
        req.done = True
        return True

    def _control(self, req: Req) -> bytes:
        if req.path.endswith("/log"):
            out = [r.public() for r in self.log]
        elif req.path.endswith("/reset"):
            self.reset()
            out = "ok"
        else:
            self.script(
                *[
                    [("send", base64.b64decode(o[1])) if o[0] == "send_b64" else tuple(o) for o in rep]
                    for rep in json.loads(req.body)["replies"]
                ]
            )
            out = "ok"
        b = json.dumps(out).encode()
        return head(200, [("Content-Type", "application/json"), ("Content-Length", len(b))]) + b


if __name__ == "__main__":
    u = FakeUpstream(int(sys.argv[1]) if len(sys.argv) > 1 else 9099).start()
    print("listening on", u.url, flush=True)  # noqa: T201  for whoever started it
    threading.Event().wait()
