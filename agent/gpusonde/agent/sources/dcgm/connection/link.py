"""``EngineLink``: the connection to an engine over the life of a source, lost and made again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gpusonde.agent.sources.base import SourceError, SourceFailedError, SourceStatistics, SourceUnavailableError
from gpusonde.agent.sources.dcgm.connection.bindings import Bindings
from gpusonde.agent.sources.dcgm.connection.engine import Engine, connect_first
from gpusonde.agent.sources.dcgm.connection.errors import DcgmCallError, EngineHungError
from gpusonde.agent.sources.dcgm.connection.guard import CallGuard

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 2.0
_RECONNECT_INTERVAL_S = 5.0
# Each hung call holds a thread for good.
_MAX_HUNG_CALLS = 3


class EngineLink:
    """Connects, notes losses and hangs, and connects again.

    Args:
        addresses: Where an engine may be, the preferred one first; a lost one is looked for at the first only.
        load: Finds the bindings.
        patience_s: Seconds without an engine after which the source fails.
        call_limit_s: Seconds after which a call of the engine is given up.
        statistics: Counts reconnections and hung calls.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        load: Callable[[], Bindings],
        patience_s: float,
        call_limit_s: float,
        statistics: SourceStatistics,
    ) -> None:
        self.engine: Engine | None = None
        self._addresses = tuple(addresses)
        self._load = load
        self._patience_s = patience_s
        self._guard = CallGuard(call_limit_s, self._count_cost)
        self._statistics = statistics
        self._bindings: Bindings | None = None
        self._lost_s = 0.0
        self._retry_due_s = 0.0

    @property
    def address(self) -> str:
        """What it is connected to; empty for nothing."""
        return self.engine.address if self.engine is not None else ""

    @property
    def library_version(self) -> str:
        """Version of the loaded ``libdcgm``; empty for none."""
        return self._bindings.library_version if self._bindings is not None else ""

    @property
    def bindings_found(self) -> str:
        """Folder of the loaded bindings; empty for none."""
        return self._bindings.folder if self._bindings is not None else ""

    def connect(self) -> Engine:
        """Load the bindings and connect for the first time.

        Raises:
            SourceUnavailableError: No bindings or no engine; the message says what to do.
        """
        self._bindings = self._load()
        self.engine = connect_first(self._bindings, self._addresses, _CONNECT_TIMEOUT_S, self._guard)
        return self.engine

    def lose(self, error: DcgmCallError, now_s: float) -> None:
        """Give the connection up; :meth:`connect_again` looks for the engine."""
        log.error("%s; trying again every %g s", error, _RECONNECT_INTERVAL_S)
        self._count_hang(error)
        self.close()
        self._lost_s, self._retry_due_s = now_s, now_s + _RECONNECT_INTERVAL_S

    def connect_again(self, now_s: float, meet: Callable[[Engine], None]) -> None:
        """Look for the engine, if it is time to.

        Args:
            now_s: The monotonic clock.
            meet: Takes the new connection into use; what it raises refuses the connection.

        Raises:
            SourceFailedError: There was no engine for ``patience_s``, or calls hang again and again.
        """
        if now_s < self._retry_due_s:
            return
        self._retry_due_s = now_s + _RECONNECT_INTERVAL_S
        if self._bindings is None:
            raise SourceFailedError("the DCGM source is not open")
        if self._guard.hung >= _MAX_HUNG_CALLS:
            raise SourceFailedError(
                f"{self._guard.hung} calls of DCGM hang in this process, which must be started anew: see the host "
                "engine's log, and restart it too"
            )
        try:
            engine = connect_first(self._bindings, self._addresses[:1], _CONNECT_TIMEOUT_S, self._guard)
        except SourceUnavailableError as error:
            log.debug("%s", error)
            if now_s - self._lost_s >= self._patience_s:
                raise SourceFailedError(f"{error}; given up after {now_s - self._lost_s:.0f} s") from error
            return
        try:
            meet(engine)
        except (DcgmCallError, SourceUnavailableError) as error:
            log.warning("the DCGM engine is back but refuses: %s", error)
            self._count_hang(error)
            engine.close()
            return
        self.engine = engine
        self._statistics.reconnects += 1
        log.warning("the DCGM engine at %s answers again", engine.address)

    def close(self) -> None:
        """Disconnect; safe to call twice."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()

    def _count_cost(self, processor_s: float) -> None:
        self._statistics.helper_processor_s += processor_s

    def _count_hang(self, error: SourceError) -> None:
        if isinstance(error, EngineHungError):
            self._statistics.hung_calls += 1
