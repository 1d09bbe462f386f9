"""What clients feel of a store that dies or hangs: time to an answer before, during and after (SPEC §10).

    python tests/benchmarks/bench_outage.py

One client asks one after the other while the store is killed, brought back, frozen for some seconds, and thawed. The
scripted upstream answers at once, so that what is left is the gateway. Printed are the median and the longest answer of
each phase, the first answer after the store went, and what was answered. Loopback only; ends by itself within a minute.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from fake_upstream import FakeUpstream  # noqa: E402  the path is set above
from gateway import Gateway, bearer, settings  # noqa: E402
from harness import call, uniq  # noqa: E402
from stores import StoreServer  # noqa: E402

PHASE_SECONDS = 3.0
POLICIES = {
    name: {
        "limits": [{"of": "tokens", "limit": 10**9, "per": "day", "by": ["user"], "on_store_failure": name}],
    }
    for name in ("local", "allow", "deny")
}


def ask(gateway: Gateway, user: str) -> tuple[int, float]:
    """Return the status and the milliseconds of one completion."""
    body = json.dumps({"model": "m", "prompt": uniq(), "temperature": 0, "max_tokens": 8}).encode()
    started = time.perf_counter()
    answer = call(gateway.base_url, "POST", "/v1/completions", bearer(user), body)
    return answer.status, (time.perf_counter() - started) * 1000


def tell(gateway: Gateway, user: str, phase: str) -> None:
    """Ask for a while and print what was felt."""
    times: list[float] = []
    statuses: Counter[int] = Counter()
    end = time.monotonic() + PHASE_SECONDS
    while time.monotonic() < end:
        status, milliseconds = ask(gateway, user)
        times.append(milliseconds)
        statuses[status] += 1
    answered = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    print(f"{user:6} {phase:14} {median(times):8.2f} {times[0]:8.2f} {max(times):8.2f}   {answered}")


def main() -> None:
    """Run every phase for every policy, each with a store and a gateway of its own."""
    upstream = FakeUpstream().start()
    print(f"{'policy':6} {'store':14} {'median':>8} {'first':>8} {'longest':>8}   answered (times in ms)")
    for user in POLICIES:
        with tempfile.TemporaryDirectory() as folder, StoreServer(port=0, keeps_data=True) as store:
            made = settings(f"{upstream.url}/v1", users=POLICIES, state=store.url)
            with Gateway(Path(folder), made) as gateway:
                tell(gateway, user, "there")
                store.kill()
                tell(gateway, user, "killed")
                store.start()
                tell(gateway, user, "brought back")
                store.freeze()
                tell(gateway, user, "frozen")
                store.thaw()
                tell(gateway, user, "thawed")


if __name__ == "__main__":
    main()
