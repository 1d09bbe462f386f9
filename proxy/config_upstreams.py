"""The settings of one upstream: where it is, how it is spoken to, how much it is asked at once.

Knows nothing of models, and does nothing: what follows from a setting is in `upstreams/`.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from policies.settings import Items, Settings
from proxy.config_values import (  # noqa: TC001  pydantic reads the annotations at run time
    BaseUrl,
    Credential,
    FilePath,
    Wait,
)

CLIENTS_VERSION = "client"
_MODELS_PATH = "/models"


class QueueSettings(Settings):
    """Who waits for one of an upstream's `concurrency` places, in each worker."""

    length: NonNegativeInt = 100
    """How many may wait; who comes then is sent to another deployment, or refused."""
    max_wait: Wait = 10_000
    """How long; past it 503."""


class HealthSettings(Settings):
    """Active health checks: a GET every now and then, whose answer is thrown away."""

    path: Annotated[str, Field(pattern=r"^/[!-~]*$")] = _MODELS_PATH
    """Below `base_url`, with its slash; 2xx and 429 mean healthy."""
    every: Wait = 10_000
    """Between two checks; each worker makes its own."""
    timeout: Wait = 2_000
    """For the answer; past it the check failed."""
    failures: PositiveInt = 2
    """So many in a row mean unhealthy: others are tried first."""
    successes: PositiveInt = 1
    """So many in a row mean healthy again."""


class TlsSettings(Settings):
    """TLS beyond the system's: whom to trust, and who the gateway is."""

    ca_file: FilePath | None = None
    """Certificates (PEM) that are trusted in place of the system's."""
    certificate_file: FilePath | None = None
    """The gateway's own certificate (PEM) for upstreams that ask for one, with its chain."""
    key_file: FilePath | None = None
    """Its private key (PEM), unencrypted; absent: in the certificate's file."""

    @model_validator(mode="after")
    def _has_certificate(self) -> TlsSettings:
        if self.key_file is not None and self.certificate_file is None:
            msg = "key_file is the key of a certificate: give certificate_file too"
            raise ValueError(msg)
        return self


class Upstream(Settings):
    """A real model server that the gateway forwards to; one entry under `upstreams`."""

    kind: Literal["openai", "azure"]
    """openai for OpenAI, vLLM, llama.cpp and all that speak it; azure for Azure's deployments paths."""
    base_url: BaseUrl
    """openai: up to and including /v1; azure: scheme and host. env:NAME and file:PATH work."""
    api_key: Credential | None = None
    """Credential sent upstream; env:NAME or file:PATH keep it out of the file. Absent: none is sent."""
    api_version: Annotated[str, Field(min_length=1)] | None = None
    """azure only: the api-version sent, or `client` for the client's own. Absent: the client's where it sent one."""
    stream_usage: Literal["ask", "off"] = "ask"
    """Whether streams are asked for their usage; off counts what was generated instead."""
    concurrency: PositiveInt | None = None
    """Most requests at once, the workers of a gateway together; absent: any number."""
    queue: QueueSettings = QueueSettings()
    """Who waits for one of these places."""
    health: HealthSettings | None = None
    """Active health checks; absent: none, requests alone tell how it is."""
    tls: TlsSettings = TlsSettings()
    """Whom to trust, and a certificate of the gateway's own."""
    proxy: Literal["environment", "none"] = "environment"
    """environment: HTTP_PROXY, HTTPS_PROXY and NO_PROXY say how to get there. Loopback is never behind a proxy."""
    identity_headers: Items[Literal["project", "user"]] = ()
    """Who asks: x-tidegate-project, the id; x-tidegate-user, a pseudonym (needs pseudonym_key)."""

    @model_validator(mode="after")
    def _fits_kind(self) -> Upstream:
        if self.kind != "azure" and self.api_version is not None:
            msg = "api_version is for kind: azure only; leave it out"
            raise ValueError(msg)
        if self.kind == "azure" and urlsplit(self.base_url).path.startswith("/openai"):
            msg = "base_url of kind: azure is scheme and host only: /openai/deployments/… is added to it"
            raise ValueError(msg)
        if self.kind == "azure" and self.health is not None and self.health.path == _MODELS_PATH:
            msg = "health.path of kind: azure has to be said, such as /openai/models?api-version=2024-10-21"
            raise ValueError(msg)
        return self
