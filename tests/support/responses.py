"""Answers and event streams of the Responses API, for the scripted upstream.

Knows the shapes that OpenAI's public document gives them; every event that the API numbers is numbered here too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fake_upstream import json_reply, sse_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fake_upstream import Ops, Req

USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 18,
}
"""Of every response here that reports one."""


def response(
    text: str = "", *, status: str = "completed", model: str = "m", usage: dict[str, Any] | None = USAGE, **more: object
) -> dict[str, Any]:
    """Return a response object; `more` are further members, which replace those made here."""
    item = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": model,
        "output": [item] if text else [],
        "usage": usage,
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **more,
    }


def event(number: int, kind: str, **members: object) -> bytes:
    """Return one typed event."""
    data = json.dumps({"type": kind, "sequence_number": number, **members})
    return f"event: {kind}\ndata: {data}\n\n".encode()


def delta(number: int, text: str, **more: object) -> bytes:
    """Return the event of one piece of text."""
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
    return event(number, "response.output_text.delta", delta=text, **place, **more)


def stream(texts: Sequence[str], *, end: str = "completed", model: str = "m", **more: object) -> list[bytes]:
    """Return a whole stream's events: three that begin it, a delta for each text, the whole text, and its end."""
    whole = "".join(texts)
    begun = response(status="in_progress", usage=None, model=model)
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
    count = len(texts) + 3
    return [
        event(0, "response.created", response=begun),
        event(1, "response.output_item.added", output_index=0, item=item),
        event(2, "response.content_part.added", item_id="msg_1", output_index=0, content_index=0, part=part),
        *(delta(number, text) for number, text in enumerate(texts, 3)),
        event(count, "response.output_text.done", text=whole, **place),
        event(count + 1, f"response.{end}", response=response(whole, status=end, model=model, **more)),
    ]


def answer(req: Req) -> Ops:
    """Answer a request as the API does, plain or streamed, with the text `Hello there`."""
    body = req.json()
    model = body.get("model", "m")
    if body.get("stream"):
        return sse_reply(stream(["Hello", " there"], model=model), gap=0)
    return json_reply(response("Hello there", model=model))
