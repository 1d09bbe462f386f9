"""Bodies and heads as hostile, broken and careless clients write them: by a grammar of oddities, and byte by byte.

Every one starts from a request that could be right (`random_requests`) and is spoiled in one way of `KINDS`, some in a
way that leaves it right. Whatever becomes of it is for the oracle to judge; this file only makes bytes.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

import brotli
import zstandard
from random_requests import make_request
from swarm import request_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from oracle import Asked
    from random_requests import World

BODY_BYTES, DECOMPRESSED_BYTES = 600_000, 1_000_000
"""The bounds that a gateway under this fire is given, so that what passes them is still cheap to make."""


@dataclass(frozen=True)
class Shot:
    """One request on the wire, of which kind it is, and what its client meant by it."""

    kind: str
    asked: Asked
    wire: bytes
    is_right: bool = False
    """It must be served or refused exactly as its plain form; anything else may also be refused as unreadable."""
    is_framed: bool = True
    """Its end is where HTTP says; a server may close on anything else without an answer."""


# ---------------------------------------------------------------- bodies by grammar
_ODD_VALUES = r"""
null true false 0 -0 -1 1 1.0 1.5 128 129 1e2 1e-7 1e308 1e309 -1e400 9007199254740993 9223372036854775807
9223372036854775808 -9223372036854775809 [] {} [[]] [null] [1] ["x"] [true] [[1,2]] [{}] {"a":1} "" "x" "1" "true"
"NaN" {"":0} [1,"x"] [[1],"x"] [["best_of",3]] [["n",2],["m",3]] {"50256":-100} {"x":1} {"1":"x"} {"-1":1}
[[1,-100]] [[1,101]] [1.0,2.0] [-1] [1e99] ["\u0000"] "\ud83d\ude00"
""".split()  # noqa: SIM905  words read best as words
_BROKEN_VALUES = r"""
NaN Infinity -Infinity nan +1 .5 1. 01 -01 1e 1e+ 0x10 1_000 - True None undefined 'x' "x {a:1} [1,] {"a":1,} [,]
{"a":1,"a":1} {"a":{"b":[{"c":1,"c":2}]}} "\ud800" "\udc00" "\ud800\ud800" "\udc00\ud800" "\u12" "\x41"
"\" /**/1 1//x {"a"} {"a":} {1:2} [1 2] "a""b" {"\ud800":1} {"a":1,"\u0061":2}
""".split()  # noqa: SIM905  words read best as words
_MEMBERS = """
model prompt suffix max_tokens temperature top_p n best_of stream stream_options logprobs echo stop presence_penalty
frequency_penalty logit_bias seed user completion_config cache_level messages max_completion_tokens top_logprobs
input encoding_format dimensions max_output_tokens store background previous_response_id conversation tools
instructions reasoning text metadata safety_identifier service_tier n_predict x __proto__ modalities audio
web_search_options functions response_format prediction include truncation parallel_tool_calls
""".split()  # noqa: SIM905  words read best as words
_MESSAGE_ODDITIES = (
    '{"role":"user"}',
    '{"content":"x"}',
    '{"role":7,"content":[]}',
    '{"role":"user","content":[{"type":"image_url"}]}',
    '{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}',
    "null",
    "7",
    "[]",
    '{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}}]}',
    '"x"',
    "{}",
    '{"role":"tool","content":"x","tool_call_id":7}',
    '{"role":"user","content":[7,null,"x",[]]}',
    '{"type":"message"}',
    '{"role":"user","content":{"a":1}}',
    '{"role":"assistant","tool_calls":[null,7,{"function":7}]}',
    '{"type":7}',
    '{"type":"item_reference","id":7}',
    '{"type":"function_call_output","output":[{"type":"input_image"}]}',
)


def _with_member(body: bytes, name: str, value: str) -> bytes:
    """Put one more member into an object, before the others."""
    rest = body.lstrip()[1:].lstrip()
    return b"{" + json.dumps(name).encode() + b":" + value.encode() + (b"" if rest.startswith(b"}") else b",") + rest


def _without(body: bytes, name: str) -> bytes:
    fields = json.loads(body)
    fields.pop(name, None)
    return json.dumps(fields).encode()


def _odd_member(random: Random, asked: Asked) -> Asked:
    name = random.choice(_MEMBERS)
    body = _without(asked.body, name)
    for _ in range(random.choice([1, 1, 1, 2])):
        body = _with_member(_without(body, name), name, random.choice(_ODD_VALUES))
        name = random.choice(_MEMBERS)
    return replace(asked, body=body)


def _odd_message(random: Random, asked: Asked) -> Asked:
    name = {"chat/completions": "messages", "completions": "prompt"}.get(asked.endpoint, "input")
    values = random.choices(_MESSAGE_ODDITIES, k=random.randint(1, 3))
    return replace(asked, body=_with_member(_without(asked.body, name), name, f"[{','.join(values)}]"))


def _broken_member(random: Random, asked: Asked) -> Asked:
    name = random.choice(_MEMBERS)
    return replace(asked, body=_with_member(_without(asked.body, name), name, random.choice(_BROKEN_VALUES)))


def _duplicate(random: Random, asked: Asked) -> Asked:
    name = random.choice(list(json.loads(asked.body)) or ["x"])
    return replace(asked, body=_with_member(asked.body, name, random.choice(_ODD_VALUES)))


def _nested(random: Random, asked: Asked) -> Asked:
    depth = random.choice([2, 30, 61, 62, 63, 64, 65, 100, 1000, 50_000])
    opened, closed = random.choice([("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
    value = opened * depth + random.choice(["1", "null", '"]}"']) + closed * random.choice([depth, depth, depth - 1])
    return replace(asked, body=_with_member(asked.body, random.choice([*_MEMBERS[-12:], "y"]), value))


def _long(random: Random, asked: Asked) -> Asked:
    value = random.choice(
        [
            "9" * random.choice([30, 400, 4300, 4301, 20_000]),
            "1e" + "9" * random.choice([3, 10, 30]),
            "0." + "3" * random.choice([20, 1000]),
            "1" + "0" * 400 + ".0",
            json.dumps("ü" * random.choice([100, 5000])),
            "[" + ",".join(["1"] * 5000) + "]",
            "[" + ",".join(["[]"] * random.choice([1000, 5000])) + "]",
            json.dumps({str(number): number for number in range(500)}),
        ]
    )
    return replace(asked, body=_with_member(asked.body, random.choice(["x", "seed", "prompt", "max_tokens"]), value))


def _document(random: Random, asked: Asked) -> Asked:
    text = asked.body.decode()
    made = random.choice(
        [
            lambda: b"\xef\xbb\xbf" + asked.body,
            lambda: text.encode(random.choice(["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-7"])),
            lambda: text.encode("latin-1", "replace"),
            lambda: asked.body + random.choice([b"x", b"{}", b",", b"\0", b"\n\n\n", b"// end", b"]", b"}"]),
            lambda: random.choice(
                [b"", b" ", b"\n", b"null", b"[]", b"7", b'"x"', b"{", b"}", b"{}", b"[{}]", b"\xff"]
            ),
            lambda: b"[" + asked.body + b"]",
            lambda: asked.body.replace(b'"', b"'"),
            lambda: b"/* x */" + asked.body,
            lambda: asked.body.replace(b":", b"=", 1),
            lambda: asked.body + asked.body,
            lambda: asked.body[: random.randint(0, len(asked.body))],
            lambda: asked.body.replace(b" ", b"\x0b").replace(b",", b"\xa0,", 1),
            lambda: json.dumps(text).encode(),
        ]
    )
    return replace(asked, body=made())


_PIECES = (
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\0",
    b"\xff",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\\u",
    b"\\ud800",
    b"null",
    b"1e9",
    b"-",
    b"\x7f",
    b"\xf4\x90\x80\x80",
    b"\n",
    b"\xe2\x80\xa8",
)


def _mutated(random: Random, asked: Asked) -> Asked:
    body = bytearray(asked.body)
    for _ in range(random.choice([1, 1, 2, 4, 8])):
        at, end = sorted(random.randint(0, len(body)) for _ in range(2))
        drawn = random.random()
        if drawn < 0.3 and at < len(body):
            body[at] ^= 1 << random.randint(0, 7)
        elif drawn < 0.5:
            body[at:at] = random.choice(_PIECES)
        elif drawn < 0.65:
            del body[at : at + random.randint(1, 4)]
        elif drawn < 0.8:
            body[at:at] = body[at : min(end, at + 60)]
        elif drawn < 0.9 and at < len(body):
            body[at] = random.randint(0, 255)
        else:
            body[at:end] = body[at:end][::-1]
    return replace(asked, body=bytes(body))


# ---------------------------------------------------------------- what stands around a body
_TYPES = (
    "application/json",
    "APPLICATION/JSON",
    "application/json;charset=utf-8",
    'application/json; charset="UTF-8"',
    "application/json; charset=utf-16",
    "application/json; charset=latin1",
    "application/json; charset=",
    "text/plain",
    "application/json; charset=utf-8; charset=utf-16",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
    "json",
    "application/vnd.api+json",
    "text/json",
    "application/jsonx",
    "application/json, text/plain",
    ";",
    "application/",
    "*/*",
    "application/json; charset=utf8",
    'application/json; x="',
    "application/json; charset=us-ascii",
    "\xff",
    "text/html",
)


def _with_header(asked: Asked, *added: tuple[str, str], without: str = "") -> Asked:
    return replace(asked, headers=(*(each for each in asked.headers if each[0] != without), *added))


def _typed(random: Random, asked: Asked) -> Asked:
    if random.random() < 0.1:
        return _with_header(asked, without="Content-Type")
    return _with_header(asked, ("Content-Type", random.choice(_TYPES)), without="Content-Type")


def _raw_deflate(body: bytes) -> bytes:
    return zlib.compress(body)[2:-4]


_CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": lambda body: brotli.compress(body, quality=1),
    "zstd": zstandard.ZstdCompressor().compress,
}


def _coded(random: Random, asked: Asked) -> Asked:
    name = random.choice(list(_CODINGS))
    return _with_header(replace(asked, body=_CODINGS[name](asked.body)), ("Content-Encoding", name))


def _miscoded(random: Random, asked: Asked) -> Asked:
    name, told = (
        random.choice(list(_CODINGS)),
        random.choice([*_CODINGS, "compress", "x-gzip", "identity", "GZIP", "", "a b"]),
    )
    packed = _CODINGS[name](asked.body)
    body = random.choice(
        [
            lambda: asked.body,
            lambda: packed,
            lambda: packed[: random.randint(0, len(packed))],
            lambda: packed + random.choice([b"\0", b"x" * 20, packed]),
            lambda: _mutated(random, replace(asked, body=packed)).body,
            lambda: _CODINGS["gzip"](packed),
            lambda: _raw_deflate(asked.body),
            lambda: b"",
        ]
    )()
    told = random.choice([told, name, name, f"{name}, gzip", "gzip, gzip", f"identity, {name}"])
    return _with_header(replace(asked, body=body), ("Content-Encoding", told))


def _bomb(random: Random, asked: Asked) -> Asked:
    name = random.choice(list(_CODINGS))
    padded = b" " * random.choice([DECOMPRESSED_BYTES, 8 * DECOMPRESSED_BYTES]) + asked.body
    return _with_header(replace(asked, body=_CODINGS[name](padded)), ("Content-Encoding", name))


_HEADERS = (
    ("Cache-Control", "no-store, max-age=x, =, ;;"),
    ("Cache-Control", "only-if-cached"),
    ("X-Client-Request-Id", "x" * 600),
    ("X-Client-Request-Id", "\xe9\x7f"),
    ("traceparent", "00-zz"),
    ("Accept", "text/event-stream"),
    ("Accept-Encoding", "br;q=x"),
    ("Expect", "100-continue"),
    ("Cookie", "a=b"),
    ("OpenAI-Organization", "org-x"),
    ("X-Stainless-Retry-Count", "-1"),
    ("Connection", "x-api-key"),
    ("Range", "bytes=0-1"),
    ("X-Forwarded-For", "127.0.0.1"),
    ("X-HTTP-Method-Override", "GET"),
    ("api-key", "another"),
    ("Authorization", "Basic x"),
    ("Content-Language", "\t"),
    ("x-request-id", "mine"),
    ("If-None-Match", "*"),
    ("Idempotency-Key", "k"),
    ("X-Long", "y" * 5000),
    ("Upgrade", "websocket"),
    ("TE", "trailers"),
    ("Host", "other.example"),
)


def _with_odd_headers(random: Random, asked: Asked) -> Asked:
    return _with_header(asked, *random.sample(_HEADERS, random.randint(1, 3)))


_SEGMENTS = (
    "",
    "..",
    "%2e%2e",
    "%00",
    "%ff",
    "m%2Fx",
    "org%2Fmodel",
    "a" * 3000,
    "m;x",
    "m%20",
    "%",
    "%zz",
    "ü",
    "m//",
    "*",
    "m\\x",
)


_VERSIONS = ("", "%00", "x" * 400, "&api-version=2", "2024-10-21&x=%ff")
_ENDINGS = ("/", "?", "?x=%ff", "//", "%20", ";a", "%23x")


def _misaddressed(random: Random, asked: Asked) -> Asked:
    segment, drawn = random.choice(_SEGMENTS).encode().decode("latin-1"), random.random()
    if drawn < 0.3:
        path, asked = f"/v1/engines/{segment}/completions", replace(asked, endpoint="completions", is_azure=False)
    elif drawn < 0.5:
        path, asked = f"/openai/deployments/{segment}/{asked.endpoint}?api-version=1", replace(asked, is_azure=True)
    elif drawn < 0.7:
        version, segment, asked = random.choice(_VERSIONS), "m", replace(asked, is_azure=True)
        path = f"/openai/deployments/m/{asked.endpoint}?api-version={version}"
    else:
        ending = random.choice(_ENDINGS)
        return replace(asked, path=f"/v1/{asked.endpoint}{ending}", path_model=None, is_azure=False)
    return replace(asked, path=path, path_model=unquote(segment))


# ---------------------------------------------------------------- framing
_BROKEN_FRAMES = (
    b"Content-Length: -1",
    b"Content-Length: 1e3",
    b"Content-Length: 5\r\nContent-Length: 6",
    b"Transfer-Encoding: chunked, x",
    b"Transfer-Encoding: x",
    b"Content-Length: 5\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding : chunked",
    b"Content-Length:\r\n 5",
    b"Content-Length: +5",
    b"Content-Length: 99999999999999999999",
    b" x: y\r\nContent-Length: 0",
    b"No colon here\r\nContent-Length: 0",
    b"X\0Y: 1\r\nContent-Length: 0",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Content-Length: 0x5",
    b"Content-Length: 5, 5",
    b"X: " + b"z" * 70_000,
)
_BROKEN_CHUNKS = (
    b"zz\r\n",
    b"-1\r\nx\r\n",
    b"5\r\nabc\r\n0\r\n\r\n",
    b"5;\x00\r\nabcde\r\n0\r\n\r\n",
    b"fffffffffffffffff\r\n",
    b"5\nabcde\n0\n\n",
    b"0x5\r\nabcde\r\n0\r\n\r\n",
    b"+5\r\nabcde\r\n0\r\n\r\n",
    b"5 \r\nabcde\r\n0\r\n\r\n",
    b"\r\n\r\n",
)


def _misframed(random: Random, asked: Asked) -> bytes:
    head = request_bytes(asked.path, asked.headers, b"").removesuffix(b"Content-Length: 0\r\n\r\n")
    if random.random() < 0.5:
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + random.choice(_BROKEN_CHUNKS)
    return head + random.choice(_BROKEN_FRAMES) + b"\r\n\r\n" + asked.body


# ---------------------------------------------------------------- all of them
KINDS: dict[str, tuple[int, Callable[[Random, Asked], Asked] | None]] = {
    "as it should be": (8, None),
    "odd member": (22, _odd_member),
    "odd message": (6, _odd_message),
    "broken member": (8, _broken_member),
    "duplicate key": (4, _duplicate),
    "nested": (3, _nested),
    "long": (2, _long),
    "no such document": (8, _document),
    "mutated bytes": (24, _mutated),
    "content type": (4, _typed),
    "compressed": (3, _coded),
    "compressed wrongly": (4, _miscoded),
    "bomb": (0, _bomb),
    "odd headers": (3, _with_odd_headers),
    "address": (2, _misaddressed),
    "in chunks": (3, None),
    "frames": (1, None),
}
"""Every way to spoil a request, and how often each of a hundred is taken; one bomb in a thousand."""
_RIGHT = frozenset({"as it should be", "compressed", "in chunks"})


def make_shot(random: Random, world: World) -> Shot:
    """Return one request of a member of this world, spoiled in one of the ways."""
    asked = make_request(random, random.choice(world.members))
    kind = "bomb" if random.random() < 0.001 else random.choices(list(KINDS), [each[0] for each in KINDS.values()])[0]
    spoil = KINDS[kind][1]
    asked = spoil(random, asked) if spoil else asked
    if kind == "frames":
        return Shot(kind, asked, _misframed(random, asked), is_framed=False)
    chunks: Sequence[int] = random.choice([(1,), (7, 1, 300), (65_536,)]) if kind == "in chunks" else ()
    return Shot(
        kind, asked, request_bytes(asked.path, asked.headers, asked.body, chunks=chunks), is_right=kind in _RIGHT
    )


def make_salvo(random: Random, world: World) -> list[Shot]:
    """Return what one connection sends at once: mostly one request, now and then a few, pipelined."""
    if random.random() < 0.97:
        return [make_shot(random, world)]
    return [each for each in (make_shot(random, world) for _ in range(random.randint(2, 4))) if each.is_framed]
