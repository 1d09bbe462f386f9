"""Random requests through a running gateway, each judged by the oracle: one round is one configuration.

`run_round` sends requests that could be right, `fire` sends what `fuzzing` makes of them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from fake_upstream import FakeUpstream
from fuzzing import BODY_BYTES, DECOMPRESSED_BYTES, make_salvo
from gateway import Gateway
from oracle import Oracle, Received
from random_requests import ALIASES, ENVIRON, MODELS, make_request, make_world
from swarm import Answer, Connection, Echo, ask_all, echo_in, request_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fuzzing import Shot
    from oracle import Asked
    from random_requests import World

CONNECTIONS = 8
NO_ANSWER = Answer(0, {}, b"")
"""Stands for a connection that was closed without an answer."""
_KEPT = 200
"""So many complaints are kept; a gateway with more of them needs no more examples."""


@dataclass
class Findings:
    """What rounds have shown: complaints with the request they are about, and counts for people to read."""

    complaints: list[tuple[str, Asked, Answer]] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    """Kinds of rules that spoke."""
    classes: Counter[str] = field(default_factory=Counter)
    """Endpoints, or kinds of spoiled requests, with what became of them."""
    faults: list[str] = field(default_factory=list)
    """What was wrong beyond single requests."""

    @property
    def asked(self) -> int:
        """How many requests were judged."""
        return self.statuses.total()

    def complain(self, texts: list[str], asked: Asked, answer: Answer) -> None:
        """Keep what was wrong with an answer."""
        if len(self.complaints) < _KEPT:
            self.complaints += [(text, asked, answer) for text in texts]

    def __str__(self) -> str:
        told = [*(f"{text}\n  {asked}\n  {answer}" for text, asked, answer in self.complaints[:5]), *self.faults[:5]]
        return "\n".join([f"{len(self.complaints)} complaints about {self.asked} requests", *told])


@dataclass
class Round:
    """One gateway with one random configuration, before an upstream that tells what it was sent."""

    random: Random
    findings: Findings
    world: World
    upstream: FakeUpstream
    echo: Echo
    oracle: Oracle = field(default_factory=lambda: Oracle(MODELS, ALIASES))
    asked: int = 0
    forwarded: int = 0
    recorded: dict[str, tuple[Asked, Received, Answer]] = field(default_factory=dict)
    """What was forwarded, by request id, until its usage record is judged as well."""

    def judge(self, asked: Asked, answer: Answer, *, expects_service: bool) -> str:
        """Count an answer and keep what is wrong with it; return its status in words."""
        path, body = echo_in(answer.body)
        received = Received(answer.status, answer.headers, answer.body, path, body)
        self.asked += 1
        self.forwarded += path is not None
        if path is not None and expects_service:
            self.recorded[answer.headers["x-request-id"]] = (asked, received, answer)
        self.findings.complain(self.oracle.judge(asked, received, expects_service=expects_service), asked, answer)
        return f"{answer.status} {code_in(answer)}".rstrip()

    def judge_records(self, gateway: Gateway) -> None:
        """Hold the usage records against the answers."""
        records = {each["request_id"]: each for each in gateway.wait_for_records(self.asked)}
        for request_id, (asked, received, answer) in self.recorded.items():
            complaints = self.oracle.judge_record(asked, received, records[request_id])
            self.findings.complain(complaints, asked, answer)

    def close(self, gateway: Gateway) -> None:
        """Look at what no single answer shows."""
        self.findings.kinds.update(self.oracle.kinds)
        self.findings.faults += faults_in_log(gateway)
        if self.echo.count != self.forwarded:
            told = f"the upstream was asked {self.echo.count} times, {self.forwarded} answers are its own"
            self.findings.faults.append(told)


def _open_round(seed: int, findings: Findings, *, keys: int, **more: object) -> Round:
    random, echo, upstream = Random(seed), Echo(), FakeUpstream()  # noqa: S311  a seed is the point
    upstream.default, upstream.log = echo, deque(maxlen=100)
    upstream.start()
    return Round(random, findings, make_world(random, f"{upstream.url}/v1", keys=keys, **more), upstream, echo)


def run_round(folder: Path, seed: int, requests: int, findings: Findings, *, keys: int = 60) -> None:
    """Start a gateway with a random configuration, ask it so many random requests, and add to the findings."""
    one = _open_round(seed, findings, keys=keys)

    async def ask(connection: Connection, asked: Asked) -> None:
        answers = await connection.ask(request_bytes(asked.path, asked.headers, asked.body))
        answer = answers[0] if answers else NO_ANSWER
        findings.statuses[one.judge(asked, answer, expects_service=True)] += 1
        findings.classes[f"{asked.endpoint}: {answer.status}"] += 1

    def make_requests() -> Iterator[Asked]:
        for _ in range(requests):
            yield make_request(one.random, one.random.choice(one.world.members))

    with Gateway(folder, one.world.settings, ENVIRON) as gateway:
        asyncio.run(ask_all(gateway.base_url, make_requests(), ask, connections=CONNECTIONS))
        one.judge_records(gateway)
        one.close(gateway)


def fire(folder: Path, seed: int, bodies: int, findings: Findings, *, workers: int = 1, connections: int = 16) -> None:
    """Start a gateway with a random configuration, send it so many spoiled requests, and add to the findings."""
    bounds = {"body_bytes": BODY_BYTES, "decompressed_body_bytes": DECOMPRESSED_BYTES, "body_seconds": 1.0}
    one = _open_round(seed, findings, keys=40, workers=workers, bounds=bounds)

    async def ask(connection: Connection, salvo: list[Shot]) -> None:
        is_kept, wires = connection.is_open, [shot.wire for shot in salvo]
        answers = await connection.ask(*wires)
        if not answers and is_kept:  # closed meanwhile, as a server may (RFC 9112 §9.3.1)
            answers = await connection.ask(*wires)
        if not all(shot.is_framed for shot in salvo):
            connection.close()
        for shot, answer in zip(salvo, answers, strict=False):
            _judge_shot(one, shot, answer, is_right=all(each.is_right for each in salvo))
        for shot in salvo[len(answers) :]:  # sent behind one that ended the connection
            findings.statuses["closed"] += 1
            if shot.is_framed and len(salvo) == 1:
                findings.complain(["no answer"], shot.asked, NO_ANSWER)

    def make_salvos() -> Iterator[list[Shot]]:
        made = 0
        while made < bodies:
            salvo = make_salvo(one.random, one.world)
            made += len(salvo)
            yield salvo

    with Gateway(folder, one.world.settings, ENVIRON) as gateway:
        asyncio.run(ask_all(gateway.base_url, make_salvos(), ask, connections=connections))
        one.close(gateway)


def _judge_shot(one: Round, shot: Shot, answer: Answer, *, is_right: bool) -> None:
    status = one.judge(shot.asked, answer, expects_service=is_right)
    one.findings.statuses[status] += 1
    one.findings.classes[f"{shot.kind}: {answer.status}"] += 1


def code_in(answer: Answer) -> str:
    """Return an error's code, for counting."""
    try:
        return json.loads(answer.body)["error"]["code"] or ""
    except (ValueError, KeyError, TypeError):
        return ""


def faults_in_log(gateway: Gateway) -> list[str]:
    """Return the log's lines that tell of a fault of the gateway's own."""
    with gateway.log_path.open(errors="replace") as log:
        return [line for line in log if "Traceback" in line or '"level":"error"' in line]
