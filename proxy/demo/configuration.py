"""The configuration that the demo serves: one real model, one key, one policy that shows what policies do.

Knows settings; it starts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.config import Configuration
from proxy.credentials import digest
from proxy.demo.model_server import CONTEXT_TOKENS, MODEL_NAME, SLOTS

if TYPE_CHECKING:
    from pathlib import Path

ALIASES = ("davinci", "gpt-3.5-turbo-instruct")
"""Names that existing clients ask for; the same small model answers."""
_MAX_TOKENS = 256
_DEFAULT_TOKENS = 32
_SENT_TO_MODEL = "local"


def demo_configuration(*, base_url: str, key: str, listen: str, admin_listen: str, data_dir: Path) -> Configuration:
    """Return the demo's configuration before a model server at `base_url`, with one API key.

    Raises pydantic's ValidationError for an address that is none.
    """
    return Configuration.model_validate(
        {
            "listen": listen,
            "admin_listen": admin_listen,
            "data_dir": data_dir,
            "organization": {"id": "org_demo", "name": "Demo"},
            "upstreams": {_SENT_TO_MODEL: {"kind": "openai", "base_url": base_url}},
            "models": {
                MODEL_NAME: {
                    "deployments": [{"upstream": _SENT_TO_MODEL}],
                    "aliases": ALIASES,
                    "context_window": CONTEXT_TOKENS,
                    "token_ceiling": "max_tokens",
                    "price": {"input": 0.1, "output": 0.4},
                }
            },
            "policies": {
                "demo": {
                    "parameters": {
                        "n": {"max": SLOTS, "on_violation": "clamp"},
                        "best_of": {"max": SLOTS, "on_violation": "clamp"},
                        "max_tokens": {"max": _MAX_TOKENS, "default": _DEFAULT_TOKENS, "on_violation": "clamp"},
                    },
                    "limits": [
                        {"of": "requests", "limit": 60, "per": "minute", "by": ["user"]},
                        {"of": "tokens", "limit": 50_000, "per": "hour", "by": ["user"]},
                        {"of": "concurrency", "limit": 8, "by": ["key"]},
                    ],
                }
            },
            "projects": [{"id": "proj_demo", "name": "Demo", "policy": "demo"}],
            "keys": [
                {
                    "id": "key_demo",
                    "project": "proj_demo",
                    "user": "you",
                    "sha256": digest(key),
                }
            ],
        }
    )
