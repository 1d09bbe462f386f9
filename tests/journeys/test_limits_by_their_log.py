"""Two gateways, one store, many clients: afterwards the store's log is read by an oracle that finds nothing wrong."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING, Any

from fake_upstream import App, json_reply
from gateway import Gateway, Settings, bearer, settings
from harness import Raw, call
from log_oracle import Admit, End, LogOracle
from store_log import Promised, Tap

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_upstream import FakeUpstream, Ops, Req
    from stores import StoreServer

    StartGateway = Callable[[Settings], Gateway]

REQUESTS = int(os.environ.get("TIDEGATE_LOG_REQUESTS", "500"))
AT_ONCE = 16
LIMITS: dict[str, tuple[dict[str, Any], Promised]] = {
    "rate": ({"of": "requests", "limit": 40, "per": "second", "burst": 9}, Promised(9, 40, 1_000)),
    "flow": ({"of": "tokens", "limit": 3_000, "per": "700ms", "burst": 900}, Promised(900, 3_000, 700)),
    "day": ({"of": "tokens", "limit": 10_000_000, "per": "day"}, Promised(10_000_000, 0, 0)),
    "money": ({"of": "usd", "limit": 0.05, "per": "3s", "burst": 0.006}, Promised(6_000, 50_000, 3_000)),
    "places": (
        {"of": "concurrency", "limit": 2, "on_exceed": "wait", "max_wait": "500ms"},
        Promised(2, 0, 0),
    ),
    "after": ({"of": "output_tokens", "limit": 400, "per": "second", "hold": "none"}, Promised(400, 400, 1_000)),
    "watched": ({"of": "completions", "limit": 5, "per": "second", "mode": "observe"}, Promised(5, 5, 1_000)),
}
USERS = {
    "alice": ["rate", "flow", "day", "watched"],
    "bob": ["places", "money", "after", "day"],
    "carol": ["rate", "places", "flow"],
}


class Unsteady:
    """Answers as `App` does, after a while, and fails now and then."""

    def __init__(self, chance: Random) -> None:
        self._app = App(latency=0.01, total_tokens=60)
        self._chance = chance

    def __call__(self, request: Req) -> Ops:
        if self._chance.random() < 0.05:
            return json_reply({"error": {"message": "not today", "type": "server_error"}}, 500)
        return self._app(request)


def promised(key: str) -> Promised | None:
    """Return what the settings of the limit promise that counts at a key."""
    return next((promise for name, (_, promise) in LIMITS.items() if f":{name}:" in key), None)


def ask(base_url: str, chance: Random) -> tuple[int, str | None]:
    """Send one request of some kind, and return its status and id; 0 if its client left."""
    body = {"model": "m", "prompt": f"{chance.randrange(40)}", "max_tokens": chance.randint(1, 60)}
    body |= {"n": chance.choice((1, 1, 1, 3)), "temperature": chance.choice((0, 1)), "stream": chance.random() < 0.3}
    headers = bearer(chance.choice(list(USERS)))
    if chance.random() < 0.1:
        connection = Raw(base_url, 15)
        connection.request("POST", "/v1/completions", headers, json.dumps(body).encode())
        connection.close()
        return 0, None
    answer = call(base_url, "POST", "/v1/completions", headers, json.dumps(body).encode(), timeout=30)
    return answer.status, answer.header("x-request-id")


async def test_nothing_in_the_log_of_two_gateways_was_wrong(
    start_gateway: StartGateway, upstream: FakeUpstream, valkey: StoreServer
) -> None:
    chance = Random(4)  # noqa: S311  a run that can be repeated
    upstream.default = Unsteady(chance)
    policies = {
        user: {"limits": [{**LIMITS[name][0], "name": name, "by": ["user"]} for name in names]}
        for user, names in USERS.items()
    }
    models = {"m": {"price": {"input": 3.0, "output": 9.0}}}
    async with Tap(valkey) as tap:
        made = settings(f"{upstream.url}/v1", users=policies, models=models, state=tap.url)
        gateways = [await asyncio.to_thread(start_gateway, made) for _ in range(2)]
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(AT_ONCE) as clients:
            asked = [(gateways[number % 2].base_url, Random(number)) for number in range(REQUESTS)]  # noqa: S311
            answers = await asyncio.gather(*(loop.run_in_executor(clients, ask, *each) for each in asked))
        for gateway in gateways:
            await asyncio.to_thread(gateway.terminate)
        await tap.last_words()
    log = tap.log(promised)
    statuses = Counter(status for status, _ in answers)
    verdicts = Counter(entry.verdict for entry in log if isinstance(entry, Admit))
    print(dict(statuses), dict(verdicts), len(log), "entries")  # noqa: T201  with pytest -s
    assert LogOracle().read(log) == []
    told_no = {entry.request for entry in log if isinstance(entry, Admit) and entry.verdict == "refused"}
    for_hits = {entry.request for entry in log if isinstance(entry, Admit) and entry.verdict == "hit"}
    told_no |= {entry.request for entry in log if isinstance(entry, End) and entry.how == "release"} & for_hits
    admitted = {entry.request for entry in log if isinstance(entry, Admit) and entry.verdict == "admitted"}
    released = {entry.request for entry in log if isinstance(entry, End) and entry.how == "release"}
    assert not ({request for status, request in answers if status == 429} & admitted) - released
    if not statuses[503]:  # where the machine stalls, a store that does not answer in time counts as away
        assert statuses[429] <= len(told_no) <= statuses[429] + statuses[0]  # 0: whoever left was told nothing
    assert {"admitted", "refused", "hit", "waiting"} <= set(verdicts)
