"""``Monitoring``: the self metrics endpoint as a daemon keeps it: optional, movable, never a reason to stop."""

from __future__ import annotations

import logging
from pathlib import Path

from gpusonde.service.endpoint import Endpoint
from gpusonde.service.tls.address import is_loopback

log = logging.getLogger(__name__)

ADDRESS_FILE = "metrics_address"


class Monitoring:
    """Keeps an endpoint where the configuration wants it.

    An address that cannot be used is an error in the log and nothing else: samples are worth more than figures about
    them.

    Args:
        endpoint: Not started yet.
        directory: Where the file ``metrics_address`` tells the address while it is served.
    """

    def __init__(self, endpoint: Endpoint, directory: Path) -> None:
        self._endpoint = endpoint
        self._address_file = directory / ADDRESS_FILE
        self._listen: str | None = None

    def serve(self, listen: str) -> bool:
        """Serve on ``host:port``, or not at all for an empty text; return whether it is as wanted.

        Where the new address cannot be used, the old one is no longer served either: two truths would be worse.
        """
        if listen == self._listen:
            return True
        self.stop()
        if not listen:
            return True
        try:
            address = self._endpoint.start(listen)
        except OSError as error:
            log.error(  # noqa: TRY400 - the cause is the address, not this code
                "self metrics cannot be served on %s: %s; choose another metrics.listen",
                listen,
                error.strerror or error,
            )
            return False
        self._listen = listen
        self._announce(address)
        if is_loopback(listen):
            log.info("self metrics on http://%s/metrics", address)
        else:
            log.warning(
                "self metrics on http://%s/metrics can be read by other hosts, without encryption or authentication",
                address,
            )
        return True

    def stop(self) -> None:
        """Serve nothing any more."""
        if self._listen:
            self._endpoint.stop()
        self._listen = ""
        try:
            # One that was killed has left it behind.
            self._address_file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", self._address_file, error.strerror)

    def _announce(self, address: str) -> None:
        temporary = self._address_file.with_suffix(".tmp")
        try:
            temporary.write_text(address + "\n")
            temporary.rename(self._address_file)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._address_file, error.strerror)
