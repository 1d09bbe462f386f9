"""Advice on configurations that can be used: what is told, in full, and that ordinary ones draw none."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from proxy.config import Configuration
from proxy.config_advice import advise
from proxy.config_file import load
from proxy.demo.configuration import demo_configuration

ROOT = Path(__file__).parents[2]
SOUND: dict[str, Any] = {
    "upstreams": {"u": {"kind": "openai", "base_url": "http://u"}},
    "models": {"m": {"deployments": [{"upstream": "u"}]}},
    "policies": {"p": {}},
    "projects": [{"id": "proj", "policy": "p"}],
    "keys": [{"id": "key", "project": "proj", "user": "alice", "sha256": "ab" * 32}],
}
PRICED: dict[str, Any] = {"deployments": [{"upstream": "u"}], "price": {"input": 1, "output": 2}}
"""A dollar for a million input tokens, so a micro-dollar each."""


def readmes() -> str:
    block, *_ = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return str(block.replace("sha256: …", f"sha256: {'a' * 64}"))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(readmes(), id="the README's"),
        pytest.param((ROOT / "deploy/tidegate.example.yaml").read_text("utf-8"), id="the example"),
    ],
)
def test_nothing_is_said_of_what_people_begin_with(text: str, tmp_path: Path) -> None:
    for name in set(re.findall(r"file:([\w./-]+\w)", text)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("secret")
    (tmp_path / "tidegate.yaml").write_text(text)
    environ = dict.fromkeys(re.findall(r"env:(\w+)", text), "secret")
    assert advise(load(tmp_path / "tidegate.yaml", environ)) == []


def test_nothing_is_said_of_the_demo(tmp_path: Path) -> None:
    demo = demo_configuration(
        base_url="http://127.0.0.1:1/v1", key="k", listen="127.0.0.1:0", admin_listen="127.0.0.1:0", data_dir=tmp_path
    )
    assert advise(demo) == []


def test_nothing_is_said_of_a_sound_configuration() -> None:
    assert advise(Configuration.model_validate(SOUND)) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"state": "redis://:hidden@h"}, "cached answers share the state store", id="one store for both"),
        pytest.param({"models": {}}, "models is empty", id="no models"),
        pytest.param({"keys": []}, "keys is empty", id="no keys"),
        pytest.param({"policies": {"p": {}, "q": {}}}, "policies.q applies to nobody", id="a policy for nobody"),
        pytest.param(
            {"workers": 3, "upstreams": {"u": {**SOUND["upstreams"]["u"], "concurrency": 2}}},
            "upstreams.u.concurrency is 2, and each of the 3 workers has one place",
            id="fewer places than workers",
        ),
        pytest.param(
            {"models": {"m": {**SOUND["models"]["m"], "hedge_after": "1s"}}},
            "models.m.hedge_after does nothing",
            id="nobody to hedge with",
        ),
        pytest.param(
            {"models": {"m": {"deployments": [{"upstream": "u"}] * 2, "hedge_after": "1s", "max_attempts": 1}}},
            "models.m.hedge_after does nothing: max_attempts is 1",
            id="no attempt is left for a hedge",
        ),
        pytest.param(
            {"upstreams": {"u": {**SOUND["upstreams"]["u"], "queue": {"length": 5}}}},
            "upstreams.u.queue does nothing: without concurrency",
            id="a line where nobody waits",
        ),
        pytest.param(
            {"models": {"m": {**SOUND["models"]["m"], "breaker": {"open_for": "3m"}}}},
            "models.m.breaker.open_for is not obeyed: longest_open is shorter (120 s)",
            id="a breaker that opens for longer than it may, which by default is two minutes",
        ),
        pytest.param(
            {"models": {"m": {**SOUND["models"]["m"], "auth": "passthrough", "shadow": {"upstream": "u"}}}},
            "models.m sends the client's own credential",
            id="a shadow that is never sent",
        ),
        pytest.param(
            {"upstreams": {**SOUND["upstreams"], "v": SOUND["upstreams"]["u"]}},
            "upstreams.v is used by no model",
            id="an upstream for no model",
        ),
    ],
)
def test_what_is_odd_is_said(change: dict[str, Any], expected: str) -> None:
    said = advise(Configuration.model_validate({**SOUND, **change}))
    assert [line for line in said if line.startswith(expected)]
    assert "hidden" not in "".join(said)


NO_VERSION = (
    "upstreams.u has no api_version: only requests in Azure's dialect, which bring one, can go there; "
    "set api_version (or `client` if that is meant)"
)


def on_azure(**more: object) -> dict[str, Any]:
    return {"upstreams": {"u": {"kind": "azure", "base_url": "http://u", **more}}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(
            on_azure(),
            [NO_VERSION],
            id="none is written",
        ),
        pytest.param(on_azure(api_version="2024-10-21"), [], id="one is"),
        pytest.param(on_azure(api_version="client"), [], id="the client's is meant"),
        pytest.param({**on_azure(), "models": {}}, ["models is empty", "upstreams.u is used by no model"], id="unused"),
    ],
)
def test_an_azure_upstream_says_which_version_of_the_api_it_is_sent(
    change: dict[str, Any], expected: list[str]
) -> None:
    said = advise(Configuration.model_validate({**SOUND, **change}))
    assert [line.startswith(start) for line, start in zip(said, expected, strict=True)] == [True] * len(expected)


def rule(name: str, **said: object) -> dict[str, Any]:
    return {"parameters": {name: said}}


def limit(of: str, amount: float, **more: object) -> dict[str, Any]:
    per = {} if of == "concurrency" else {"per": "day"}
    return {"limits": [{"of": of, "limit": amount, "by": ["user"], **per, **more}]}


def both(*policies: dict[str, Any]) -> dict[str, Any]:
    """Write what several say as one policy."""
    parameters = {name: said for each in policies for name, said in each.get("parameters", {}).items()}
    others = {name: said for each in policies for name, said in each.items() if name != "parameters"}
    return {**others, "parameters": parameters}


LEAVE = "leave it out"
OVERRIDE = "leave it out, or say override: true"
WITHIN = "give one within that, or say override: true"
ASKED = "which the smallest of them asks for"
KEY = "(key key)"
GENERATING = "completions and chat/completions and responses"

# Policy p is the project's, q the key's, which is within it.
ROWS = [
    # Rules that can never apply, by themselves.
    pytest.param(rule("n", max=127), {}, "", id="a cap that something is above"),
    pytest.param(
        rule("n", max=128),
        {},
        f"policies.p.parameters.n: max: 128 changes nothing, since n must be an integer from 1 to 128 anyway; {LEAVE}",
        id="a cap at the parameter's own maximum",
    ),
    pytest.param(
        rule("n", max=500, min=1),
        {},
        "policies.p.parameters.n: max: 500 and min: 1 change nothing, "
        f"since n must be an integer from 1 to 128 anyway; {LEAVE}",
        id="bounds around all that is valid are told in one line",
    ),
    pytest.param(
        rule("temperature", min=0, max=1),
        {},
        "policies.p.parameters.temperature: min: 0 changes nothing, "
        f"since temperature must be a number from 0 to 2 anyway; {LEAVE}",
        id="a least at the parameter's own minimum",
    ),
    pytest.param(rule("max_tokens", min=0), {}, "", id="any bound closes an open ceiling"),
    pytest.param(rule("presence_penalty", max=2), {}, "", id="a chat's penalty is not read, so that a bound is one"),
    pytest.param(rule("top_k", max=10**9, min=0), {}, "", id="of an unknown parameter no range is known"),
    pytest.param(rule("logprobs", min=1), {}, "", id="a least for numbers, where chats have booleans"),
    pytest.param(
        rule("logprobs", min=0),
        {},
        "policies.p.parameters.logprobs: min: 0 changes nothing, "
        f"since logprobs must be an integer, 0 or more or true or false anyway; {LEAVE}",
        id="a least that all of these numbers have",
    ),
    pytest.param(
        rule("prompts", min=1, max=9),
        {},
        f"policies.p.parameters.prompts: min: 1 changes nothing, since prompts is at least 1 anyway; {LEAVE}",
        id="there is always a prompt",
    ),
    pytest.param(
        rule("echo", allowed=[True, False]),
        {},
        "policies.p.parameters.echo: allowed: [true, false] changes nothing, "
        f"since echo must be true or false anyway; {LEAVE}",
        id="both values allowed",
    ),
    pytest.param(
        rule("cache_level", allowed=[2, 1, 0]),
        {},
        "policies.p.parameters.cache_level: allowed: [2, 1, 0] changes nothing, "
        f"since cache_level must be an integer from 0 to 2 anyway; {LEAVE}",
        id="all three values allowed",
    ),
    pytest.param(rule("cache_level", allowed=[1, 2]), {}, "", id="two of three values allowed"),
    pytest.param(
        rule("n", allowed=[1, 2], max=4),
        {},
        f"policies.p.parameters.n: max: 4 changes nothing, since allowed says more; {LEAVE}",
        id="a cap that the list is below",
    ),
    pytest.param(rule("n", allowed=[1, 2], max=1), {}, "", id="a cap that cuts the list"),
    pytest.param(
        rule("n", default=2, on_violation="clamp"),
        {},
        "policies.p.parameters.n: on_violation: clamp changes nothing, "
        f"since there is no max, min or allowed beside it; {LEAVE}",
        id="clamped without a bound",
    ),
    pytest.param(rule("stop", add=["x"], on_violation="clamp"), {}, "", id="stops are clamped without a bound"),
    # Rules that levels outside of them make void.
    pytest.param(rule("n", max=4), rule("n", max=2), "", id="an inner cap that is stricter"),
    pytest.param(rule("n", max=4), rule("n", max=4), "", id="an inner level that says it again"),
    pytest.param(
        rule("n", max=4),
        rule("n", max=8),
        f"policies.q.parameters.n: max: 8 changes nothing, since policy 'p' says max: 4; {OVERRIDE}",
        id="an inner cap that is looser",
    ),
    pytest.param(rule("n", max=4), rule("n", max=8, override=True), "", id="a looser cap that overrides"),
    pytest.param(
        rule("n", min=2),
        rule("n", min=1, max=4),
        f"policies.q.parameters.n: min: 1 changes nothing, since n must be an integer from 1 to 128 anyway; {LEAVE}",
        id="what is void by itself is not told again",
    ),
    pytest.param(
        rule("n", allowed=[1, 2]),
        rule("n", allowed=[1, 2, 3]),
        f"policies.q.parameters.n: allowed: [1, 2, 3] changes nothing, since policy 'p' allows [1, 2]; {OVERRIDE}",
        id="an inner list that is longer",
    ),
    pytest.param(rule("n", allowed=[1, 2]), rule("n", allowed=[2, 1]), "", id="the same list in another order"),
    pytest.param(
        rule("n", allowed=[1, 2]),
        rule("n", max=3),
        f"policies.q.parameters.n: max: 3 changes nothing, since policy 'p' allows [1, 2]; {OVERRIDE}",
        id="an inner cap above an outer list",
    ),
    pytest.param(
        rule("n", force=4),
        rule("n", max=8, default=2),
        f"policies.q.parameters.n: max: 8 and default: 2 change nothing, since policy 'p' forces 4; {OVERRIDE}",
        id="a bound and a default of what an outer level forces",
    ),
    pytest.param(
        rule("user", forbid="drop"),
        rule("user", force="x"),
        f"policies.q.parameters.user: force: x changes nothing, since policy 'p' forbids user; {OVERRIDE}",
        id="forced, where an outer level forbids",
    ),
    pytest.param(
        both(rule("user", pseudonymise=True)),
        rule("user", default="x"),
        f"policies.q.parameters.user: default: x changes nothing, since policy 'p' pseudonymises user; {OVERRIDE}",
        id="a default of what an outer level pseudonymises",
    ),
    pytest.param(
        rule("logit_bias", forbid="reject"),
        rule("logit_bias", forbid="drop"),
        "policies.q.parameters.logit_bias: forbid: drop changes nothing, "
        f"since policy 'p' forbids logit_bias; {OVERRIDE}",
        id="dropped, where an outer level refuses",
    ),
    pytest.param(
        rule("max_tokens", max=100),
        rule("max_tokens", default=256),
        "policies.q.parameters.max_tokens: default: 256 is never written as it stands, "
        f"since policy 'p' says max: 100; {WITHIN}",
        id="an inner default above an outer cap",
    ),
    pytest.param(
        rule("max_tokens", default=256),
        rule("max_tokens", max=100, on_violation="clamp"),
        "",
        id="an outer default that a stricter level lowers",
    ),
    pytest.param(
        rule("n", max=2),
        rule("n", force=8),
        f"policies.q.parameters.n: force: 8 is never written as it stands, since policy 'p' says max: 2; {WITHIN}",
        id="forced above an outer cap",
    ),
    pytest.param(
        {},
        rule("n", max=8, override=True),
        f"policies.q.parameters.n: override: true changes nothing, since no outer level says anything of n; {LEAVE}",
        id="a rule that overrides nothing",
    ),
    pytest.param(
        rule("n", max=2),
        rule("n", max=1, mode="observe", override=True),
        f"policies.q.parameters.n: override: true changes nothing, since no outer level observes n; {LEAVE}",
        id="observed, it overrides nothing that is enforced",
    ),
    pytest.param(
        rule("n", max=2, mode="observe"),
        rule("n", max=4, override=True),
        f"policies.q.parameters.n: override: true changes nothing, since outer levels only observe n; {LEAVE}",
        id="enforced, it overrides nothing that is observed",
    ),
    pytest.param(
        both(rule("n", max=4), {"override": True}),
        {},
        "policies.p.override: override: true changes nothing, "
        f"since no outer level says anything that it replaces; {LEAVE}",
        id="a policy that overrides nothing",
    ),
    pytest.param(rule("n", max=4), both(rule("n", max=9), {"override": True}), "", id="a policy that overrides a rule"),
    pytest.param(
        rule("n", max=4),
        both(rule("n", max=9, override=True), {"override": True}),
        f"policies.q.parameters.n: override: true changes nothing, since the whole policy says override; {LEAVE}",
        id="overriding said twice",
    ),
    pytest.param(
        {"unknown_parameters": "reject"},
        {"unknown_parameters": "drop"},
        "policies.q.unknown_parameters: drop changes nothing, "
        f"since policy 'p' says reject, which is stricter; {OVERRIDE}",
        id="unknown parameters that an outer level refuses",
    ),
    pytest.param({"unknown_parameters": "forward"}, {}, "", id="what is so anyway may be written down"),
    pytest.param({"unknown_parameters": "drop"}, {"unknown_parameters": "reject"}, "", id="refused within dropped"),
    # Rules that are observed.
    pytest.param(rule("n", max=4), rule("n", max=2, mode="observe"), "", id="observed and stricter"),
    pytest.param(
        rule("n", max=4),
        rule("n", max=4, mode="observe"),
        "policies.q.parameters.n: mode: observe tells nothing, since policy 'p' says max: 4; "
        "leave it out, or observe what is stricter",
        id="observed what is enforced",
    ),
    pytest.param(
        rule("max_tokens", max=100, on_violation="clamp"),
        rule("max_tokens", max=200, mode="observe"),
        "policies.q.parameters.max_tokens: mode: observe tells nothing, since policy 'p' says max: 100; "
        "leave it out, or observe what is stricter",
        id="observed to refuse what is clamped anyway",
    ),
    # Rules that contradict each other.
    pytest.param(
        rule("n", allowed=[1, 2]),
        rule("n", allowed=[3]),
        "policies.q.parameters.n: policy 'p' allows [1, 2] and policy 'q' allows [3]: "
        f"no value of n is let through {KEY}",
        id="levels that allow no common value",
    ),
    pytest.param(
        rule("n", max=2),
        rule("n", min=3),
        "policies.q.parameters.n: policy 'p' says max: 2 and policy 'q' says min: 3: "
        f"no value of n is let through {KEY}",
        id="levels whose bounds cross",
    ),
    pytest.param(
        rule("n", allowed=[8, 9], max=4),
        {},
        "policies.p.parameters.n: policy 'p' says max: 4 and policy 'p' allows [8, 9]: "
        f"no value of n is let through {KEY}",
        id="a list above its cap",
    ),
    pytest.param(
        rule("n", min=4),
        rule("best_of", max=2),
        "policies.q.parameters.best_of: no values of n and best_of agree within n (policy 'p' says min: 4) "
        f"and best_of (policy 'q' says max: 2): every request to completions is refused {KEY}",
        id="more choices than candidates",
    ),
    pytest.param(
        both(rule("n", max=2), rule("best_of", min=4)),
        {},
        "policies.p.parameters.best_of: no values of n and best_of agree within n (policy 'p' says max: 2) "
        f"and best_of (policy 'p' says min: 4): every request for a stream to completions is refused {KEY}",
        id="streams have as many candidates as choices",
    ),
    pytest.param(
        rule("stop", add=["a", "b", "c"]),
        rule("stop", add=["c", "d", "e"]),
        "policies.q.parameters.stop: policies 'p' and 'q' together add 5 texts; stop takes at most 4: "
        f"every request that has a stop is refused {KEY}",
        id="more stops than there may be",
    ),
    pytest.param(rule("stop", add=["a", "b"]), rule("stop", add=["b", "c", "d"]), "", id="as many as there may be"),
    pytest.param(
        rule("background", force=True),
        {},
        "policies.p.parameters.background: force: true of policy 'p' is refused by the endpoint itself: "
        f"every request to responses is refused {KEY}",
        id="forced, though every request is refused that says so",
    ),
    pytest.param(
        rule("background", default=True),
        {},
        "policies.p.parameters.background: default: true of policy 'p' is refused by the endpoint itself: "
        f"every request without background to responses is refused {KEY}",
        id="a default that no request may say",
    ),
    pytest.param(rule("background", force=False), {}, "", id="never in the background"),
    pytest.param(rule("stream_options", force={"include_usage": True}), {}, "", id="forced where there is a stream"),
    pytest.param(rule("best_of", force=4), {}, "", id="forced, and agreed with"),
    pytest.param(
        rule("response_format", allowed=[{"type": "text"}]),
        rule("response_format", default={"type": "json_object"}),
        'policies.q.parameters.response_format: default: {"type":"json_object"} of policy \'q\' is not within what '
        'policy \'p\' lets through, which allows [{"type":"text"}]: every request without response_format is refused '
        f"{KEY}",
        id="an object as a default that an outer list has not",
    ),
    pytest.param(
        rule("user", allowed=["a"]),
        rule("user", default="b"),
        "policies.q.parameters.user: default: \"b\" of policy 'q' is not within what policy 'p' lets through, "
        f'which allows ["a"]: every request without user is refused {KEY}',
        id="a default that an outer list has not",
    ),
    pytest.param(
        rule("user", pseudonymise=True),
        rule("user", allowed=["a"]),
        "policies.p.parameters.user: the pseudonym of policy 'p' is not within what policy 'q' lets through, "
        f'which allows ["a"]: every request is refused {KEY}',
        id="a pseudonym that no list can have",
    ),
    pytest.param(
        both(rule("max_tokens", min=500), rule("worst_case_tokens", max=400)),
        {},
        f"policies.p.parameters.worst_case_tokens: max: 400 refuses every request to {GENERATING}: "
        # 500 of the ceiling and one token id of the prompt
        f"the smallest that the other rules let through has 501 {KEY}",
        id="a ceiling above the worst case",
    ),
    pytest.param(
        rule("candidates", max=2),
        rule("n", min=3),
        "policies.p.parameters.candidates: max: 2 refuses every request to completions and chat/completions: "
        f"the smallest that the other rules let through has 3 {KEY}",
        id="more choices than candidates in all",
    ),
    pytest.param(
        rule("prompts", max=0),
        {},
        "policies.p.parameters.prompts: max: 0 refuses every request: "
        f"the smallest that the other rules let through has 1 {KEY}",
        id="no prompts at all",
    ),
    # Limits.
    pytest.param(limit("requests", 1), {}, "", id="one request a day"),
    pytest.param(
        limit("requests", 0),
        {},
        f"policies.p.limits[0]: limit: 0 lets no request pass: give it 1 or more, {ASKED} {KEY}",
        id="no requests at all",
    ),
    pytest.param(
        limit("concurrency", 0),
        {},
        f"policies.p.limits[0]: limit: 0 lets no request pass: give it 1 or more, {ASKED} {KEY}",
        id="none at once",
    ),
    pytest.param(
        limit("tokens", 100, per="minute", burst=10),
        {},
        "policies.p.limits[0]: burst: 10 lets no request to chat/completions and responses pass: "
        f"give it 24 or more, {ASKED} {KEY}",
        id="a burst below what a message adds",
    ),
    pytest.param(
        both(rule("max_tokens", min=500), limit("output_tokens", 499)),
        {},
        f"policies.p.limits[0]: limit: 499 lets no request to {GENERATING} pass: give it 500 or more, {ASKED} {KEY}",
        id="a limit below the least ceiling",
    ),
    pytest.param(
        rule("max_tokens", min=500),
        limit("tokens", 523),
        # A chat's and a response's message is 8 + 16 tokens; a prompt of one token id fits.
        "policies.q.limits[0]: limit: 523 lets no request to chat/completions and responses pass: "
        f"give it 524 or more, {ASKED} {KEY}",
        id="a limit below another level's least ceiling",
    ),
    pytest.param(
        both(rule("n", force=3), limit("completions", 2)),
        {},
        "policies.p.limits[0]: limit: 2 lets no request to completions and chat/completions pass: "
        f"give it 3 or more, {ASKED} {KEY}",
        id="fewer completions than are forced",
    ),
]


@pytest.mark.parametrize(("outer", "inner", "expected"), ROWS)
def test_what_rules_and_limits_cannot_do_is_told(outer: dict[str, Any], inner: dict[str, Any], expected: str) -> None:
    changed = {
        "policies": {"p": outer, "q": inner},
        "pseudonym_key": "k",
        "keys": [{**SOUND["keys"][0], "policy": "q"}],
    }
    assert "\n".join(advise(Configuration.model_validate({**SOUND, **changed}))) == expected


USD = {"policies": {"p": limit("usd", 5)}}
NO_PRICE = (
    "policies.p.limits[0]: counts usd, and every request for m is refused: "
    "give its price as models.m.price, or the limit `models` without it"
)


def key(name: str, **more: object) -> dict[str, Any]:
    return {"id": name, "project": "proj", "user": name, "sha256": sha256(name.encode()).hexdigest(), **more}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({**USD, "models": {"m": PRICED}}, "", id="spending on a model with a price"),
        pytest.param(USD, f"{NO_PRICE} {KEY}", id="spending on one without"),
        pytest.param(
            {**USD, "keys": [key("a"), key("b"), key("c", models=["n"])], "models": {**SOUND["models"], "n": PRICED}},
            f"{NO_PRICE} (keys a, b)",
            id="told once, with the keys that meet it",
        ),
        pytest.param(
            {"policies": {"p": limit("usd", 5, models=["n"])}, "models": {**SOUND["models"], "n": PRICED}},
            "",
            id="spending on some models only",
        ),
        pytest.param(
            {"policies": {"p": both(rule("max_tokens", min=500), limit("usd", 0.0009))}, "models": {"m": PRICED}},
            # 500 tokens at two micro-dollars, and 24 of input at one.
            f"policies.p.limits[0]: limit: 0.0009 USD lets no request to {GENERATING} pass: "
            f"give it 0.001024 USD or more, {ASKED} {KEY}",
            id="less than the smallest request costs",
        ),
        pytest.param(
            {
                "policies": {"p": {"models": ["m"], **limit("tokens", 500, models=["n"])}},
                "models": {**SOUND["models"], "n": PRICED},
            },
            "policies.p.limits[0].models: nobody to whom the policy applies may use any of these; "
            "the limit counts nothing",
            id="a limit for models that nobody may use",
        ),
        pytest.param(
            {
                "policies": {"p": {"models": ["m"]}, "q": {"models": ["n"]}},
                "models": {**SOUND["models"], "n": PRICED},
                "keys": [key("a", policy="q"), key("b")],
            },
            "keys: no model is left of those that policies, project and key allow: every request is refused (key a)",
            id="lists of models with nothing in common",
        ),
        pytest.param(
            {
                "policies": {"p": rule("n", max=4), "q": rule("n", max=8)},
                "keys": [key("a", policy="q"), key("b")],
                "users": [{"id": "b", "policy": "q"}],
                "projects": [{"id": "proj"}],
                "organization": {"policy": "p"},
            },
            f"policies.q.parameters.n: max: 8 changes nothing, since policy 'p' says max: 4; {OVERRIDE}",
            id="void wherever it applies, and told once",
        ),
        pytest.param(
            {
                "policies": {"p": rule("n", max=4), "q": rule("n", max=8)},
                "projects": [{"id": "proj", "policy": "p"}, {"id": "free"}],
                "keys": [key("a", policy="q"), key("b", policy="q", project="free")],
            },
            "",
            id="void for some, and not for others",
        ),
        pytest.param(
            {"policies": {"p": {}, "q": rule("n", allowed=[8], max=4)}},
            "policies.q applies to nobody: no organization, project, user or key names it\n"
            "policies.q.parameters.n: policy 'q' says max: 4 and policy 'q' allows [8]: no value of n is let through",
            id="a contradiction in a policy for nobody",
        ),
        pytest.param(
            {"organization": {"policy": "p"}, "policies": {"p": rule("n", max=4)}},
            "",
            id="one policy at two levels repeats nothing",
        ),
    ],
)
def test_what_several_keys_or_models_have_to_do_with_is_told_once(change: dict[str, Any], expected: str) -> None:
    assert "\n".join(advise(Configuration.model_validate({**SOUND, **change}))) == expected
