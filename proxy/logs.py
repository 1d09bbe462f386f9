"""What is logged and how: JSON lines on standard error, one for every request (SPEC §11).

Field names are those of the usage record and the metrics. No prompt, completion or key is ever written; whatever else
a client sent is escaped by the encoder, so that it cannot start a line of its own. This file does not know when a
request ends; whoever knows calls `log_exchange`.
"""

from __future__ import annotations

import logging
import os
import select
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import msgspec
import structlog

if TYPE_CHECKING:
    from typing import BinaryIO

    from policies.charges import Charged
    from proxy.exchange import Exchange

MAX_FIELD_CHARACTERS = 256
"""Longest client text in a line: pipes carry lines below 4 KiB whole, also when several workers write at once."""

_SERVER_ERROR = 500
_STANDARD_ERROR = 2
_JSON = msgspec.json.Encoder(enc_hook=str)
_requests = structlog.get_logger("tidegate.requests")


def configure(**bound: object) -> None:
    """Send our own and the libraries' log lines to standard error as JSON; `bound` fields stand on every line."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _add(bound),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, _render_bytes],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.BytesLoggerFactory(cast("BinaryIO", _StandardError())),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(_StandardError())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _render_text,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


def silence() -> None:
    """Send nothing below critical: for commands, which say themselves in one line what went wrong."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


class _StandardError:
    """Standard error, whatever has become of it: what cannot be written at once is dropped, and nobody waits or fails.

    Lines are written in the middle of requests and of background tasks; a pipe whose reader has gone, or has stopped
    reading, must end or delay none of them.
    """

    def __init__(self) -> None:
        self._room = select.poll()
        self._room.register(_STANDARD_ERROR, select.POLLOUT)

    def write(self, line: bytes | str) -> int:
        """Write a line as far as that can be done without waiting."""
        data = line.encode("utf-8", "backslashreplace") if isinstance(line, str) else line
        with suppress(OSError):
            for start in range(0, len(data), select.PIPE_BUF):
                if not self._room.poll(0):
                    break
                os.write(_STANDARD_ERROR, data[start : start + select.PIPE_BUF])
        return len(line)

    def flush(self) -> None:
        """Do nothing: what is written has left."""


def _add(bound: dict[str, object]) -> structlog.typing.Processor:
    def add(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**bound, **event}

    return add


def _render_bytes(_logger: object, _method: str, event: structlog.typing.EventDict) -> bytes:
    try:
        return _JSON.encode(event)
    except UnicodeEncodeError:
        return _JSON.encode({name: _without_surrogates(value) for name, value in event.items()})


def _render_text(logger: object, method: str, event: structlog.typing.EventDict) -> str:
    return _render_bytes(logger, method, event).decode()


def _without_surrogates(value: object) -> object:
    """Write what JSON's encoder refuses as escapes: header values carry lone surrogates for bytes above ASCII."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def log_exchange(exchange: Exchange, charged: Charged | None) -> None:
    """Write the one line of a finished exchange; what does not apply to it is left out."""
    fields = {
        **_request_fields(exchange),
        **_answer_fields(exchange),
        **_time_fields(exchange),
        **({} if charged is None else _charge_fields(charged)),
    }
    log = _requests.warning if exchange.status >= _SERVER_ERROR else _requests.info
    log("request", **{name: value for name, value in fields.items() if value is not None})


def _request_fields(exchange: Exchange) -> dict[str, object]:
    principal, decision = exchange.principal, exchange.decision
    fields: dict[str, object] = {
        "request_id": exchange.request_id,
        "client_request_id": _short(exchange.client_request_id),
        "route": exchange.route,
    }
    if principal is not None:
        fields |= {"project": principal.project, "owner": principal.owner, "key": principal.key}
    if decision is not None:
        fields |= {
            "model": decision.model.name,
            "endpoint": decision.asked.endpoint.value,
            "dialect": decision.asked.dialect.value,
            "stream": decision.effective.view.is_stream,
            "adjustments": len(decision.adjustments) or None,
        }
    return fields


def _answer_fields(exchange: Exchange) -> dict[str, object]:
    fields: dict[str, object] = {
        "status": exchange.status,
        "outcome": exchange.outcome.value,
        "error_code": exchange.error_code,
    }
    if exchange.decision is not None:
        fields |= {"cache": exchange.cache.value, "cache_reason": exchange.cache_reason}
    if exchange.attempts:
        fields |= {
            "attempts": exchange.attempts,
            "upstream": exchange.upstream,
            "deployment": exchange.deployment,
            "upstream_status": exchange.upstream_status,
            "upstream_request_id": _short(exchange.upstream_request_id),
        }
    return fields


def _time_fields(exchange: Exchange) -> dict[str, object]:
    return {
        "duration_seconds": exchange.duration_seconds,
        "waited_seconds": exchange.waited_seconds,
        "time_to_first_token_seconds": exchange.time_to_first_token_seconds,
    }


def _charge_fields(charged: Charged) -> dict[str, object]:
    return {
        "input_tokens": charged.input_tokens,
        "output_tokens": charged.output_tokens,
        "cost_microdollars": charged.cost_microdollars,
        "known": charged.known,
    }


def _short(text: str | None) -> str | None:
    return None if text is None else text[:MAX_FIELD_CHARACTERS]
