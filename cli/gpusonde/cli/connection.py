"""How commands reach a collector: its address, TLS and a token, from flags, the environment or the user's profile."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpusonde.cli.parsing import DEFAULT_COLLECTOR, address
from gpusonde.errors import UsageError

if TYPE_CHECKING:
    from gpusonde.collector.client import Client
    from gpusonde.service.tls import ClientSecurity

# Destination of the flag and key of the profile, environment variable, what it holds.
_FILES = (
    ("tls_ca", "GPUSONDE_TLS_CA", "PEM file with the authority of the collector's certificate; turns TLS on"),
    ("tls_cert", "GPUSONDE_TLS_CERT", "PEM file with your certificate and its chain"),
    ("tls_key", "GPUSONDE_TLS_KEY", "PEM file with its key"),
    ("token_file", "GPUSONDE_TOKEN_FILE", "file with a token of 'gpusonde token new', instead of a certificate"),
)
_COLLECTOR = "GPUSONDE_COLLECTOR"
# The name in the collector's certificate where that is not the address's host: rare enough to need no flag.
_SERVER_NAME = "GPUSONDE_TLS_SERVER_NAME"
_LARGEST_PROFILE_BYTES = 1 << 16


@dataclass(frozen=True)
class ClientProfile:
    """What a user's commands are to know of the collector, from ``~/.config/gpusonde/client.toml``.

    Attributes:
        collector: Address of the collector, ``host:port``.
        tls_ca: PEM file with the authority of its certificate; relative paths lie beside the profile.
        tls_cert: PEM file with the user's certificate and its chain.
        tls_key: PEM file with its key.
        token_file: File with a token, instead of a certificate.
        tls_server_name: Name in the collector's certificate, if not the address's host.
    """

    collector: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""
    tls_server_name: str = ""

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> ClientProfile:
        """Read the user's profile; one without keys where there is none.

        Raises:
            UsageError: It cannot be read or is not what it should be.
        """
        from gpusonde.documents import parse, read_document
        from gpusonde.errors import DocumentError

        path = _profile_path(environment)
        try:
            if path is None or not path.exists():
                return cls()
            profile = parse(cls, read_document(path, _LARGEST_PROFILE_BYTES))
            if profile.collector:
                address(profile.collector)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{path}: collector: {error}") from None
        except DocumentError as error:
            advice = "" if error.field else f'; write one key to a line, for example collector = "{DEFAULT_COLLECTOR}"'
            raise UsageError(f"{DocumentError(error.field, error.problem, path)}{advice}") from None
        return profile

    def file(self, name: str, environment: Mapping[str, str] = os.environ) -> str:
        """Return the path that a key names; empty for none."""
        path, text = _profile_path(environment), str(getattr(self, name))
        return str(path.parent / Path(text).expanduser()) if path and text else text


def _profile_path(environment: Mapping[str, str]) -> Path | None:
    home = environment.get("HOME", "")
    folder = environment.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    return Path(folder) / "gpusonde" / "client.toml" if folder else None


def add_collector_options(
    parser: argparse.ArgumentParser,
    *,
    default: str | None = DEFAULT_COLLECTOR,
    otherwise: str = "predicting here",
) -> None:
    """Declare ``--collector`` of the commands that ask one, and what proves who asks whom.

    ``otherwise`` is what happens without, for commands that have no default.
    """
    group = parser.add_argument_group(
        "the collector",
        f"Each option has an environment variable, named in brackets, and a key of ~/.config/gpusonde/client.toml; "
        f"{_SERVER_NAME} is the name in the collector's certificate, if not the address's host.",
    )
    group.add_argument(
        "--collector",
        type=address,
        metavar="HOST:PORT",
        help=f"address of the collector (default: {DEFAULT_COLLECTOR}) [{_COLLECTOR}]"
        if default
        else f"ask this collector instead of {otherwise}",
    )
    # Environment and profile are looked at when the command connects: help is there for those whose profile is broken.
    parser.set_defaults(default_collector=default)
    for name, variable, text in _FILES:
        group.add_argument(_flag(name), metavar="FILE", help=f"{text} [{variable}]")


def collector_address(args: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> str:
    """Return the address to use, of flag, environment or profile, which ``args.collector`` is from then on.

    Raises:
        UsageError: The environment's or the profile is not what it should be.
    """
    if args.collector is None and args.default_collector is not None:
        given = environment.get(_COLLECTOR, "")
        try:
            args.collector = address(given) if given else ClientProfile.read(environment).collector
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{_COLLECTOR}: {error}") from None
        args.collector = args.collector or args.default_collector
    return str(args.collector)


def client_security(args: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> ClientSecurity:
    """Return the files to use; flags win over the environment, and that over the user's profile.

    Raises:
        UsageError: They do not go together, or the profile is not what it should be.
    """
    from gpusonde.service.tls import ClientSecurity

    profile = ClientProfile.read(environment)
    values = {
        name: getattr(args, name) or environment.get(variable, "") or profile.file(name, environment)
        for name, variable, _ in _FILES
    }
    security = ClientSecurity(
        ca=values["tls_ca"],
        certificate=values["tls_cert"],
        key=values["tls_key"],
        server_name=environment.get(_SERVER_NAME, "") or profile.tls_server_name,
        token_file=values["token_file"],
    )
    if problem := security.problem(args.collector):
        raise UsageError(f"--tls-ca, --tls-cert, --tls-key, --token-file and {_SERVER_NAME}: {problem}")
    return security


def connect(args: argparse.Namespace) -> Client:
    """Return a client of the collector that the command line names.

    Raises:
        UsageError: Its options do not go together.
        gpusonde.service.tls.TlsError: A file cannot be used.
    """
    from gpusonde.collector.client import Client

    return Client(collector_address(args), security=client_security(args))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
