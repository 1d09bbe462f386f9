"""What deciding on a request costs, part by part, beside msgspec reading the same body.

    python tests/benchmarks/bench_decide.py [--rounds 15]

Parts are called as the gateway calls them, each on what those before it made of the body; `all` is everything from
bytes to a decision in one go, and `the rest` what it takes beyond the parts: the values that hold them, and the calls
between. Times are the least of interleaved rounds, in microseconds; the last column is the ratio to msgspec's decoding
alone in the same run. No socket, no store; well under a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import msgspec  # noqa: E402  the path is set above

from policies.advisories import advise  # noqa: E402
from policies.cacheability import plan_cache  # noqa: E402
from policies.catalog import Deployment, ModelSettings, Price  # noqa: E402
from policies.charges import close_ceiling, worst_case  # noqa: E402
from policies.decision import decide  # noqa: E402
from policies.limits import bind_limits, needs_ceiling  # noqa: E402
from policies.parameters import apply_rules  # noqa: E402
from policies.policy import Limit, Policy, Rule  # noqa: E402
from policies.principals import AppliedPolicy, Principal  # noqa: E402
from policies.requests.asked import AskedRequest, Dialect, Endpoint  # noqa: E402
from policies.requests.body import decode_body  # noqa: E402
from policies.requests.dialects import check_model_bounds, read_request  # noqa: E402
from policies.routing import order_candidates  # noqa: E402
from policies.rulebook import Rulebook  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PRINCIPAL = Principal("org", "proj", "alice", "key", policies=(AppliedPolicy("project", "default"),))
LARGE = 1_000_000_000
ALONE, ALL = "msgspec alone", "all"
RULEBOOK = Rulebook(
    {
        "m": ModelSettings(
            deployments=(Deployment(upstream="only"),), context_window=1_000_000, price=Price(input=1.5, output=2.0)
        )
    },
    {
        "default": Policy(
            parameters={
                "n": Rule(max=4, on_violation="clamp"),
                "max_tokens": Rule(max=1024, default=256, on_violation="clamp"),
                "candidates": Rule(max=16),
            },
            limits=(
                Limit(of="requests", limit=LARGE, per="minute", by=("user",)),
                Limit(of="tokens", limit=LARGE, per="day", by=("user",)),
                Limit(of="concurrency", limit=LARGE, by=("key",)),
            ),
        )
    },
)
SAMPLING = {"model": "m", "temperature": 0, "user": "customer-17"}
TYPICAL = {**SAMPLING, "max_tokens": 200, "n": 1, "stop": ["\n\n"]}
WORDS = "Tell me, in a few words, what the weather was like. "
CODE = 'if name == "weather":\n    print("as ever")\n'
LONG = 256 * 1024


def chat(*contents: str) -> tuple[Endpoint, dict[str, Any]]:
    """Return a chat of some messages, the first of them the system's."""
    roles = ("system", *["user"] * (len(contents) - 1))
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
    return Endpoint.CHAT, {**TYPICAL, "messages": messages}


def completion(prompt: str | list[int]) -> tuple[Endpoint, dict[str, Any]]:
    """Return a completion of a prompt."""
    return Endpoint.COMPLETIONS, {**TYPICAL, "prompt": prompt}


BODIES: Mapping[str, tuple[Endpoint, dict[str, Any]]] = {
    "completion, 1 KB": completion(WORDS * 17),
    "chat, 1 KB": chat(*[WORDS * 5] * 3),
    "response, 1 KB": (
        Endpoint.RESPONSES,
        {**SAMPLING, "max_output_tokens": 200, "store": False, "instructions": WORDS, "input": WORDS * 16},
    ),
    "embedding, 1 KB": (Endpoint.EMBEDDINGS, {"model": "m", "user": "customer-17", "input": WORDS * 18}),
    "completion, 256 KB": completion((WORDS * LONG)[:LONG]),
    "completion, 256 KB, not ASCII": completion("Köln und Zürich, " * (LONG // 19)),
    "completion, 256 KB of token ids": completion(list(range(10_000, 52_000))),
    "chat, 256 KB": chat(WORDS, (WORDS * LONG)[:LONG]),
    "chat, 256 KB of lines and quotes": chat(WORDS, CODE * (LONG // len(CODE))),
}


def read(endpoint: Endpoint, fields: Mapping[str, Any]) -> AskedRequest:
    """Read members as the handler does."""
    return read_request(endpoint=endpoint, dialect=Dialect.OPENAI, fields=fields, path_model=None, api_version=None)


def parts_of(endpoint: Endpoint, raw: bytes) -> dict[str, Callable[[], object]]:
    """Return every part as a call of its own, on what the parts before it make of a body."""
    alone = msgspec.json.Decoder(dict[str, Any]).decode
    fields = decode_body(raw)
    asked = read(endpoint, fields)
    decision = decide(asked, PRINCIPAL, RULEBOOK, cache_control=None, draw=0.0)
    policy, model, effective = decision.policy, decision.model, decision.effective
    worst, deployments = decision.worst_case, decision.model.settings.deployments

    def look_up() -> None:
        RULEBOOK.policy_for(PRINCIPAL)
        RULEBOOK.model(asked.model)
        PRINCIPAL.may_use(model.name)
        policy.refusing_model(model.name)
        check_model_bounds(asked, model)

    return {
        ALONE: lambda: alone(raw),
        "decode": lambda: decode_body(raw),
        "validate": lambda: read(endpoint, fields),
        "model": look_up,
        "policy": lambda: apply_rules(asked, policy, model, str),
        "input size": lambda: effective.view.input_size(effective.fields),
        "ceiling": lambda: needs_ceiling(policy.limits, model) and close_ceiling(effective, model),
        "charge": lambda: worst_case(effective, model),
        "advisories": lambda: advise(effective),
        "limits": lambda: bind_limits(policy.limits, PRINCIPAL, model, asked.view.end_user, worst),
        "cache key": lambda: plan_cache(effective, model, PRINCIPAL, policy.cache, None),
        "routing": lambda: order_candidates(deployments, 0.0),
        ALL: lambda: decide(read(endpoint, decode_body(raw)), PRINCIPAL, RULEBOOK, cache_control=None, draw=0.0),
    }


def measure(parts: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return what one call of each part takes, in microseconds: the least of the rounds."""
    least = dict.fromkeys(parts, float("inf"))
    counts = {name: _calls_in_a_round(part) for name, part in parts.items()}
    for _ in range(rounds):
        for name, part in parts.items():
            least[name] = min(least[name], _time(part, counts[name]))
    return least


def _calls_in_a_round(part: Callable[[], object]) -> int:
    """Return how many calls take about five milliseconds."""
    return max(1, int(5_000 / max(_time(part, 3), 0.1)))


def _time(part: Callable[[], object], count: int) -> float:
    started = perf_counter_ns()
    for _ in range(count):
        part()
    return (perf_counter_ns() - started) / count / 1_000


def report(name: str, size: int, took: Mapping[str, float]) -> str:
    """Return a body's table: every part, what is left, and all of it."""
    everything, alone = took[ALL], took[ALONE]
    parts = {part: took[part] for part in took if part not in (ALONE, ALL)}
    rows = {**parts, "the rest": everything - sum(parts.values()), ALL: everything}
    return "\n".join(
        [
            f"{name} ({size} bytes)",
            f"  {ALONE:<14}{alone:10.1f} µs{'':8}{1:9.2f}",
            *(f"  {part:<14}{each:10.1f} µs{each / everything:8.0%}{each / alone:9.2f}" for part, each in rows.items()),
        ]
    )


def main() -> None:
    """Measure every body and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    for name, (endpoint, fields) in BODIES.items():
        raw = json.dumps(fields, ensure_ascii=False).encode()
        print(report(name, len(raw), measure(parts_of(endpoint, raw), rounds)))


if __name__ == "__main__":
    main()
