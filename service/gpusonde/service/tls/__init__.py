"""TLS of both daemons and of the commands that ask a collector: files read anew when they change, keys never shown."""

from gpusonde.errors import TlsError
from gpusonde.service.tls.certificates import ExpiryWarning, expiry_unix_s, warn_of_exposed_files
from gpusonde.service.tls.client import Access, ClientSecurity, is_loopback
from gpusonde.service.tls.obstacles import Obstacle, find_obstacle
from gpusonde.service.tls.server import ServerTls

__all__ = [
    "Access",
    "ClientSecurity",
    "ExpiryWarning",
    "Obstacle",
    "ServerTls",
    "TlsError",
    "expiry_unix_s",
    "find_obstacle",
    "is_loopback",
    "warn_of_exposed_files",
]
