"""A stream that lasts for minutes and is silent most of the time comes through whole, with heartbeats and without.

    python tests/benchmarks/long_stream.py [--pauses 36] [--pause 10] [--heartbeat 3s]

Two gateways with the time-outs that they have by default stand before one upstream, which writes an event after each
pause: one gateway writes comments meanwhile, the other does not. Each passes a stream of which nothing is kept, and one
that others may join and the cache keeps, all at once. Prints when the last event came and how many comments there were;
exits 1 unless what came, less the comments, is what was sent, byte for byte. Ends a few seconds after the streams.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from fake_upstream import DONE, FakeUpstream, ev, sse_reply, tchunk  # noqa: E402  the path is set above
from gateway import Gateway, bearer, settings  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS: Final = {"passed on": 1, "kept for the cache": 0}
"""What is done with a stream, by the temperature that is asked for."""
SPARE_SECONDS: Final = 60.0
_COMMENT: Final = re.compile(rb": keep-alive\n\n")


class Came(NamedTuple):
    """What one client got, and when the last of it came."""

    body: bytes
    seconds: float

    @property
    def comments(self) -> int:
        """How many comments of the gateway's own there are."""
        return len(_COMMENT.findall(self.body))

    @property
    def without_comments(self) -> bytes:
        """What the upstream sent of it."""
        return _COMMENT.sub(b"", self.body)


def pieces(pauses: int, pause_seconds: float) -> Sequence[bytes | float]:
    """Return what the upstream does: events, and pauses between them."""
    between = [each for number in range(pauses) for each in (ev(tchunk(f" {number}")), pause_seconds)]
    return [*between, ev(tchunk(" end", finish="stop")), DONE]


def ask(base_url: str, temperature: int, *, longest_seconds: float) -> Came:
    """Ask for a stream, and read it to its end."""
    host = base_url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=longest_seconds)
    body = json.dumps({"model": "m", "prompt": "Say when.", "stream": True, "temperature": temperature})
    begun = time.monotonic()
    connection.request("POST", "/v1/completions", body, dict(bearer("alice")))
    answer = connection.getresponse()
    read = answer.read()
    connection.close()
    return Came(read, time.monotonic() - begun)


def run(folder: Path, *, pauses: int, pause_seconds: float, heartbeat: str) -> dict[str, Came]:
    """Let all the streams pass, and return what came by what was done with it."""
    upstream = FakeUpstream().start()
    upstream.default = lambda _: sse_reply(pieces(pauses, pause_seconds), gap=0)
    plain = settings(f"{upstream.url}/v1", users={"alice": {}})
    longest_seconds = pauses * pause_seconds + SPARE_SECONDS
    with (
        Gateway(folder / "without", plain) as without,
        Gateway(folder / "with", {**plain, "heartbeat": heartbeat}) as with_heartbeats,
        ThreadPoolExecutor() as pool,
    ):
        gateways = {"without heartbeats": without, f"a heartbeat every {heartbeat}": with_heartbeats}
        asking = {
            f"{name}, {kind}": pool.submit(ask, gateway.base_url, temperature, longest_seconds=longest_seconds)
            for name, gateway in gateways.items()
            for kind, temperature in KINDS.items()
        }
        return {name: each.result() for name, each in asking.items()}


def main() -> int:
    """Let the streams pass, print what came, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pauses", type=int, default=36)
    parser.add_argument("--pause", type=float, default=10.0, help="seconds")
    parser.add_argument("--heartbeat", default="3s", help="of the gateway that writes some")
    chosen = parser.parse_args()
    sent = b"".join(each for each in pieces(chosen.pauses, chosen.pause) if isinstance(each, bytes))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        streams = run(Path(folder), pauses=chosen.pauses, pause_seconds=chosen.pause, heartbeat=chosen.heartbeat)
    for name, came in streams.items():
        verdict = "as it was sent" if came.without_comments == sent else f"NOT as it was sent: {came.body!r}"
        print(f"{name:45}{came.seconds:8.1f} s{came.comments:6} comments   {verdict}")
    return 0 if all(came.without_comments == sent for came in streams.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
