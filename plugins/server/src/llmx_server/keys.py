"""API keys: those of --api-key, which may do everything, and those of a file, each with a name and scopes. The file holds no key, only salted hashes.

A line of the file: `NAME SCOPE[,SCOPE] [rpm=N] [tpm=N] [budget=N/PERIOD] SALT$HASH`; `llmx key` writes it. Empty lines and lines
that begin with # are comments.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from pathlib import Path

from llmx.errors import ConfigError
from llmx.record import record
from llmx_server.budgets import PERIODS, Budget, Period
from llmx_server.limits import Limits

__all__ = ["SCOPES", "Key", "KeyRing", "new_key"]

SCOPES = ("generate", "embed", "admin")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LIMIT = re.compile(r"[1-9][0-9]{0,11}")
_PERIODS: dict[str, Period] = {period: period for period in PERIODS}
_SECRET = re.compile(r"([0-9a-f]{32})\$([0-9a-f]{64})")
_log = logging.getLogger("llmx.server")


@record
class Key:
    """What is known of a key: its name for messages (never the key), what it may do, its salted hash, and its limits."""

    name: str
    scopes: frozenset[str]
    salt: bytes
    digest: bytes
    limits: Limits = Limits()

    def matches(self, key: bytes) -> bool:
        """Whether `key` is this one, in constant time."""
        return hmac.compare_digest(_digest(self.salt, key), self.digest)


class KeyRing:
    """All keys of a server. The file is read again when it changes, so that a key can be added or withdrawn while the server runs.

    Raises ConfigError for a file that cannot be read; one that breaks later is reported in the log, and the keys before it stay.
    """

    def __init__(self, keys: tuple[str, ...], file: str = "") -> None:
        # Brackets, which no name in a file has: what one of these owns is nobody else's.
        self._given = tuple(_key(f"--api-key[{at}]", frozenset(SCOPES), key) for at, key in enumerate(keys, 1))
        self.path = Path(file) if file else None
        self._stamp = self._look()
        self._filed = self._read()

    def find(self, key: bytes) -> Key | None:
        """The key that this is, or None. Every one is compared: how long it takes tells nothing about how near a guess was."""
        self._renew()
        matches = [known for known in (*self._given, *self._filed) if known.matches(key)]
        return matches[0] if matches else None

    def named(self, name: str) -> Key | None:
        """The key of this name."""
        self._renew()
        return next((key for key in (*self._given, *self._filed) if key.name == name), None)

    def filed(self) -> tuple[Key, ...]:
        """The file's keys."""
        return self._filed

    def _renew(self) -> None:
        if (stamp := self._look()) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._filed = self._read()
        except ConfigError as error:
            _log.error("%s; the keys that were read before stay valid", error)

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat() if self.path else None
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size) if found else None

    def _read(self) -> tuple[Key, ...]:
        if self.path is None:
            return ()
        try:
            lines = self.path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the file of API keys {self.path} cannot be read: {error}", field="server.api_key_file") from error
        found = [_parse(line, f"{self.path}:{at}") for at, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")]
        names = [key.name for key in found]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"{self.path}: the name {twice[0]!r} stands on two lines: give each key its own", field="server.api_key_file")
        return tuple(found)


def new_key(name: str, scopes: tuple[str, ...], limits: Limits | None = None) -> tuple[str, str]:
    """(a new random key, its line for the file). Raises ConfigError for a name, a scope or a limit that the file cannot hold."""
    key = f"llmx-{secrets.token_urlsafe(32)}"
    made = _key(name, frozenset(scopes), key)
    words = [name, ",".join(scope for scope in SCOPES if scope in scopes)]
    if limits:
        words += [f"{what}={most}" for what, most in (("rpm", limits.rpm), ("tpm", limits.tpm)) if most]
        words += [f"budget={limits.budget.tokens}/{limits.budget.period}"] if limits.budget.tokens else []
    line = " ".join([*words, f"{made.salt.hex()}${made.digest.hex()}"])
    _parse_words(name, list(scopes), "llmx key")
    _parse_limits(words[2:], "llmx key")
    return key, line


def _parse(line: str, where: str) -> Key:
    words = line.split()
    secret = _SECRET.fullmatch(words[-1]) if len(words) >= 3 else None
    if secret is None:
        form = "NAME SCOPES SALT$HASH, with rpm=N, tpm=N and budget=N/PERIOD before the hash where there are limits"
        raise ConfigError(f"{where}: a line is {form}, as `llmx key` writes it", field="server.api_key_file")
    scopes = _parse_words(words[0], words[1].split(","), where)
    return Key(words[0], scopes, bytes.fromhex(secret[1]), bytes.fromhex(secret[2]), _parse_limits(words[2:-1], where))


def _parse_limits(words: list[str], where: str) -> Limits:
    found: dict[str, int] = {}
    period: Period = "total"
    for word in words:
        what, _, most = word.partition("=")
        if what == "budget":
            most, _, length = most.partition("/")
            most, period = (most, _PERIODS[length]) if length in _PERIODS else ("", period)
        if what not in ("rpm", "tpm", "budget") or what in found or not _LIMIT.fullmatch(most):
            forms = f"rpm=N, tpm=N and budget=N/PERIOD, once each, N from 1 to 999999999999, PERIOD one of {', '.join(PERIODS)}"
            raise ConfigError(f"{where}: {word[:80]!r} is no limit: {forms}", field="server.api_key_file")
        found[what] = int(most)
    return Limits(found.get("rpm", 0), found.get("tpm", 0), Budget(found.get("budget", 0), period))


def _parse_words(name: str, scopes: list[str], where: str) -> frozenset[str]:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: {name[:80]!r} is no name of a key: letters, digits, '.', '_' and '-', at most 64", field="server.api_key_file")
    if not scopes or (wrong := [scope for scope in scopes if scope not in SCOPES]):
        raise ConfigError(f"{where}: there is no scope {(wrong if scopes else [''])[0]!r}: {', '.join(SCOPES)}", field="server.api_key_file")
    return frozenset(scopes)


def _key(name: str, scopes: frozenset[str], key: str) -> Key:
    salt = secrets.token_bytes(16)
    return Key(name, scopes, salt, _digest(salt, key.encode()))


def _digest(salt: bytes, key: bytes) -> bytes:
    # A fast hash is enough: keys are random and long, so nobody finds one by trying.
    return hashlib.sha256(salt + key).digest()
