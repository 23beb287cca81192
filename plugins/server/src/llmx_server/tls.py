"""TLS: the files that a server shows itself with, read and checked. Nothing here is read where they are not given."""

from __future__ import annotations

import ssl
from pathlib import Path

from llmx.config import ServerConfig
from llmx.errors import ConfigError

__all__ = ["tls_context", "tls_files"]


class _Encrypted(Exception):
    """The key asks for a password."""


def tls_files(config: ServerConfig) -> tuple[bytes, bytes, bytes | None]:
    """(key, certificate chain, certificates that those of clients must come from; None: clients need none), as PEM. Raises ConfigError."""
    certificate = _read("ssl_certfile", config.ssl_certfile)
    key = _read("ssl_keyfile", config.ssl_keyfile) if config.ssl_keyfile else certificate
    return key, certificate, _read("ssl_ca_certs", config.ssl_ca_certs) if config.ssl_ca_certs else None


def tls_context(config: ServerConfig) -> ssl.SSLContext:
    """What HTTP is served with: TLS 1.2 or newer, and client certificates where ssl_ca_certs is given. Raises ConfigError that names the file."""
    if not config.ssl_certfile:
        raise ConfigError("ssl_certfile is missing: ssl_keyfile and ssl_ca_certs need the certificate that they go with", field="ssl_certfile")
    tls_files(config)  # the errors of what comes name no file
    key = config.ssl_keyfile or config.ssl_certfile
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.ssl_certfile, key, _no_password)
    except _Encrypted:
        message = f"{_key_option(config)} is {key!r}: the key is encrypted, and nobody is there to type its password: store it without one, mode 0600"
        raise ConfigError(message, field="ssl_keyfile") from None
    except ssl.SSLError as error:
        raise ConfigError(_reason(config, key, error), field="ssl_keyfile" if config.ssl_keyfile else "ssl_certfile") from error
    if config.ssl_ca_certs:
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except ssl.SSLError as error:
            raise ConfigError(f"ssl_ca_certs is {config.ssl_ca_certs!r}: it holds no certificates in PEM: {_words(error)}", field="ssl_ca_certs") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _read(option: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{option} is {path!r}: it cannot be read: {error.strerror}", field=option) from error


def _no_password() -> str:
    raise _Encrypted


def _reason(config: ServerConfig, key: str, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"{_key_option(config)} is {key!r}: it is not the key of the certificate in {config.ssl_certfile!r}"
    if b"-----BEGIN CERTIFICATE-----" not in Path(config.ssl_certfile).read_bytes():
        return f"ssl_certfile is {config.ssl_certfile!r}: it holds no certificate in PEM (-----BEGIN CERTIFICATE-----)"
    if b"PRIVATE KEY-----" not in Path(key).read_bytes():
        hint = "" if config.ssl_keyfile else ", so ssl_keyfile must name the one that does"
        return f"{_key_option(config)} is {key!r}: it holds no private key in PEM{hint}"
    return f"ssl_certfile is {config.ssl_certfile!r} and ssl_keyfile {key!r}: they cannot be used: {_words(error)}"


def _key_option(config: ServerConfig) -> str:
    return "ssl_keyfile" if config.ssl_keyfile else "ssl_certfile"


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
