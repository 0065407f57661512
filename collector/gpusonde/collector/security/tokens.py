"""Bearer tokens: the collector holds SHA-256 digests only.

A token has 256 random bits, so an unsalted digest gives nothing away. The file is read again when it changes; a bad one
is logged and the last good one stays in use.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpusonde.collector.security.identity import CallerIdentity, Role, granted
from gpusonde.errors import TlsError
from gpusonde.service.tls.certificates import file_stamp, locate, read_secret

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LOG = logging.getLogger(__name__)

_PREFIX = "gpusonde_"
_MOST_TOKENS = 10_000
_LOOK_AGAIN_S = 1.0
_DIGEST = re.compile(r"[0-9a-f]{64}")
_AGENT_IDS = re.compile(r"[A-Za-z0-9._:@*-]{1,128}")
_LABEL = re.compile(r"[A-Za-z0-9 ._:@/-]{1,64}")
_KEYS = frozenset({"digest", "role", "agent_id", "label"})


def new_token() -> str:
    """Return a token that nobody can guess."""
    return _PREFIX + secrets.token_urlsafe(32)


def digest_token(token: str) -> str:
    """Return what the collector's file holds in a token's place."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_entry(token: str, role: Role, agent_ids: str = "", label: str = "") -> str:
    """Return the lines for the collector's file."""
    lines = ["[[token]]", f'digest = "{digest_token(token)}"', f'role = "{role.value}"']
    lines += [f'agent_id = "{agent_ids}"'] if agent_ids else []
    lines += [f'label = "{label}"'] if label else []
    return "\n".join(lines)


def parse_tokens(content: bytes, path: str) -> dict[str, CallerIdentity]:
    """Return the identities of a tokens file by digest.

    Raises:
        TlsError: It is not such a file.
    """
    try:
        document = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        # The parser's words may quote the line, and a line may hold what somebody took for the place of the token.
        raise TlsError(path, f"is not TOML ({type(error).__name__})") from None
    entries = document.pop("token", [])
    if document or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise TlsError(path, "holds something else than [[token]] tables")
    if len(entries) > _MOST_TOKENS:
        raise TlsError(path, f"holds more than {_MOST_TOKENS} tokens")
    identities: dict[str, CallerIdentity] = {}
    for number, entry in enumerate(entries, start=1):
        identity = _identity(entry, path, f"token number {number}")
        if identity.token_digest in identities:
            raise TlsError(path, f"token number {number} has the digest of an earlier one")
        identities[identity.token_digest] = identity
    return identities


def _identity(entry: Mapping[str, Any], path: str, where: str) -> CallerIdentity:
    if set(entry) - _KEYS:
        raise TlsError(path, f"{where} has unknown keys; known are {', '.join(sorted(_KEYS))}")
    digest, role, agent_ids, label = (entry.get(key, "") for key in ("digest", "role", "agent_id", "label"))
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise TlsError(path, f"{where}: digest is not 64 hexadecimal digits, as 'gpusonde token new' prints them")
    if role not in {known.value for known in Role}:
        raise TlsError(path, f"{where}: role is not agent, reader or admin")
    if agent_ids and (role != "agent" or not isinstance(agent_ids, str) or not _AGENT_IDS.fullmatch(agent_ids)):
        raise TlsError(path, f"{where}: agent_id is for the role agent: an agent's id, * for any characters")
    if label and (not isinstance(label, str) or not _LABEL.fullmatch(label)):
        raise TlsError(path, f"{where}: label is not 1 to 64 letters, digits and . _ : @ / -")
    chosen = Role(role)
    if chosen is Role.AGENT:
        agent_ids = agent_ids or "*"
    return CallerIdentity(
        f"token {label or digest[:8]}", granted(chosen), agent_ids=agent_ids or "", token_digest=digest
    )


class TokenFile:
    """The tokens of one file.

    Args:
        path: The file.
        clock: Monotonic seconds.
        environment: Where systemd's credentials are looked up.
    """

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._path: Path = locate(path, environment)
        self._clock = clock
        self._identities: dict[str, CallerIdentity] = {}
        # By a digest that nobody outside can compute: how long a search takes tells nothing, and it is one step
        # however many tokens there are, for strangers can make us search as often as they like.
        self._key = secrets.token_bytes(32)
        self._found: dict[bytes, CallerIdentity] = {}
        self._seen: tuple[int, int, int] | None = None
        self._looked_s = -_LOOK_AGAIN_S
        self._problem = ""

    def load(self) -> None:
        """Read the file.

        Raises:
            TlsError: It cannot be used.
        """
        self._seen = file_stamp(self._path)
        self._looked_s = self._clock()
        self._identities = parse_tokens(read_secret(self._path), str(self._path))
        self._found = {self._keyed(digest): identity for digest, identity in self._identities.items()}

    def find(self, token: str) -> CallerIdentity | None:
        """Return whose token it is. The time this takes does not depend on how much of a digest is right."""
        self._look()
        return self._found.get(self._keyed(digest_token(token)))

    def still_holds(self, identity: CallerIdentity) -> bool:
        """Return whether the token of an identity is there yet, with the same rights."""
        self._look()
        return self._identities.get(identity.token_digest) == identity

    def _keyed(self, digest: str) -> bytes:
        return hashlib.blake2b(digest.encode(), key=self._key).digest()

    def _look(self) -> None:
        if self._clock() - self._looked_s < _LOOK_AGAIN_S:
            return
        self._looked_s = self._clock()
        if file_stamp(self._path) == self._seen:
            return
        try:
            self.load()
        except TlsError as error:
            if str(error) != self._problem:
                _LOG.error("the tokens in use stay: %s", error)
            self._problem = str(error)
            return
        self._problem = ""
        _LOG.info("%d tokens were read again from %s", len(self._identities), self._path)
