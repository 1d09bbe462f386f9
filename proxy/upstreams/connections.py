"""The way to an upstream, made once for each: whom its TLS trusts, which certificate is shown, which proxy is between.

Also tells what is wrong with the settings of either, and says a failed TLS greeting in words that name the setting
which helps. Certificates and keys are read here, and what stands in them is never repeated. Opens no connection.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy.config_references import Problem
from proxy.upstreams.proxies import Proxy, UnusableProxy, find_proxy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from proxy.config_upstreams import TlsSettings, Upstream

_CA_FILE = "ca_file"
_CERTIFICATE_FILE = "certificate_file"
_KEY_FILE = "key_file"
_ENCRYPTED_KEY = "holds an encrypted key, and there is nobody to type its password: give one without"

# By OpenSSL's number of what is wrong with a certificate (X509_V_ERR_…): what an operator can do about it.
_EXPIRED = 10
_NAMES_ANOTHER = (62, 64)
_REMEDIES = {
    _EXPIRED: "the upstream needs a new one",
    **dict.fromkeys(_NAMES_ANOTHER, "base_url must name the host as its certificate does"),
}
_TRUST = "tls.ca_file names a file with the certificates to trust"

# By OpenSSL's name of an alert or error: what the other side means by it.
_ASKS_CERTIFICATE = "it asks for a client certificate: tls.certificate_file and tls.key_file give one"
_REFUSES_CERTIFICATE = "it refuses the client certificate of tls.certificate_file"
_ALERTS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _ASKS_CERTIFICATE,
    "SSLV3_ALERT_HANDSHAKE_FAILURE": f"it refuses the greeting; perhaps {_ASKS_CERTIFICATE}",
    "TLSV1_ALERT_UNKNOWN_CA": _REFUSES_CERTIFICATE,
    "SSLV3_ALERT_BAD_CERTIFICATE": _REFUSES_CERTIFICATE,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": _REFUSES_CERTIFICATE,
    "SSLV3_ALERT_CERTIFICATE_REVOKED": _REFUSES_CERTIFICATE,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"{_REFUSES_CERTIFICATE}: it has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _REFUSES_CERTIFICATE,
    "TLSV1_ALERT_ACCESS_DENIED": _REFUSES_CERTIFICATE,
}
_NO_TLS = dict.fromkeys(
    ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"),
    "what answers speaks no TLS: base_url may have to begin with http://",
)


class UnusableWay(Exception):  # noqa: N818  what it is, not that it is an error
    """The settings of an upstream's TLS or proxy cannot be used; the text says which, and what would be right."""


@dataclass(frozen=True, slots=True)
class Way:
    """How an upstream is reached: the TLS that is not the system's, and the proxy, None where there is none."""

    tls: ssl.SSLContext | None = None
    proxy: Proxy | None = None


DIRECT = Way()


def way_to(settings: Upstream, environment: Mapping[str, str]) -> Way:
    """Return the way to an upstream; `environment` holds the variables about proxies. Reads the TLS files.

    Raises UnusableWay for what `find_way_problems` tells.
    """
    problems = find_way_problems(settings, environment)
    if problems:
        raise UnusableWay("; ".join(f"{'.'.join(map(str, each.path))}: {each.message}" for each in problems))
    return Way(_make_context(settings.tls), _find_proxy(settings, environment))


def find_way_problems(settings: Upstream, environment: Mapping[str, str]) -> list[Problem]:
    """Return what is wrong with an upstream's TLS files and its proxy, by setting."""
    problems = check_tls(settings)
    try:
        _find_proxy(settings, environment)
    except UnusableProxy as error:
        problems.append(Problem(("proxy",), str(error)))
    return problems


def tls_files(settings: Upstream) -> list[Path]:
    """Return the files that an upstream's TLS settings name."""
    tls = settings.tls
    return [path for path in (tls.ca_file, tls.certificate_file, tls.key_file) if path is not None]


def check_tls(settings: Upstream) -> list[Problem]:
    """Return what is wrong with an upstream's TLS settings, by setting: files that are missing or do not fit."""
    tls = settings.tls
    if not _is_set(tls):
        return []
    if settings.base_url.startswith("http://"):
        return [Problem(("tls",), "is for upstreams whose base_url begins with https://")]
    found = [
        Problem(("tls", name), f"the file {path} {fault}")
        for name, path in (
            (_CA_FILE, tls.ca_file),
            (_CERTIFICATE_FILE, tls.certificate_file),
            (_KEY_FILE, tls.key_file),
        )
        if path is not None and (fault := _unreadable(path))
    ]
    return found or [*_check_trust(tls), *_check_certificate(tls)]


def told_tls_error(error: ssl.SSLError) -> str:
    """Say why a TLS greeting failed, and which setting helps."""
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _REMEDIES.get(error.verify_code, _TRUST)
        return f"certificate verify failed: {error.verify_message.rstrip('.')}; {remedy}"
    reason = error.reason or ""
    told = _ALERTS.get(reason) or _NO_TLS.get(reason)
    return f"TLS failed: {reason.lower().replace('_', ' ')}" + (f"; {told}" if told else "")


def is_certificate_refused(error: ssl.SSLError) -> bool:
    """Tell whether the other side ended the greeting over the certificate it was shown, or not shown."""
    return error.reason in _ALERTS


def _is_set(tls: TlsSettings) -> bool:
    return tls.ca_file is not None or tls.certificate_file is not None


def _find_proxy(settings: Upstream, environment: Mapping[str, str]) -> Proxy | None:
    return find_proxy(settings.base_url, environment) if settings.proxy == "environment" else None


def _make_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """Make a context for the settings; None where the system's default is meant."""
    if not _is_set(tls):
        return None
    context = ssl.create_default_context(cafile=tls.ca_file)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # whoever names an intermediate authority means it
    if tls.certificate_file is not None:
        _load_certificate(context, tls)
    return context


def _unreadable(path: Path) -> str | None:
    try:
        path.read_bytes()
    except OSError as error:
        return f"cannot be read: {(error.strerror or type(error).__name__).lower()}"
    return None


def _check_trust(tls: TlsSettings) -> list[Problem]:
    try:
        if tls.ca_file is None or ssl.create_default_context(cafile=tls.ca_file).cert_store_stats()["x509"]:
            return []
    except ssl.SSLError:
        pass
    told = f"the file {tls.ca_file} holds no certificate: it must hold one or more in PEM (-----BEGIN CERTIFICATE-----)"
    return [Problem(("tls", _CA_FILE), told)]


def _check_certificate(tls: TlsSettings) -> list[Problem]:
    if tls.certificate_file is None:
        return []
    name, path = (_CERTIFICATE_FILE, tls.certificate_file) if tls.key_file is None else (_KEY_FILE, tls.key_file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(tls.certificate_file)
    except ssl.SSLError:
        told = "holds no certificate: it must hold the gateway's own in PEM, and then those up to its authority's"
        return [Problem(("tls", _CERTIFICATE_FILE), f"the file {tls.certificate_file} {told}")]
    try:
        _load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tls)
    except _EncryptedKey:
        return [Problem(("tls", name), f"the file {path} {_ENCRYPTED_KEY}")]
    except ssl.SSLError as error:
        is_another = error.reason == "KEY_VALUES_MISMATCH"
        told = (
            f"holds a key that does not fit the certificate in {tls.certificate_file}" if is_another else _no_key(tls)
        )
        return [Problem(("tls", name), f"the file {path} {told}")]
    return []


def _no_key(tls: TlsSettings) -> str:
    return "holds no private key in PEM" + (": give key_file, or add the key to it" if tls.key_file is None else "")


class _EncryptedKey(Exception):  # noqa: N818  what was found
    """OpenSSL asked for a key's password."""


def _load_certificate(context: ssl.SSLContext, tls: TlsSettings) -> None:
    assert tls.certificate_file is not None  # noqa: S101  asked only where there is one

    def refuse() -> str:
        raise _EncryptedKey

    context.load_cert_chain(tls.certificate_file, tls.key_file, refuse)
