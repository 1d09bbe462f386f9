"""What clients feel of an upstream that fails while another one is well, and of the only one that there is (SPEC §8).

    python tests/benchmarks/bench_failover.py [--rate 40] [--fault-seconds 8] [--rest-seconds 14] [--variants …]
                                              [--faults …] [--plot FILE.svg]

Two upstreams, each a process of its own, and one gateway. While clients go on asking, at `rate` requests a second
whatever becomes of earlier ones, one upstream is killed, frozen, slowed, and made to answer in one wrong way after the
other, each for some seconds, and is then well again until its breaker has closed. Printed are for each fault the share
of requests that failed, how much longer than in quiet times the others took, the calls that each upstream got, and how
long its breaker was open. The same with other kinds of choice, hedging and health checks; and with one deployment only.

Exits 1 when a request fails although the other upstream was well and nothing of an answer had reached the client, or
when a request to the only deployment is withheld because its breaker is open. Clients wait for 30 s. Loopback only.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any, Final

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from ailing_upstream import FAULTS, UpstreamProcess  # noqa: E402  the path is set above
from failover import SAMPLE_SECONDS, Asked, Clients, Sample, Watch, load  # noqa: E402
from failover_plot import Span, draw  # noqa: E402
from gateway import Gateway, settings  # noqa: E402
from judging import faults_in_log  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

USER: Final = "alice"
MODEL: Final = "m"
QUIET: Final = "quiet"
KILLED: Final = "killed"
FROZEN: Final = "frozen"
ALL_FAULTS: Final = (KILLED, *FAULTS, FROZEN)
ANSWERED_WRONG: Final = ("500", "401", "HTML", "garbage JSON")
SEED: Final = 20_261_130
_LEAST_REST_SECONDS: Final = 2.0
_UPSTREAMS_FAULT: Final = '"logger":"tidegate.'


@dataclass(frozen=True)
class Variant:
    """One way to configure the model, and what its first upstream goes through."""

    title: str
    model: dict[str, Any] = field(default_factory=dict)
    upstream: dict[str, Any] = field(default_factory=dict)
    upstreams: int = 2
    faults: tuple[str, ...] = (KILLED, "slow", "500", FROZEN)


VARIANTS: Final = {
    "default": Variant("default settings", faults=ALL_FAULTS),
    "least_outstanding": Variant("routing: least_outstanding", {"routing": "least_outstanding"}),
    "latency": Variant("routing: latency", {"routing": "latency"}),
    "hedging": Variant("hedge_after: 300ms", {"hedge_after": "300ms"}),
    "health": Variant(
        "health: {every: 1s, timeout: 1s}",
        upstream={"health": {"every": "1s", "timeout": "1s"}},
        faults=(KILLED, FROZEN),
    ),
    "alone": Variant("one deployment only", {"max_attempts": 1}, upstreams=1, faults=ANSWERED_WRONG),
    "fail_fast": Variant(
        "one deployment only, fail_fast",
        {"max_attempts": 1, "breaker": {"fail_fast": True}},
        upstreams=1,
        faults=ANSWERED_WRONG,
    ),
}


@dataclass
class Lived:
    """What was asked and seen while a variant was lived through; the first span is the quiet one."""

    asked: list[Asked]
    samples: list[Sample]
    spans: list[Span]
    faults: list[str]
    """Lines of the gateway's log that tell of a fault of its own, and not of an upstream's."""

    def within(self, span: Span) -> list[Asked]:
        """Return the requests that were under way while something ailed."""
        return [each for each in self.asked if each.began < span.end and each.began + each.took >= span.begin]

    def calls(self, span: Span, upstream: str) -> int:
        """Return the calls that an upstream got meanwhile, as far as samples tell."""
        inside = [each.calls[upstream] for each in self.samples if span.begin <= each.at < span.end]
        return inside[-1] - inside[0] if inside else 0

    def open_share(self, span: Span, upstream: str) -> float:
        """Return for which part of the time a breaker was not closed."""
        inside = [each.states.get(upstream, "closed") for each in self.samples if span.begin <= each.at < span.end]
        return sum(state != "closed" for state in inside) / len(inside) if inside else 0.0


async def live_through(variant: Variant, folder: Path, chosen: argparse.Namespace) -> Lived:
    """Start everything anew and let one fault follow the other."""
    with ExitStack() as running:
        upstreams = [running.enter_context(UpstreamProcess(folder / name, name)) for name in "ab"[: variant.upstreams]]
        gateway = running.enter_context(Gateway(folder / "gateway", configuration(variant, upstreams)))
        clients = Clients(gateway.base_url, model=MODEL, user=USER)
        watch = Watch(gateway.admin_url, upstreams, model=MODEL)
        spans: list[Span] = []
        async with watch.looking(), load(clients, rate=chosen.rate, seed=SEED):
            for fault in (QUIET, *(each for each in variant.faults if each in chosen.faults)):
                spans.append(await suffer(fault, upstreams[0], seconds=chosen.fault_seconds))
                await rest(spans[-1], clients, watch, seconds=chosen.rest_seconds)
            await watch.look()
        faults = [line for line in faults_in_log(gateway) if _UPSTREAMS_FAULT not in line]
        return Lived(clients.asked, watch.samples, spans, faults)


def configuration(variant: Variant, upstreams: Sequence[UpstreamProcess]) -> dict[str, Any]:
    """Write the gateway's settings: the default ones but for what the variant says."""
    return settings(
        "",
        users={USER: {}},
        models={MODEL: {"deployments": [{"upstream": each.name} for each in upstreams], **variant.model}},
        upstreams={
            each.name: {"kind": "openai", "base_url": f"{each.url}/v1", **variant.upstream} for each in upstreams
        },
    )


async def suffer(fault: str, upstream: UpstreamProcess, *, seconds: float) -> Span:
    """Let an upstream suffer from a fault for a while; return when."""
    begin = time.monotonic()
    if fault == KILLED:
        await asyncio.to_thread(upstream.kill)
    elif fault == FROZEN:
        upstream.freeze()
    elif fault != QUIET:
        upstream.fall_ill(fault)
    await asyncio.sleep(seconds)
    end = time.monotonic()
    if fault == KILLED:
        await asyncio.to_thread(upstream.start)
    elif fault == FROZEN:
        upstream.thaw()
    upstream.fall_ill(None)
    return Span(fault, begin, end)


async def rest(span: Span, clients: Clients, watch: Watch, *, seconds: float) -> None:
    """Wait until the breaker of the first upstream is closed, not longer than so; and for who felt the fault."""
    until = time.monotonic() + seconds
    await asyncio.sleep(min(_LEAST_REST_SECONDS, seconds))
    while (watch.state("a") != "closed" and time.monotonic() < until) or clients.wait_since_before(span.end):  # noqa: ASYNC110  seen now and then
        await asyncio.sleep(SAMPLE_SECONDS)


def violations(variant: Variant, lived: Lived) -> list[str]:
    """Say what should not have happened."""
    told = [f"{variant.title}: {line:.300}" for line in lived.faults[:5]]
    if variant.upstreams > 1:
        failed = [each for each in lived.asked if each.has_failed and not each.has_begun]
        reasons = Counter(f"{'streams' if each.is_stream else 'whole answers'} failed: {each.error}" for each in failed)
        return told + [f"{variant.title}: {count} {reason}" for reason, count in reasons.items()]
    calls = lived.samples[-1].calls["a"]
    if variant.model.get("breaker") is None and calls != len(lived.asked):
        told.append(f"{variant.title}: {len(lived.asked)} requests made {calls} calls")
    return told


def table(variant: Variant, lived: Lived) -> list[str]:
    """Return what was felt, a line for each fault."""
    names = "ab"[: variant.upstreams]
    calls = "".join(f"{'calls ' + name:>9}" for name in names)
    lines = [
        f"{variant.title}",
        f"{'':24}{'requests':>9}{'failed':>8}{'begun':>7}{'p50':>8}{'p99':>9}{calls}{'open':>7}",
    ]
    is_told_failures = variant.upstreams == 1  # then there is hardly anything else
    quiet = times(lived.within(lived.spans[0]))
    for span in lived.spans:
        inside = lived.within(span)
        failed = [each for each in inside if each.has_failed]
        begun = sum(each.has_begun for each in failed)
        p50, p99 = (at - before for at, before in zip(times(inside, of_failed=is_told_failures), quiet, strict=True))
        if span.name == QUIET:
            p50, p99 = quiet
        told = "".join(f"{lived.calls(span, name):>9}" for name in names)
        lines.append(
            f"{span.name:24}{len(inside):>9}{100 * len(failed) / len(inside):>7.1f}%{begun:>7}"
            f"{1000 * p50:>+8.0f}{1000 * p99:>+9.0f}{told}{100 * lived.open_share(span, 'a'):>6.0f}%"
        )
    return lines


def times(asked: Sequence[Asked], *, of_failed: bool = False) -> tuple[float, float]:
    """Return the median and the 99th percentile of how long good answers took, or refusals, in seconds."""
    took = [each.took for each in asked if each.has_failed is of_failed]
    if len(took) < 2:
        return (nan, nan)
    cuts = quantiles(took, n=100, method="inclusive")
    return cuts[49], cuts[98]


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rate", type=float, default=40.0, help="requests a second")
    parser.add_argument("--fault-seconds", type=float, default=8.0, help="how long each fault lasts")
    parser.add_argument("--rest-seconds", type=float, default=14.0, help="longest wait for the breaker to close")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--faults", nargs="+", choices=ALL_FAULTS, default=list(ALL_FAULTS))
    parser.add_argument("--plot", type=Path, help="where to draw the first variant (SVG)")
    return parser.parse_args()


def main() -> int:
    """Live through every variant, print what was felt, and return the exit status."""
    chosen = read_arguments()
    print(
        "p50 and p99: milliseconds until the end of good answers (with one deployment: of refusals), of a fault those"
    )
    print("added to quiet times;")
    print(
        "begun: failed when the client had got a part of its stream; open: part of the time a's breaker was not closed"
    )
    wrong: list[str] = []
    for position, name in enumerate(chosen.variants):
        variant = VARIANTS[name]
        with tempfile.TemporaryDirectory() as folder:
            lived = asyncio.run(live_through(variant, Path(folder), chosen))
        print("", *table(variant, lived), sep="\n", flush=True)
        wrong += violations(variant, lived)
        if chosen.plot is not None and position == 0:
            chosen.plot.write_text(draw(lived.samples, lived.spans[1:], "ab"[: variant.upstreams]))
    print("", *(f"VIOLATION {each}" for each in wrong), f"{len(wrong)} violations", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
