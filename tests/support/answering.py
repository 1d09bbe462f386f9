"""What a model server answers that is well: each prompt its own text, each call another serial number, true counts.

A serial number that comes twice proves that an answer came from a cache. Used as the scripted upstream's default.
"""

from __future__ import annotations

import base64
import itertools
import json
import struct
from typing import TYPE_CHECKING, Any

from fake_upstream import DONE, ev, json_reply, sse_reply, vec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fake_upstream import Ops, Req


def text_of(prompt: str, serial: int, choice: int = 0) -> str:
    """Return what is answered to a prompt."""
    return f"{prompt} answered by call {serial}, choice {choice}"


def usage_of(prompts: Sequence[str], texts: Sequence[str]) -> dict[str, int]:
    """Return what is reported for prompts and all that was generated: one token a character."""
    given, generated = sum(map(len, prompts)), sum(map(len, texts))
    return {"prompt_tokens": given, "completion_tokens": generated, "total_tokens": given + generated}


class Answering:
    """A server for completions, chat completions and embeddings; `fingerprint` is what it shows from now on."""

    def __init__(self, fingerprint: str | None = None) -> None:
        self.fingerprint = fingerprint
        self._serial = itertools.count(1)

    def __call__(self, req: Req) -> Ops:
        serial, asked = next(self._serial), req.json()
        if req.path.endswith("/embeddings"):
            return json_reply(self._embeddings(asked))
        is_chat = req.path.endswith("/chat/completions")
        prompts = [asked["messages"][-1]["content"]] if is_chat else _listed(asked["prompt"])
        choices = asked.get("n") or 1
        texts = [text_of(prompt, serial, choice) for prompt in prompts for choice in range(choices)]
        usage = usage_of(prompts, texts)
        if asked.get("stream"):
            wants_usage = (asked.get("stream_options") or {}).get("include_usage")
            return sse_reply(self._events(texts, usage if wants_usage else None, is_chat=is_chat), gap=0)
        return json_reply(self._whole(texts, usage, is_chat=is_chat))

    def _members(self, kind: str) -> dict[str, Any]:
        told = {} if self.fingerprint is None else {"system_fingerprint": self.fingerprint}
        return {"id": "x", "object": kind, "created": 1, "model": "m", **told}

    def _whole(self, texts: Sequence[str], usage: dict[str, int], *, is_chat: bool) -> dict[str, Any]:
        choices = [
            {"index": index, **_said(text, is_chat=is_chat), "logprobs": None, "finish_reason": "stop"}
            for index, text in enumerate(texts)
        ]
        return {
            **self._members("chat.completion" if is_chat else "text_completion"),
            "choices": choices,
            "usage": usage,
        }

    def _events(self, texts: Sequence[str], usage: dict[str, int] | None, *, is_chat: bool) -> list[bytes]:
        members = self._members("chat.completion.chunk" if is_chat else "text_completion")
        pieces = [(index, piece, None) for index, text in enumerate(texts) for piece in (text[:5], text[5:])]
        pieces += [(index, "", "stop") for index in range(len(texts))]
        events = [
            {"index": index, **_piece(piece, is_chat=is_chat), "logprobs": None, "finish_reason": finish}
            for index, piece, finish in pieces
        ]
        told = [] if usage is None else [ev({**members, "choices": [], "usage": usage})]
        return [*(ev({**members, "choices": [event]}) for event in events), *told, DONE]

    def _embeddings(self, asked: dict[str, Any]) -> dict[str, Any]:
        inputs = _listed(asked["input"])
        is_packed = asked.get("encoding_format") == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": packed(vec(text)) if is_packed else vec(text)}
            for index, text in enumerate(inputs)
        ]
        tokens = sum(map(len, inputs))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "model": "m", "data": data, "usage": usage}


def packed(vector: Sequence[float]) -> str:
    """Write a vector as base64 of little-endian floats of 32 bits."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def texts_in(body: bytes) -> list[str]:
    """Return the texts of a whole answer, in the order of its choices."""
    return [choice["text"] for choice in json.loads(body)["choices"]]


def _listed(given: Any) -> list[str]:  # noqa: ANN401  a JSON value
    return given if isinstance(given, list) else [given]


def _said(text: str, *, is_chat: bool) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}


def _piece(piece: str, *, is_chat: bool) -> dict[str, Any]:
    return {"delta": {"content": piece}} if is_chat else {"text": piece}
