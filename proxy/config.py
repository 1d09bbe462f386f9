"""The configuration as one frozen tree: every setting, its default, its unit, and what happens when one turns it.

Holds shapes and what can be judged of a value by itself; which names must exist and be unique is in
`config_references`. Knows neither files nor the environment: `config_file` reads those and hands plain values in,
with a resolver for secrets in the validation context.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from policies.catalog import ModelSettings  # noqa: TC001  pydantic reads the annotations at run time
from policies.policy import Policy  # noqa: TC001  likewise
from policies.principals import AppliedPolicy, Level, Principal
from policies.rule_checks import check_rule
from policies.rulebook import Rulebook
from policies.settings import Items, Milliseconds, Settings
from policies.windows import Rolling, parse_window
from proxy import config_references
from proxy.config_references import Problem
from proxy.config_upstreams import CLIENTS_VERSION, Upstream
from proxy.config_values import (
    EMBEDDED,
    Address,
    Credential,
    FilePath,
    Identifier,
    Lease,
    Listen,
    ModelName,
    ModelPatterns,
    Sha256,
    StoreAddress,
    Wait,
    read_address,
)
from proxy.tokenizers import missing_package, text_counter

_LISTEN = "127.0.0.1:8080"
_ADMIN_LISTEN = "127.0.0.1:8081"
EVERY_MODEL = "*"
_KIBIBYTE = 1024
_MEBIBYTE = 1024 * _KIBIBYTE
_VERSION_DIGITS = 12
_LIMIT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_BURST = "is the room of a bucket that refills, as with per: minute or a duration; leave it out here"


_NOT_DECIDING = {
    *("listen", "admin_listen", "admin_hosts", "admin_keys", "metrics_key"),
    *("workers", "data_dir", "state", "cache_state", "drain_timeout", "lease"),
}


def _check_policy(policy: Policy) -> Policy:
    problems = [*_rule_problems(policy), *_limit_problems(policy)]
    if problems:
        raise config_references.with_problems(None, problems)
    return policy


def _check_model(settings: ModelSettings) -> ModelSettings:
    missing = None if settings.tokenizer is None else missing_package()
    if missing is not None:
        raise config_references.with_problems(None, [Problem(("tokenizer",), missing)])
    return settings


def _rule_problems(policy: Policy) -> Iterator[Problem]:
    for name, rule in policy.parameters.items():
        yield from (Problem(("parameters", name), told) for told in check_rule(name, rule))


def _limit_problems(policy: Policy) -> Iterator[Problem]:
    for position, limit in enumerate(policy.limits):
        try:
            window = parse_window(limit.per)
        except ValueError as error:
            yield Problem(("limits", position, "per"), str(error))
        else:
            if limit.burst is not None and not isinstance(window, Rolling):
                yield Problem(("limits", position, "burst"), _BURST)
        if limit.name is not None and _LIMIT_NAME.fullmatch(limit.name) is None:
            yield Problem(
                ("limits", position, "name"), "may hold letters, digits and _ . - only: it goes out in headers"
            )


class Organization(Settings):
    """Whose gateway this is."""

    id: Identifier = "org_default"
    """Part of every key in the store: changing it starts all counts and the cache anew."""
    name: str = "Default"
    """For people to read."""
    time_zone: str = "UTC"
    """Where days, weeks and months of limits begin, such as Europe/Berlin."""
    policy: str | None = None
    """Policy that applies to everybody."""

    @field_validator("time_zone")
    @classmethod
    def _zone_exists(cls, name: str) -> str:
        return config_references.check_time_zone(name)

    @property
    def zone(self) -> ZoneInfo:
        """The time zone, ready for arithmetic."""
        return ZoneInfo(self.time_zone)


class Project(Settings):
    """A project; keys belong to one."""

    id: Identifier
    """Name in keys, limits, metrics and records."""
    name: str | None = None
    """For people to read; absent: the id."""
    policy: str | None = None
    """Policy that applies to all keys of the project."""
    models: ModelPatterns = ("*",)
    """Model names or wildcards that the project may use."""


class User(Settings):
    """A person who owns keys. Users need not be listed; those who are may have a policy."""

    id: Identifier
    """As written in the `user` of keys."""
    policy: str | None = None
    """Policy that applies to all keys of the user, in every project."""


class Key(Settings):
    """An API key, known by its hash only."""

    id: Identifier
    """Name in limits and records; it says nothing of the key itself."""
    project: str
    """Id of an entry under `projects`."""
    user: Identifier | None = None
    """The person who owns the key."""
    service_account: Identifier | None = None
    """The service account that owns the key, in place of a user."""
    sha256: Sha256
    """SHA-256 of the key in hexadecimal; `tidegate keys create` and `tidegate keys hash` print it."""
    policy: str | None = None
    """Policy that applies to this key alone."""
    models: ModelPatterns = ("*",)
    """Model names or wildcards that the key may use, within what its project may."""

    @model_validator(mode="after")
    def _has_one_owner(self) -> Key:
        if (self.user is None) == (self.service_account is None):
            msg = "needs one owner: write either user or service_account"
            raise ValueError(msg)
        return self

    @property
    def owner(self) -> str:
        """Id of the user or service account that owns the key."""
        return self.user or self.service_account or ""


class AdminKey(Settings):
    """A key for the control plane, known by its hash only."""

    name: Identifier
    """Name in logs and audit records."""
    sha256: Sha256
    """SHA-256 of the key in hexadecimal; `tidegate keys create --admin` prints it."""


class Bounds(Settings):
    """How large a request may be (SPEC §3); past one of these it is refused before anything else is done."""

    body_bytes: PositiveInt = 32 * _MEBIBYTE
    """Largest body as sent; past it 413."""
    decompressed_body_bytes: PositiveInt = 64 * _MEBIBYTE
    """Largest body once decompressed; past it 413."""
    json_depth: PositiveInt = Field(default=64, le=512)
    """Deepest nesting of arrays and objects; past it 400."""
    head_bytes: PositiveInt = 64 * _KIBIBYTE
    """Largest request line and headers; past it 431."""
    body_seconds: PositiveFloat = 30.0
    """Longest time to send the body; past it 408."""


class Timeouts(Settings):
    """How long the gateway waits for an upstream, and for a client; there is no bound on the whole."""

    connect: Wait = 5_000
    """For a connection; past it the next deployment is tried."""
    first_byte: Wait = 600_000
    """For the answer to begin; past it 504."""
    silence: Wait = 300_000
    """Between two pieces of an answer; past it the stream ends with an error event."""
    client: Wait = 60_000
    """For a client to take some more of its answer; past it the connection is broken."""

    @property
    def connect_seconds(self) -> float:
        """As `connect`, in seconds."""
        return self.connect / 1000

    @property
    def first_byte_seconds(self) -> float:
        """As `first_byte`, in seconds."""
        return self.first_byte / 1000

    @property
    def silence_seconds(self) -> float:
        """As `silence`, in seconds."""
        return self.silence / 1000

    @property
    def client_seconds(self) -> float:
        """As `client`, in seconds."""
        return self.client / 1000


class Configuration(Settings):
    """Everything that is configured. Durations are whole milliseconds here, and `90s` or `7d` in the file."""

    listen: Listen = _LISTEN
    """Where clients are served (data plane)."""
    admin_listen: Listen = _ADMIN_LISTEN
    """Where operators are served (control plane): metrics, health, administration."""
    admin_hosts: Items[str] = ()
    """Host names the control plane answers to besides IP addresses and localhost."""
    workers: PositiveInt = Field(default=1, le=256)
    """Processes that serve clients; one a core."""
    data_dir: FilePath = Path("data")
    """Folder for what is kept: embedded store, spool, usage records. Relative to the configuration file."""
    state: StoreAddress = SecretStr(EMBEDDED)
    """Store of limits, holds and unsent records; must not evict.

    embedded, redis://…, redis+sentinel://…, redis+cluster://…, each also rediss…, or unix://….
    """
    cache_state: StoreAddress | None = None
    """Store of cached answers, likewise. Absent: embedded beside an embedded state, else the same server."""
    metrics_key: Credential | None = None
    """Bearer token that /metrics asks for; absent: none."""
    organization: Organization = Organization()
    """Whose gateway this is: id, name, time zone, and the policy for everybody."""
    admin_keys: Items[AdminKey] = ()
    """Keys for the control plane; absent: one is made at start and printed once."""
    upstreams: dict[Identifier, Upstream] = Field(default_factory=dict)
    """Model servers by name."""
    models: dict[ModelName, Annotated[ModelSettings, AfterValidator(_check_model)]] = Field(default_factory=dict)
    """Models by the name that clients use."""
    policies: dict[Identifier, Annotated[Policy, AfterValidator(_check_policy)]] = Field(default_factory=dict)
    """Policies by name; they apply where organization, projects, users or keys name them."""
    pseudonym_key: Credential | None = None
    """Secret that pseudonyms of end users are made with, for rules that say pseudonymise; another one makes others."""
    projects: Items[Project] = ()
    """Projects; every key belongs to one."""
    users: Items[User] = ()
    """Users that have a policy of their own."""
    keys: Items[Key] = ()
    """API keys of clients."""
    bounds: Bounds = Bounds()
    """How large a request may be."""
    timeouts: Timeouts = Timeouts()
    """How long upstreams may take, and clients that read."""
    heartbeat: Wait | None = None
    """How long a stream is silent until the gateway writes a comment of its own into it; absent: never."""
    max_entry_bytes: NonNegativeInt = _MEBIBYTE
    """Largest answer that is cached, or read whole before its head goes out."""
    max_flight_bytes: NonNegativeInt = 64 * _MEBIBYTE
    """What a worker keeps of answers under way so that equal requests may join them, all together."""
    cache_memory_bytes: NonNegativeInt = 64 * _MEBIBYTE
    """Answers that a worker keeps in its own memory in front of the cache store; 0: none."""
    cache_store_bytes: Annotated[int, Field(ge=_MEBIBYTE)] = 256 * _MEBIBYTE
    """Memory of an embedded `cache_state`, whose least used answers go first."""
    join_wait: Milliseconds = 2_000
    """How long a request waits for the equal one of another process before it goes upstream itself."""
    fingerprint_window: Milliseconds = 600_000
    """How long a deployment has to answer with another fingerprint before answers with the former are stale."""
    max_event_bytes: PositiveInt = 16 * _MEBIBYTE
    """Largest event of a stream that is kept together; a larger one flows in pieces."""
    drain_timeout: Milliseconds = 30_000
    """How long a stopping gateway lets answers under way finish."""
    lease: Lease = 30_000
    """How long the holds of a worker that died stay before they are settled at their worst case."""

    @model_validator(mode="wrap")
    @classmethod
    def _names_exist(cls, data: Any, handler: ModelWrapValidatorHandler[Configuration]) -> Configuration:  # noqa: ANN401
        """Report names that are unknown or taken together with everything else that is wrong, not after it."""
        addresses = {"listen": _LISTEN, "admin_listen": _ADMIN_LISTEN}
        own = config_references.find_problems({**addresses, **data} if isinstance(data, Mapping) else data)
        try:
            made = handler(data)
        except ValidationError as error:
            raise config_references.with_problems(error, own) from None
        if own:
            raise config_references.with_problems(None, own)
        return made

    @property
    def listen_address(self) -> Address:
        """Host and port of the data plane."""
        return read_address(self.listen)

    @property
    def admin_listen_address(self) -> Address:
        """Host and port of the control plane."""
        return read_address(self.admin_listen)

    @property
    def state_url(self) -> str | None:
        """Address of the state store, which may hold a password; None when it is embedded."""
        return _address_of(self.state)

    @property
    def cache_state_url(self) -> str | None:
        """Address of the cache store, which may hold a password; None when it is embedded."""
        return self.state_url if self.cache_state is None else _address_of(self.cache_state)

    @property
    def cache_shares_state(self) -> bool:
        """Whether cached answers stand on the server that must not evict (SPEC §10)."""
        return self.state_url is not None and self.cache_state_url == self.state_url

    @property
    def drain_timeout_seconds(self) -> float:
        """As `drain_timeout`, in seconds."""
        return self.drain_timeout / 1000

    @property
    def heartbeat_seconds(self) -> float | None:
        """As `heartbeat`, in seconds."""
        return None if self.heartbeat is None else self.heartbeat / 1000

    @property
    def lease_seconds(self) -> float:
        """As `lease`, in seconds."""
        return self.lease / 1000

    def rulebook(self) -> Rulebook:
        """Return the models and policies, prepared for deciding."""
        forwarding = {
            name
            for name, upstream in self.upstreams.items()
            if upstream.kind == "azure" and upstream.api_version in {None, CLIENTS_VERSION}
        }
        key = self.pseudonym_key.get_secret_value().encode() if self.pseudonym_key else b""
        tokenizers = {model.tokenizer for model in self.models.values() if model.tokenizer is not None}
        return Rulebook(self.models, self.policies, forwarding, key, {name: text_counter(name) for name in tokenizers})

    def principals(self) -> dict[str, Principal]:
        """Return who each configured key stands for, by the key's SHA-256 in hexadecimal."""
        projects = {project.id: project for project in self.projects}
        users = {user.id: user for user in self.users}
        return {key.sha256: self._principal(key, projects[key.project], users.get(key.user or "")) for key in self.keys}

    def organization_principal(self) -> Principal:
        """Return who the gateway's own requests are of: the organization, under its policy."""
        name = self.organization.policy
        policies = () if name is None else (AppliedPolicy("organization", name),)
        return Principal(self.organization.id, "", "", "", policies=policies)

    def _principal(self, key: Key, project: Project, user: User | None) -> Principal:
        levels: dict[Level, str | None] = {
            "organization": self.organization.policy,
            "project": project.policy,
            "user": user.policy if user else None,
            "key": key.policy,
        }
        return Principal(
            organization=self.organization.id,
            project=project.id,
            owner=key.owner,
            key=key.id,
            models=self._models_of(project, key),
            policies=tuple(AppliedPolicy(level, name) for level, name in levels.items() if name is not None),
            is_service_account=key.service_account is not None,
        )

    def _models_of(self, project: Project, key: Key) -> tuple[str, ...]:
        """Return patterns of the models that both project and key allow."""
        if EVERY_MODEL in key.models:
            return project.models
        if EVERY_MODEL in project.models:
            return key.models
        both = (name for name in self.models if _matches(name, project.models) and _matches(name, key.models))
        return tuple(escape(name) for name in both)

    @property
    def version(self) -> str:
        """Short hash of all that decides about requests; the same on every machine, whatever its secrets."""
        content = self.model_dump_json(exclude=_NOT_DECIDING)
        return hashlib.sha256(content.encode()).hexdigest()[:_VERSION_DIGITS]

    def resolved_json(self) -> str:
        """Write the whole tree, secrets included, for the gateway's own workers; `from_resolved_json` reads it."""
        return self.model_dump_json(context={"reveal": True}, exclude_unset=True)

    @classmethod
    def from_resolved_json(cls, text: str | bytes) -> Configuration:
        """Read what `resolved_json` wrote."""
        return cls.model_validate_json(text)


def _matches(model: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in patterns)


def _address_of(store: SecretStr) -> str | None:
    text = store.get_secret_value()
    return None if text == EMBEDDED else text
