"""Saying in time that a certificate runs out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timezone

_LOG = logging.getLogger(__name__)

WARN_BEFORE_S = 14 * 86_400.0
_REPEAT_S = 86_400.0


class ExpiryWarning:
    """Logs a certificate that expires within 14 days, once a day and whenever it is another one.

    Args:
        what: Whose certificate it is.
        clock: Unix time in seconds.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.time) -> None:
        self._what = what
        self._clock = clock
        self._said: tuple[float, float] | None = None

    def check(self, expiry_unix_s: float | None) -> None:
        """Say it if it is due; None stands for no certificate."""
        now = self._clock()
        if expiry_unix_s is None or expiry_unix_s - now > WARN_BEFORE_S:
            return
        if self._said is not None and self._said[0] == expiry_unix_s and 0 <= now - self._said[1] < _REPEAT_S:
            return
        self._said = (expiry_unix_s, now)
        when = datetime.fromtimestamp(expiry_unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        if expiry_unix_s <= now:
            _LOG.error("%s expired at %s: renew its file; it is read again without a restart", self._what, when)
        else:
            _LOG.warning(
                "%s expires at %s, in %.1f days: renew its file", self._what, when, (expiry_unix_s - now) / 86_400
            )
