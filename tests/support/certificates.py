"""Certificate authorities for tests: server, agent, reader and admin certificates, also ones that have expired."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def _name(common_name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


class Authority:
    """A CA whose certificate and issued files lie in one directory."""

    def __init__(self, directory: Path, name="test authority"):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.timezone.utc)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(name))
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=400))
            .not_valid_after(now + datetime.timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, file_name, *, uri=None, common_name="somebody", hosts=(), valid_s=86_400.0):
        """Write ``FILE.pem`` and ``FILE.key``, replacing both in turn as renewals do, and return their paths."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.timezone.utc)
        names = [x509.UniformResourceIdentifier(u) for u in ([uri] if isinstance(uri, str) else uri or [])]
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(common_name))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=300))
            .not_valid_after(now + datetime.timedelta(seconds=valid_s))
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), False
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        paths = self.directory / f"{file_name}.pem", self.directory / f"{file_name}.key"
        contents = (
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )
        for path, content in zip(paths, contents, strict=True):
            fresh = path.with_suffix(path.suffix + ".new")
            fresh.touch(0o600)
            fresh.write_bytes(content)
            fresh.rename(path)
        return paths

    def server(self, valid_s=86_400.0, hosts=("127.0.0.1", "localhost")):
        return self.issue("collector", common_name="collector", hosts=hosts, valid_s=valid_s)

    def client(self, role, name, valid_s=86_400.0):
        return self.issue(f"{role}-{name}", uri=f"gpusonde://{role}/{name}", valid_s=valid_s)


def tls_settings(authority, **more):
    """Settings of a collector with mTLS, for ``ThreadCollector`` and ``ProcessCollector``."""
    certificate, key = authority.server()
    return {
        "security__tls_certificate": str(certificate),
        "security__tls_key": str(key),
        "security__tls_client_ca": str(authority.ca),
    } | more
