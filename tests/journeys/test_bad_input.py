"""Nothing that a client sends yields a 5xx: a table of malformed requests over the wire."""

from __future__ import annotations

import gzip
import json
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from fake_upstream import UPSTREAM_KEY
from gateway import Gateway, bearer, key_of, settings
from harness import Raw, Resp, call

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fake_upstream import FakeUpstream

KEY = ("Authorization", f"Bearer {key_of('alice')}")
JSON = ("Content-Type", "application/json")
GOOD = b'{"model":"m","prompt":"x"}'
BODY_BYTES = 100_000


@pytest.fixture(scope="module")
def gateway(_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = settings(
        f"{_upstream.url}/v1",
        users={
            "alice": {},
            "carol": {},
            "dora": {"limits": [{"of": "tokens", "limit": 1000, "per": "day", "by": ["user"]}]},
        },
        models={"m": {}, "org/model": {}},
        key_models={"carol": ["org/*"]},
        bounds={"body_bytes": BODY_BYTES, "decompressed_body_bytes": 2 * BODY_BYTES, "body_seconds": 1.0},
    )
    made["upstreams"]["only"]["api_key"] = UPSTREAM_KEY
    with Gateway(tmp_path_factory.mktemp("gateway"), made) as running:
        yield running


def _expect(answer: Resp, status: int, param: str | None = None) -> None:
    assert answer.status == status, answer
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert answer.header("x-request-id")
    assert answer.header("content-type").startswith("application/json")
    if param is not None:
        assert error["param"] == param


@pytest.fixture(autouse=True)
def _nothing_went_wrong(gateway: Gateway, upstream: FakeUpstream) -> Iterator[None]:
    yield
    assert not upstream.log, "a malformed request went upstream"
    assert "Traceback" not in gateway.log
    assert len(gateway.worker_pids) == 1


# ---------------------------------------------------------------- bodies
BODIES = {
    "no body": (b"", 400),
    "an array": (b"[]", 400),
    "a string": (b'"x"', 400),
    "null": (b"null", 400),
    "a number": (b"1", 400),
    "half an object": (b"{", 400),
    "a trailing comma": (b'{"model":"m","prompt":"x",}', 400),
    "two values": (GOOD + GOOD, 400),
    "single quotes": (b"{'model':'m'}", 400),
    "a comment": (b'{"model":"m" /* x */}', 400),
    "invalid UTF-8": (b'{"model":"m","prompt":"\xff"}', 400),
    "UTF-16": (GOOD.decode().encode("utf-16"), 400),
    "a byte order mark": (b"\xef\xbb\xbf" + GOOD, 400),
    "a lone surrogate": (b'{"model":"m","prompt":"\\ud800"}', 400),
    "a raw control character": (b'{"model":"m","prompt":"\x01"}', 400),
    "a duplicate key": (b'{"model":"m","prompt":"x","prompt":"y"}', 400),
    "a duplicate key, escaped": (b'{"model":"m","prompt":"x","pr\\u006fmpt":"y"}', 400),
    "a duplicate key far down": (b'{"model":"m","prompt":"x","a":[{"b":{"c":1,"c":2}}]}', 400),
    "NaN": (b'{"model":"m","prompt":"x","temperature":NaN}', 400),
    "Infinity": (b'{"model":"m","prompt":"x","temperature":-Infinity}', 400),
    "a number too large for any float": (b'{"model":"m","prompt":"x","temperature":1e999}', 400),
    "a number longer than is read": (b'{"model":"m","prompt":"x","a":' + b"9" * 1001 + b"}", 400),
    "more members than are read": (b'{"a":0' + b"".join(b',"%x":0' % i for i in range(2**18)) + b"}", 413),
    "nesting beyond the bound": (b'{"model":"m","prompt":"x","a":' + b"[" * 200 + b"]" * 200 + b"}", 400),
    "nesting that exhausts parsers": (b'{"a":' + b"[" * 40_000 + b"]" * 40_000 + b"}", 400),
    "a body above the bound": (b'{"model":"m","prompt":"' + b"x" * BODY_BYTES + b'"}', 413),
}


@pytest.mark.parametrize(("body", "status"), BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"])
def test_a_malformed_body_is_refused(gateway: Gateway, path: str, body: bytes, status: int) -> None:
    _expect(call(gateway.base_url, "POST", path, [KEY, JSON], body), status)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        pytest.param("/v1/completions", {"prompt": "x", "max_tokens": 10**1000 - 1}, id="completions"),
        pytest.param("/v1/completions", {"prompt": "x", "n_predict": 10**1000 - 1}, id="by a server's own name"),
        pytest.param(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 10**1000 - 1},
            id="chat",
        ),
        pytest.param("/v1/responses", {"input": "x", "max_output_tokens": 10**1000 - 1}, id="responses"),
    ],
)
def test_a_ceiling_of_as_many_digits_as_are_read_is_refused_by_a_limit(
    gateway: Gateway, path: str, fields: dict[str, object]
) -> None:
    body = json.dumps({"model": "m", **fields}).encode()
    answer = call(gateway.base_url, "POST", path, [("Authorization", f"Bearer {key_of('dora')}"), JSON], body)
    assert answer.status == 429, answer
    assert "can never fit" in answer.json()["error"]["message"]


# ---------------------------------------------------------------- parameters
PARAMETERS = {
    "no model": ({"model": None}, 400, "model"),
    "a model that is a number": ({"model": 1}, 400, "model"),
    "an empty model": ({"model": ""}, None, "model"),
    "a model that is very long": ({"model": "x" * 50_000}, 404, "model"),
    "a model with a line feed": ({"model": "a\r\nx-evil: 1"}, 404, "model"),
    "a prompt that is a number": ({"prompt": 1}, 400, "prompt"),
    "a prompt of mixed kinds": ({"prompt": ["a", 1]}, 400, "prompt"),
    "an empty array of prompts": ({"prompt": []}, 400, "prompt"),
    "negative token ids": ({"prompt": [-1]}, 400, "prompt"),
    "max_tokens below zero": ({"max_tokens": -1}, 400, "max_tokens"),
    "max_tokens as text": ({"max_tokens": "16"}, 400, "max_tokens"),
    "max_tokens with a fraction": ({"max_tokens": 1.5}, 400, "max_tokens"),
    "a temperature above two": ({"temperature": 2.1}, 400, "temperature"),
    "a temperature that is true": ({"temperature": True}, 400, "temperature"),
    "top_p above one": ({"top_p": 1.1}, 400, "top_p"),
    "no choice": ({"n": 0}, 400, "n"),
    "too many choices": ({"n": 129}, 400, "n"),
    "n that is true": ({"n": True}, 400, "n"),
    "n of a thousand digits": ({"n": 10**999}, 400, "n"),
    "best_of below n": ({"n": 3, "best_of": 2}, 400, "best_of"),
    "best_of above n on a stream": ({"n": 1, "best_of": 2, "stream": True}, 400, "best_of"),
    "stream that is text": ({"stream": "true"}, 400, "stream"),
    "stream_options without a stream": ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
    "logprobs above the model's bound": ({"logprobs": 6}, 400, "logprobs"),
    "echo that is text": ({"echo": "yes"}, 400, "echo"),
    "five stops": ({"stop": ["a", "b", "c", "d", "e"]}, 400, "stop"),
    "a stop that is a number": ({"stop": 1}, 400, "stop"),
    "a presence penalty below minus two": ({"presence_penalty": -2.1}, 400, "presence_penalty"),
    "a frequency penalty above two": ({"frequency_penalty": 2.1}, 400, "frequency_penalty"),
    "a bias above a hundred": ({"logit_bias": {"1": 101}}, 400, "logit_bias"),
    "a bias that is text": ({"logit_bias": {"1": "x"}}, 400, "logit_bias"),
    "a seed beyond 64 bits": ({"seed": 2**63}, 400, "seed"),
    "a user that is a number": ({"user": 1}, 400, "user"),
    "a suffix that is a number": ({"suffix": 1}, 400, "suffix"),
}


@pytest.mark.parametrize(("changes", "status", "param"), PARAMETERS.values(), ids=PARAMETERS)
def test_a_parameter_out_of_range_is_named(
    gateway: Gateway, changes: dict[str, object], status: int | None, param: str
) -> None:
    body = json.dumps({"model": "m", "prompt": "x", **changes}).encode()
    answer = call(gateway.base_url, "POST", "/v1/completions", [KEY, JSON], body)
    _expect(answer, answer.status if status is None and answer.status in {400, 404} else status or 400, param)
    assert len(answer.body) < 2_000, "the message repeats what was sent"


# ---------------------------------------------------------------- credentials
CREDENTIALS = {
    "no key": ([], 401),
    "an unknown key": ([("Authorization", "Bearer nobody")], 401),
    "an empty bearer": ([("Authorization", "Bearer ")], 401),
    "a bearer without a space": ([("Authorization", "Bearer")], 401),
    "an empty header": ([("Authorization", "")], 401),
    "another scheme": ([("Authorization", "Basic YTpi")], 401),
    "an empty api-key": ([("api-key", "")], 401),
    "a key that is not ASCII": ([("api-key", "sch\u00fcssel")], 401),
    "a key of 20 kilobytes": ([("api-key", "x" * 20_000)], 401),
    "two different keys": ([KEY, ("api-key", "other")], 400),
    "two different bearers": ([KEY, ("Authorization", "Bearer other")], 400),
    "another project": ([KEY, ("OpenAI-Project", "proj_other")], 403),
}


@pytest.mark.parametrize(("headers", "status"), CREDENTIALS.values(), ids=CREDENTIALS)
@pytest.mark.parametrize("target", ["POST /v1/completions", "GET /v1/models"])
def test_bad_credentials_are_refused(
    gateway: Gateway, target: str, headers: Sequence[tuple[str, str]], status: int
) -> None:
    method, path = target.split(" ")
    answer = call(gateway.base_url, method, path, [*headers, JSON], GOOD if method == "POST" else b"")
    _expect(answer, status)
    assert (answer.header("www-authenticate") is not None) == (status == 401)


def test_a_model_that_the_key_may_not_use_is_forbidden(gateway: Gateway) -> None:
    _expect(call(gateway.base_url, "POST", "/v1/completions", bearer("carol"), GOOD), 403)


# ---------------------------------------------------------------- content types and codings
MEDIA = {
    "a form": ([("Content-Type", "application/x-www-form-urlencoded")], GOOD, 415),
    "multipart": ([("Content-Type", "multipart/form-data; boundary=x")], GOOD, 415),
    "an unknown charset": ([("Content-Type", "application/json; charset=bogus-8")], GOOD, 415),
    "UTF-7": ([("Content-Type", "application/json; charset=utf-7")], GOOD, 415),
    "a coding that is not known": ([JSON, ("Content-Encoding", "zz")], GOOD, 415),
    "gzip that is none": ([JSON, ("Content-Encoding", "gzip")], GOOD, 400),
    "gzip that ends early": ([JSON, ("Content-Encoding", "gzip")], gzip.compress(GOOD)[:-6], 400),
    "a body that grows above the bound": (
        [JSON, ("Content-Encoding", "gzip")],
        gzip.compress(b'{"model":"m","prompt":"' + b"x" * 10_000_000 + b'"}'),
        413,
    ),
}


@pytest.mark.parametrize(("headers", "body", "status"), MEDIA.values(), ids=MEDIA)
def test_a_body_in_another_form_is_refused(
    gateway: Gateway, headers: Sequence[tuple[str, str]], body: bytes, status: int
) -> None:
    _expect(call(gateway.base_url, "POST", "/v1/completions", [KEY, *headers], body), status)


# ---------------------------------------------------------------- paths and methods
PATHS = {
    "another path": ("POST", "/v2/completions", 404),
    "the root": ("GET", "/", 404),
    "another case": ("POST", "/v1/Completions", 404),
    "a trailing slash": ("POST", "/v1/completions/", 404),
    "a doubled slash": ("POST", "//v1/completions", 404),
    "dot segments": ("POST", "/v1/../v1/completions", 404),
    "encoded dot segments": ("POST", "/v1/engines/%2e%2e/completions", 404),
    "an encoded NUL": ("POST", "/v1/engines/m%00/completions", 404),
    "percent without digits": ("POST", "/v1/engines/%zz/completions", 404),
    "bytes that are not UTF-8": ("POST", "/v1/engines/%ff/completions", 404),
    "an unknown engine": ("POST", "/v1/engines/nobody/completions", 404),
    "an unknown model": ("GET", "/v1/models/nobody", 404),
    "metrics, which the other port has": ("GET", "/metrics", 404),
    "readiness, which the other port has": ("GET", "/readyz", 404),
    "a very long path": ("GET", "/" + "x" * 5_000, 404),
    "GET on completions": ("GET", "/v1/completions", 405),
    "PUT on completions": ("PUT", "/v1/completions", 405),
    "DELETE on a model": ("DELETE", "/v1/models/m", 405),
    "POST on the list of models": ("POST", "/v1/models", 405),
    "a method of another protocol": ("PROPFIND", "/v1/completions", 405),
    "a deployment without a version": ("POST", "/openai/deployments/m/completions", 400),
    "a deployment with an empty version": ("POST", "/openai/deployments/m/completions?api-version=", 400),
}


@pytest.mark.parametrize(("method", "path", "status"), PATHS.values(), ids=PATHS)
def test_a_path_or_method_that_is_not_served_is_refused(gateway: Gateway, method: str, path: str, status: int) -> None:
    body = b'{"prompt":"x"}' if method == "POST" else b""
    answer = call(gateway.base_url, method, path, [KEY, JSON], body)
    _expect(answer, status)
    assert bool(answer.header("allow")) == (status == 405)


# ---------------------------------------------------------------- what is not HTTP
RAW = {
    "no HTTP at all": b"hello\r\n\r\n",
    "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64 + b"\r\n\r\n",
    "a header without a colon": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n",
    "a header name with a space": b"GET /v1/models HTTP/1.1\r\nHost: x\r\na b: c\r\n\r\n",
    "a NUL in a header": b"GET /v1/models HTTP/1.1\r\nHost: x\r\na: b\x00c\r\n\r\n",
    "a content length that is none": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ten\r\n\r\n",
    "a content length below zero": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "two content lengths": (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}"
    ),
    "both framings": (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "a chunk size that is none": (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"
    ),
    "a method nobody knows": b"BREW /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n",
    "another version": b"GET /v1/models HTTP/9.9\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("sent", RAW.values(), ids=RAW)
def test_what_is_not_http_gets_a_4xx_or_a_closed_connection(gateway: Gateway, sent: bytes) -> None:
    client = Raw(gateway.base_url, timeout=5)
    client.send(sent)
    client.s.shutdown(socket.SHUT_WR)
    answer = client.response()
    client.close()
    assert answer.status == 0 or 400 <= answer.status < 500, answer
    if answer.status:
        assert answer.json()["error"]["message"]
        assert answer.header("Connection") == "close"


def test_a_head_above_the_bound_is_431(gateway: Gateway) -> None:
    answer = call(gateway.base_url, "GET", "/v1/models", [KEY, ("x-long", "x" * 100_000)])
    _expect(answer, 431)


def test_a_body_that_does_not_come_is_408(gateway: Gateway) -> None:
    client = Raw(gateway.base_url)
    client.request("POST", "/v1/completions", [KEY, JSON, ("Content-Length", 100)], b"{", auto_length=False)
    _expect(client.response(), 408)
    client.close()


def test_a_client_that_leaves_within_its_body_harms_nobody(gateway: Gateway, upstream: FakeUpstream) -> None:
    for _ in range(5):
        client = Raw(gateway.base_url)
        client.request("POST", "/v1/completions", [KEY, JSON, ("Content-Length", 100)], b"{", auto_length=False)
        client.close(rst=True)
    assert call(gateway.base_url, "POST", "/v1/completions", [KEY, JSON], GOOD).status == 200
    upstream.reset()


@pytest.mark.parametrize("coding", ["gzip", "chunked"])
def test_a_good_request_still_passes(gateway: Gateway, upstream: FakeUpstream, coding: str) -> None:
    body = gzip.compress(GOOD) if coding == "gzip" else b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
    header = ("Content-Encoding", "gzip") if coding == "gzip" else ("Transfer-Encoding", "chunked")
    answer = call(gateway.base_url, "POST", "/v1/completions", [KEY, JSON, header], body)
    assert answer.status == 200
    assert upstream.served[0].json()["prompt"] == "x"
    upstream.reset()


# ---------------------------------------------------------------- the control plane
@pytest.mark.parametrize(
    ("path", "headers", "statuses"),
    [
        ("/v1/organization/projects", [], {401}),
        ("/v1/organization/projects", [KEY], {401}),
        ("/nothing", [], {401, 404}),
        ("/v1/completions", [KEY], {401, 404, 405}),
        ("/metrics", [("Host", "evil.example")], {400, 403, 421}),
    ],
    ids=["no admin key", "a client's key", "an unknown path", "a data-plane path", "another host's name"],
)
def test_the_control_plane_refuses_strangers(
    gateway: Gateway, path: str, headers: list[tuple[str, str]], statuses: set[int]
) -> None:
    client = Raw(gateway.admin_url)
    host = [] if any(name == "Host" for name, _ in headers) else [("Host", urlsplit(gateway.admin_url).netloc)]
    lines = "".join(f"{name}: {value}\r\n" for name, value in [*host, *headers])
    client.send(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
    answer = client.response()
    client.close()
    assert answer.status in statuses
    assert answer.json()["error"]["message"]
