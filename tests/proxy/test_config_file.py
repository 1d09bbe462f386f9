"""Reading a configuration: what is wrong is told with its place and its remedy, and no secret is repeated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tls_files import tls_file

from proxy.config import Configuration
from proxy.config_file import (
    DEFAULT_NAME,
    ConfigurationError,
    ConfigurationFile,
    default_path,
    load,
    proxy_environment,
    read_secret,
)

if TYPE_CHECKING:
    from collections.abc import Callable

HASH = "ab" * 32
SECRET = "sk-do-not-print-me"  # noqa: S105  of no use anywhere
BASE = """\
upstreams:
  main: {kind: openai, base_url: "http://127.0.0.1:9000/v1"}
models:
  m: {deployments: [{upstream: main}], aliases: [old]}
policies:
  default:
    parameters: {n: {max: 4}}
projects:
  - {id: proj, policy: default}
"""
KEY = f"keys: [{{id: key, project: proj, user: alice, sha256: {HASH}}}]\n"


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "t.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def lines_of(path: Path, environ: dict[str, str] | None = None) -> list[str]:
    """All complaints about a file, without the file's own name."""
    with pytest.raises(ConfigurationError) as caught:
        load(path, environ or {})
    return [line.removeprefix(str(path)).removeprefix(":") for line in caught.value.lines]


BAD = [
    pytest.param(b"\xff\xfe\x00", ["not UTF-8: byte 0 has no meaning in it"], id="bytes that are no text"),
    pytest.param("", ["the file is empty: it needs upstreams, models, projects and keys"], id="an empty file"),
    pytest.param("just words", ["1: the file: must be a mapping, not text"], id="a text that is no mapping"),
    pytest.param("a: b: c", ["1: the file: not YAML: mapping values are not allowed here"], id="not YAML"),
    pytest.param("listen: [1\n", ["2: the file: not YAML: expected ',' or ']', but got '…'"], id="an open bracket"),
    pytest.param(f"listen: *{SECRET}", ["1: the file: not YAML: found undefined alias '…'"], id="an unknown alias"),
    pytest.param("a: \x01", ["1: the file: not YAML: a character that YAML does not allow"], id="a control character"),
    pytest.param("--- {}\n--- {}", ["2: the file: not YAML: but found another document"], id="two documents"),
    pytest.param("- " * 4000, ["1: the file: nested too deeply"], id="a thousand levels"),
    pytest.param(
        "workers: 1\nworkers: 2",
        ['2: workers: the key "workers" stands here twice, first in line 1; leave one out'],
        id="a key twice",
    ),
    pytest.param("workers: !int 3", ["1: workers: tags are not read here: leave out what begins with !"], id="a tag"),
    pytest.param("lisen: x", ['1: lisen: unknown key; did you mean "listen"?'], id="an unknown key at the top"),
    pytest.param(
        BASE.replace("max: 4", "maxx: 4"),
        ['7: policies.default.parameters.n.maxx: unknown key; did you mean "max"?'],
        id="an unknown key deep within",
    ),
    pytest.param(
        "models: {m: {deployments: [{upstrem: main}]}}",
        [
            "1: models.m.deployments[0].upstream: required, and missing",
            '1: models.m.deployments[0].upstrem: unknown key; did you mean "upstream"?',
        ],
        id="an unknown key in a list",
    ),
    pytest.param("workers: two", ["1: workers: must be a whole number, not text"], id="text for a number"),
    pytest.param("workers: 1.5", ["1: workers: must be a whole number, not a number"], id="a fraction of a worker"),
    pytest.param("workers: true", ["1: workers: must be a whole number, not true or false"], id="a truth for a number"),
    pytest.param("workers: 0", ["1: workers: must be a number above 0, not 0"], id="no worker"),
    pytest.param("bounds: {json_depth: 1000}", ["1: bounds.json_depth: must be 512 or less, not 1000"], id="a depth"),
    pytest.param(
        "listen: 8080",
        ["1: listen: must be text, not a number (write it in quotes where text is meant)"],
        id="a port for an address",
    ),
    pytest.param(
        "listen: localhost",
        ["1: listen: 'localhost' is no address: write host:port, such as 127.0.0.1:8080 or [::1]:8080"],
        id="an address without a port",
    ),
    pytest.param(
        "listen: 127.0.0.1:65536",
        ["1: listen: '127.0.0.1:65536' is no address: write host:port, such as 127.0.0.1:8080 or [::1]:8080"],
        id="a port out of range",
    ),
    pytest.param(
        "listen: 127.0.0.1:8081",
        ["the same address as listen; data plane and control plane need one each"],
        id="both planes on one address",
    ),
    pytest.param(
        "organization: {time_zone: Europe/Berln}",
        ['1: organization.time_zone: unknown time zone "Europe/Berln"; did you mean "Europe/Berlin"?'],
        id="a bad time zone",
    ),
    pytest.param(
        "organization: {time_zone: ../../etc/passwd}",
        ["unknown time zone"],
        id="a time zone that is a path",
    ),
    pytest.param(
        "organization: {id: 'a b'}", ["1: organization.id: may hold letters, digits"], id="an id with a space"
    ),
    pytest.param(
        BASE + KEY.replace("project: proj", "project: proy"),
        ['10: keys[0].project: unknown project "proy"; did you mean "proj"?'],
        id="a key of an unknown project",
    ),
    pytest.param(
        BASE.replace("policy: default", "policy: defalt"),
        ['9: projects[0].policy: unknown policy "defalt"; did you mean "default"?'],
        id="an unknown policy",
    ),
    pytest.param(
        BASE.replace("upstream: main", "upstream: mian"),
        ['4: models.m.deployments[0].upstream: unknown upstream "mian"; did you mean "main"?'],
        id="an unknown upstream",
    ),
    pytest.param(
        BASE + KEY.replace("user: alice", "user: alice, models: [mm]"),
        ['10: keys[0].models[0]: unknown model "mm"; did you mean "m"?'],
        id="a key for an unknown model",
    ),
    pytest.param(
        BASE + KEY.replace("user: alice", "user: alice, models: [old]"),
        ['10: keys[0].models[0]: "old" is an alias; write the model\'s own name "m"'],
        id="a key for an alias",
    ),
    pytest.param(
        BASE + KEY.replace("user: alice", 'user: alice, models: ["gpt-*"]'),
        ['10: keys[0].models[0]: no model matches "gpt-*"; there is m'],
        id="a wildcard that matches nothing",
    ),
    pytest.param(
        BASE.replace("aliases: [old]", "aliases: [m]"),
        ['4: models.m.aliases[0]: "m" is the name of a model; choose another alias'],
        id="an alias that is a model",
    ),
    pytest.param(
        BASE.replace("policies:", "  m2: {deployments: [{upstream: main}], aliases: [old]}\npolicies:"),
        ['5: models.m2.aliases[0]: "old" is already an alias at models.m.aliases[0]; each must be unique'],
        id="an alias of two models",
    ),
    pytest.param(
        BASE + KEY + "users: [{id: a}, {id: a}]",
        ["11: users[1].id: the same user id as users[0].id; each must be unique"],
        id="a user twice",
    ),
    pytest.param(
        BASE + KEY.replace("}]", f"}}, {{id: other, project: proj, user: bob, sha256: {HASH.upper()}}}]"),
        ["10: keys[1].sha256: the same key's sha256 as keys[0].sha256; each must be unique"],
        id="one hash for two keys",
    ),
    pytest.param(
        BASE + KEY.replace(HASH, SECRET),
        ["10: keys[0].sha256: no SHA-256: write 64 hexadecimal digits (these are 18 characters)"],
        id="a key where its hash belongs",
    ),
    pytest.param(
        BASE + KEY.replace(HASH, "12345678"),
        ["10: keys[0].sha256: must be text, not a number (write it in quotes where text is meant)"],
        id="a hash that reads as a number",
    ),
    pytest.param(
        BASE + KEY.replace("user: alice, ", ""),
        ["10: keys[0]: needs one owner: write either user or service_account"],
        id="a key without an owner",
    ),
    pytest.param(
        BASE + KEY.replace("user: alice", "user: alice, service_account: batch"),
        ["10: keys[0]: needs one owner: write either user or service_account"],
        id="a key with two owners",
    ),
    pytest.param(
        BASE.replace("http:", "ftp:"),
        ["2: upstreams.main.base_url: no address of a server: write http:// or https://"],
        id="a base_url of another protocol",
    ),
    pytest.param(
        BASE.replace("127.0.0.1:9000", f"me:{SECRET}@h"),
        ["2: upstreams.main.base_url: must not hold credentials: they belong in api_key"],
        id="a base_url with credentials",
    ),
    pytest.param(
        BASE.replace("9000/v1", f"9000/v1?api-key={SECRET}"),
        ["2: upstreams.main.base_url: must end with the path: leave out what follows the ? or #"],
        id="a base_url with a query",
    ),
    pytest.param(
        BASE.replace(":9000", ":90000"),
        ["2: upstreams.main.base_url: no address: the host or the port is malformed"],
        id="a base_url with an impossible port",
    ),
    pytest.param(
        BASE.replace("kind: openai", "kind: opnai"),
        ["2: upstreams.main.kind: must be 'openai' or 'azure', not 'opnai'"],
        id="an unknown kind of upstream",
    ),
    pytest.param(
        BASE.replace("kind: openai", "kind: openai, api_version: 2024-10-21"),
        ["2: upstreams.main: api_version is for kind: azure only; leave it out"],
        id="an api_version that nobody reads",
    ),
    pytest.param(
        'upstreams: {a: {kind: azure, base_url: "https://a/openai"}}',
        ["1: upstreams.a: base_url of kind: azure is scheme and host only"],
        id="an azure base_url with the path that is added",
    ),
    pytest.param(
        BASE.replace("kind: openai", "kind: openai, api_key: env:NOT_SET"),
        ["2: upstreams.main.api_key: the environment variable NOT_SET is not set"],
        id="a missing environment variable",
    ),
    pytest.param(
        BASE.replace("kind: openai", "kind: openai, api_key: env:EMPTY"),
        ["2: upstreams.main.api_key: the environment variable EMPTY is empty"],
        id="an empty environment variable",
    ),
    pytest.param(
        BASE.replace("kind: openai", f"kind: openai, api_key: env:{SECRET}"),
        ["2: upstreams.main.api_key: env: takes the name of an environment variable"],
        id="a secret where a variable's name belongs",
    ),
    pytest.param(
        BASE.replace("kind: openai", "kind: openai, api_key: file:nope"),
        ["2: upstreams.main.api_key: the file", "nope cannot be read: no such file or directory"],
        id="a missing secret file",
    ),
    pytest.param(
        BASE.replace("kind: openai", "kind: openai, api_key: file:."),
        ["cannot be read: is a directory"],
        id="a folder for a secret file",
    ),
    pytest.param(
        BASE.replace("kind: openai", f'kind: openai, api_key: "{SECRET} x"'),
        ["2: upstreams.main.api_key: no credential: it must not be empty, and hold printable ASCII"],
        id="a secret with a space",
    ),
    pytest.param(
        f'state: "http://:{SECRET}@h"',
        ["1: state: no store: write embedded, or an address such as redis://host:6379/0"],
        id="a store of another protocol",
    ),
    *(
        pytest.param(
            f'state: "redis://:{SECRET}@h/{path}"',
            ["1: state: no store: the path of its address is a database's number, as in redis://host:6379/0"],
            id=f"a store's database {path}",
        )
        for path in ("prod", "0/1", "-1", "1.5")
    ),
    pytest.param(
        f'state: "redis://:{SECRET}@[h"',
        ["1: state: no address: the host or the port is malformed"],
        id="a store address that cannot be split",
    ),
    pytest.param(
        BASE.replace("aliases: [old]", "price: {input: -1.5, output: 2}"),
        ["4: models.m.price.input: must be 0.0 or more, not -1.5"],
        id="a negative price",
    ),
    pytest.param(
        BASE.replace("deployments: [{upstream: main}]", "deployments: []"),
        ["4: models.m.deployments: needs at least one entry"],
        id="a model that runs nowhere",
    ),
    pytest.param(
        "policies: {d: {parameters: {temprature: {max: 1}}}}",
        ["1: policies.d.parameters.temprature: no endpoint has a parameter temprature; did you mean temperature?"],
        id="a rule on a parameter that nobody has",
    ),
    pytest.param(
        "policies: {d: {parameters: {n: {max: 1, min: 2}}}}",
        ["1: policies.d.parameters.n: min is 2, above max, which is 1: nothing is let through"],
        id="a rule that nothing passes",
    ),
    pytest.param("timeouts: {connect: 0}", ["1: timeouts.connect: must be 1ms or longer"], id="no time to connect"),
    pytest.param(
        "policies: {d: {limits: [{of: requests, limit: 5, by: [user]}]}}", ["needs `per`"], id="a limit without per"
    ),
    pytest.param(
        "policies: {d: {limits: [{of: concurrency, limit: 5, per: minute, by: [user]}]}}",
        ["1: policies.d.limits[0]: concurrency has no window: leave out `per`"],
        id="concurrency per minute",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: tokens, limit: 5, per: fortnight, by: [user]}]}}",
        ["1: policies.d.limits[0].per: 'fortnight' is no window: write second, minute, hour"],
        id="a limit per something unknown",
    ),
    *(
        pytest.param(
            f"policies: {{d: {{limits: [{{of: {of}, limit: 5, {per} burst: 9, by: [user]}}]}}}}",
            ["1: policies.d.limits[0].burst: is the room of a bucket that refills, as with per: minute or a duration"],
            id=f"a burst of what does not refill: {of} {per}",
        )
        for of, per in (
            *(("tokens", "per: day,"), ("requests", "per: week,")),
            *(("tokens", "per: month,"), ("concurrency", "")),
        )
    ),
    pytest.param(
        "policies: {d: {limits: [{of: tokens, limit: 5, per: day, by: [user], models: []}]}}",
        ["1: policies.d.limits[0].models: needs at least one entry"],
        id="a limit for no model",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: tokens, limit: 10000000000001, per: day, by: [user]}]}}",
        ["1: policies.d.limits[0].limit: must be 10000000000000 or less, not 10000000000001"],
        id="a limit above the largest",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: tokens, limit: 5, burst: 100000000000000, per: 1d, by: [user]}]}}",
        ["1: policies.d.limits[0].burst: must be 10000000000000 or less, not 100000000000000"],
        id="a burst above the largest",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: tokens, limit: 5, per: day, by: [usr]}]}}",
        ["by[0]: must be 'organization', 'project', 'user', 'key', 'end_user' or 'model', not 'usr'"],
        id="a limit by something unknown",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: eur, limit: 0.5, per: month, by: [user]}]}}",
        [
            "1: policies.d.limits[0].of: must be 'requests', 'tokens', 'input_tokens', 'output_tokens', 'completions'",
            "'completions', 'usd' or 'concurrency', not 'eur'",
        ],
        id="a limit of what is not counted",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: completions, limit: 0.5, per: day, by: [user]}]}}",
        ["1: policies.d.limits[0].limit: 0.5 is no whole number; only an amount of usd has decimals"],
        id="half a completion",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: usd, limit: 5, burst: 0.0000001, per: 1d, by: [user]}]}}",
        ["1: policies.d.limits[0].burst: 1e-07 USD is no whole number of micro-dollars; write at most six decimals"],
        id="a part of a micro-dollar",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: usd, limit: 10000000.5, per: month, by: [user]}]}}",
        ["1: policies.d.limits[0].limit: must be 10000000 or less, not 10000000.5"],
        id="a limit of usd above the largest",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: usd, limit: -0.5, per: month, by: [user]}]}}",
        ["1: policies.d.limits[0].limit: must be 0 or more, not -0.5"],
        id="a limit below nothing",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: usd, limit: .inf, per: month, by: [user]}]}}",
        ["1: policies.d.limits[0].limit: must be 10000000 or less, not inf"],
        id="a limit without end",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: usd, limit: true, per: month, by: [user]}]}}",
        ["1: policies.d.limits[0].limit: must be a number, not true or false"],
        id="a limit that is no number",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: tokens, limit: 5, per: day, by: [user], hold: some}]}}",
        ["1: policies.d.limits[0].hold: must be 'worst_case' or 'none', not 'some'"],
        id="a limit that holds something",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: requests, limit: 5, per: day, by: [user], hold: none}]}}",
        ["1: policies.d.limits[0].hold: what requests takes is known before the answer: leave `hold` out"],
        id="requests that are counted after",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: concurrency, limit: 5, by: [user], hold: none}]}}",
        ["1: policies.d.limits[0].hold: what concurrency takes is known before the answer: leave `hold` out"],
        id="concurrency that is counted after",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: tokens, limit: 5, per: day, by: [user], mode: watch}]}}",
        ["1: policies.d.limits[0].mode: must be 'enforce' or 'observe', not 'watch'"],
        id="a mode of a limit that there is not",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: tokens, limit: 5, per: day, by: [user], max_wait: 5s}]}}",
        ["1: policies.d.limits[0]: max_wait is how long requests wait: write on_exceed: wait beside it"],
        id="a longest wait where nothing waits",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: tokens, limit: 5, per: day, by: [user], on_exceed: wait, mode: observe}]}}",
        ["1: policies.d.limits[0]: nothing waits for a limit that is only observed: leave out on_exceed, or mode"],
        id="waiting for what is only observed",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: tokens, limit: 5, per: day, by: [user], on_exceed: wait, max_wait: 11m}]}}",
        ["1: policies.d.limits[0].max_wait: must be 1ms or longer, and 10m at most"],
        id="a wait that is too long",
    ),
    pytest.param(
        "policies: {d: {limits: [{of: tokens, limit: 5, per: day, by: [user], on_exceed: queue}]}}",
        ["1: policies.d.limits[0].on_exceed: must be 'refuse' or 'wait', not 'queue'"],
        id="something else to do than to refuse or wait",
    ),
    pytest.param("ledger: sqlite", ["1: ledger: unknown key"], id="a ledger, which there is not"),
    pytest.param(
        'policies: {d: {limits: [{name: "a;b", of: tokens, limit: 5, per: day, by: [user]}]}}',
        ["1: policies.d.limits[0].name: may hold letters, digits and _ . - only"],
        id="a limit's name that no header takes",
    ),
    pytest.param(
        "policies: {d: {limits: [{name: a, of: tokens, limit: 5, per: day, by: [user]}, "
        "{name: a, of: requests, limit: 5, per: day, by: [user]}]}}",
        ["1: policies.d.limits[1].name: the same limit name as policies.d.limits[0].name; each must be unique"],
        id="two limits of one name",
    ),
    pytest.param(
        "policies: {d: {cache: {ttl: 7 days}}}",
        ["1: policies.d.cache.ttl: '7 days' is not a duration; write a number and one of ms, s, m, h, d, w"],
        id="a duration in words",
    ),
    pytest.param("drain_timeout: .inf", ["1: drain_timeout: must be a whole number, not a number"], id="for ever"),
    pytest.param("lease: 1ms", ["1: lease: must be 1000ms or longer"], id="a lease that ends between renewals"),
    pytest.param("a: &a {b: *a}", ["an alias stands within its own anchor"], id="an anchor within itself"),
    pytest.param(
        "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"{c}: &{c} [{','.join([f'*{p}'] * 10)}]\n" for p, c in zip("abcdef", "bcdefg", strict=True)),
        ["1: the file: aliases multiply to more than 1000000 values"],
        id="aliases that multiply",
    ),
]


@pytest.mark.parametrize(("text", "expected"), BAD)
def test_a_bad_configuration_is_told(tmp_path: Path, text: str | bytes, expected: list[str]) -> None:
    told = lines_of(write(tmp_path, text), {"EMPTY": ""})
    assert [part for part in expected if part not in "\n".join(told)] == []
    assert SECRET not in "\n".join(told)
    assert all("\n" not in line for line in told)


@pytest.mark.parametrize("hold", ["worst_case", "none"])
@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_limit_may_say_what_it_holds_and_whether_it_refuses(tmp_path: Path, hold: str, mode: str) -> None:
    limit = f"{{of: tokens, limit: 200000, per: day, by: [user], hold: {hold}, mode: {mode}}}"
    made = load(write(tmp_path, BASE.replace("parameters: {n: {max: 4}}", f"limits: [{limit}]")), {})
    assert (made.policies["default"].limits[0].hold, made.policies["default"].limits[0].mode) == (hold, mode)


@pytest.mark.parametrize("amount", ["0.1", "0.100000", "1e-1", "7"])
def test_an_amount_of_usd_reaches_the_workers_as_it_was_written(tmp_path: Path, amount: str) -> None:
    limit = f"{{of: usd, limit: {amount}, burst: {amount}, per: 1d, by: [user]}}"
    made = load(write(tmp_path, BASE.replace("parameters: {n: {max: 4}}", f"limits: [{limit}]")), {})
    again = Configuration.from_resolved_json(made.resolved_json())
    [written], [read] = made.policies["default"].limits, again.policies["default"].limits
    assert (read.limit, read.burst) == (written.limit, written.burst) == (float(amount), float(amount))


def test_ids_are_told_apart_by_case(tmp_path: Path) -> None:
    made = load(write(tmp_path, BASE + "users: [{id: Alice}, {id: alice}]"), {})
    assert [user.id for user in made.users] == ["Alice", "alice"]


def test_everything_wrong_is_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = (
        BASE.replace("main}]", "mian}]").replace("max: 4", "maxx: 4") + KEY.replace(HASH, "x") + "foo: 1\nworkers: 0\n"
    )
    told = lines_of(write(tmp_path, text))
    assert [line.split(":")[0] for line in told] == ["4", "7", "10", "11", "12"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("absent.yaml", "absent.yaml: cannot be read: no such file or directory", id="absent"),
        pytest.param(".", "cannot be read: is a directory", id="a folder"),
    ],
)
def test_an_unreadable_file_is_told(tmp_path: Path, name: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        load(tmp_path / name, {})


def test_secrets_come_from_environment_and_files_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    text = """
upstreams:
  a: {kind: openai, base_url: "env:BASE", api_key: env:KEY}
  b: {kind: openai, base_url: "http://b", api_key: file:key}
state: env:STATE
"""
    environ = {"BASE": "http://a/v1/", "KEY": "ka", "STATE": "redis://:pw@h:6379/1"}
    made = load(write(tmp_path, text), environ)
    a, b = made.upstreams["a"], made.upstreams["b"]
    assert (a.base_url, a.api_key and a.api_key.get_secret_value()) == ("http://a/v1", "ka")
    assert b.api_key is not None
    assert b.api_key.get_secret_value() == SECRET
    assert made.state_url == "redis://:pw@h:6379/1"
    assert not [secret for secret in (SECRET, "pw@", "ka'") if secret in repr(made) + made.model_dump_json()]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param("", "data", id="absent: beside the file"),
        pytest.param("data_dir: ./store\n", "store", id="relative: beside the file"),
    ],
)
def test_the_data_folder_is_relative_to_the_file(tmp_path: Path, written: str, expected: str) -> None:
    assert load(write(tmp_path, BASE + written), {}).data_dir == tmp_path / expected


def test_an_absolute_data_folder_is_left_alone(tmp_path: Path) -> None:
    assert load(write(tmp_path, BASE + "data_dir: /srv/tidegate"), {}).data_dir == Path("/srv/tidegate")


def test_the_example_that_is_shipped_can_be_used(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "deploy" / "tidegate.example.yaml"
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "azure-key").write_text("k")
    made = load(write(tmp_path, example.read_bytes()), {"OPENAI_API_KEY": "k", "PSEUDONYM_KEY": "k"})
    assert made.upstreams["azure"].api_version == "2024-10-21"


def test_the_default_file_is_looked_for_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_path() is None
    (tmp_path / DEFAULT_NAME).touch()
    assert default_path() == Path(DEFAULT_NAME)


def test_a_command_s_secret_is_itself_or_comes_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from a file\n")
    found = [read_secret(text, {"NAME": "from there"}) for text in ("itself", "env:NAME", f"file:{tmp_path / 'key'}")]
    assert found == ["itself", "from there", "from a file"]
    with pytest.raises(ValueError, match="the environment variable OTHER is not set"):
        read_secret("env:OTHER", {})


NAMING = """\
upstreams:
  main: {kind: openai, base_url: "https://127.0.0.1:9000/v1", api_key: "file:key", tls: {ca_file: ca.pem}}
"""


def named(folder: Path) -> ConfigurationFile:
    """Write a configuration that names two more files, and read it."""
    (folder / "key").write_text("a-key")
    (folder / "ca.pem").write_bytes(tls_file("ca.pem").read_bytes())
    file = ConfigurationFile(write(folder, NAMING), {})
    file.read()
    return file


def test_a_file_that_was_read_knows_which_files_it_names(tmp_path: Path) -> None:
    file = named(tmp_path)
    assert file.paths == {tmp_path / name for name in ("t.yaml", "key", "ca.pem")}
    assert set(file.named_files) == {tmp_path / "ca.pem"}


@pytest.mark.parametrize(
    ("happen", "has_changed", "lacks"),
    [
        pytest.param(lambda _: None, False, set(), id="nothing"),
        pytest.param(lambda at: os.utime(at / "t.yaml"), False, set(), id="the file is touched"),
        pytest.param(lambda at: write(at, NAMING), False, set(), id="the same is written"),
        pytest.param(lambda at: write(at, NAMING + "#"), True, set(), id="more is written"),
        pytest.param(lambda at: (at / "t.yaml").unlink(), True, {"t.yaml"}, id="the file is removed"),
        pytest.param(lambda at: write(at, ""), True, {"t.yaml"}, id="the file is emptied"),
        pytest.param(lambda at: (at / "key").write_text("b-key"), True, set(), id="another secret"),
        pytest.param(lambda at: (at / "key").unlink(), True, {"key"}, id="the secret is removed"),
        pytest.param(lambda at: (at / "ca.pem").write_text("-"), True, set(), id="another certificate"),
        pytest.param(lambda at: (at / "ca.pem").unlink(), True, {"ca.pem"}, id="the certificate is removed"),
        pytest.param(lambda at: (at / "neighbour").touch(), False, set(), id="a neighbour is made"),
    ],
)
def test_what_another_reading_would_find_is_known(
    tmp_path: Path,
    happen: Callable[[Path], object],
    *,
    has_changed: bool,
    lacks: set[str],
) -> None:
    file = named(tmp_path)
    happen(tmp_path)
    assert file.has_changed() is has_changed
    assert file.lacks() == {tmp_path / name for name in lacks}


def test_a_file_that_cannot_be_used_knows_when_it_may_be_mended(tmp_path: Path) -> None:
    file = ConfigurationFile(write(tmp_path, NAMING), {})
    for name, content in (("key", b"a-key"), ("ca.pem", tls_file("ca.pem").read_bytes())):
        with pytest.raises(ConfigurationError, match=name):
            file.read()
        assert not file.has_changed()
        (tmp_path / name).write_bytes(content)
        assert file.has_changed()
    assert file.read().upstreams["main"].tls.ca_file == tmp_path / "ca.pem"


def test_a_secret_that_is_too_long_is_no_change_for_ever(tmp_path: Path) -> None:
    file = named(tmp_path)
    (tmp_path / "key").write_text("k" * 100_000)
    with pytest.raises(ConfigurationError, match="too long"):
        file.read()
    assert not file.has_changed()


def test_a_secret_from_a_pipe_is_read_once(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a-key")
    os.close(writing)
    file = ConfigurationFile(write(tmp_path, NAMING.replace("file:key", f"file:/dev/fd/{reading}")), {})
    (tmp_path / "ca.pem").write_bytes(tls_file("ca.pem").read_bytes())
    assert file.read().upstreams["main"].api_key is not None
    assert not file.has_changed()
    os.close(reading)


def test_of_the_environment_only_what_names_proxies_goes_to_whoever_reaches_upstreams() -> None:
    environ = {"HTTPS_PROXY": "http://proxy:1", "no_proxy": "*", "OPENAI_API_KEY": SECRET, "HTTPS_PROXY_": "x"}
    assert proxy_environment(environ) == {"HTTPS_PROXY": "http://proxy:1", "no_proxy": "*"}


def test_files_and_proxies_by_which_upstreams_are_reached_are_checked(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("a secret")
    text = """
upstreams:
  first:
    kind: openai
    base_url: https://host.test/v1
    tls:
      ca_file: ca.pem
      certificate_file: gone.pem
  second: {kind: openai, base_url: "https://host.test/v1"}
  third: {kind: openai, base_url: "https://host.test/v1", proxy: none}
"""
    told = lines_of(write(tmp_path, text), {"HTTPS_PROXY": "socks5://u:secret@first"})
    assert [line.split(": ")[:2] for line in told] == [
        ["3", "upstreams.first.proxy"],
        ["8", "upstreams.first.tls.certificate_file"],
        ["9", "upstreams.second.proxy"],
    ]
    assert f"the file {tmp_path / 'gone.pem'} cannot be read: no such file or directory" in told[1]
    assert "secret" not in "".join(told).replace(str(tmp_path), "")
