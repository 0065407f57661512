"""Certificates, keys and tokens on disk: what is read, what is refused, and that nothing of it is shown."""

import contextlib
import datetime
import logging
import os
import stat

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st
from support.certificates import Authority

from gpusonde.errors import TlsError
from gpusonde.service.tls import (
    ClientSecurity,
    ExpiryWarning,
    ServerTls,
    expiry_unix_s,
    is_loopback,
    warn_of_exposed_files,
)
from gpusonde.service.tls.certificates import KeyPair, locate
from gpusonde.service.tls.client import read_token


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize("valid_s", [-86_400.0, 3600.0, 40 * 365 * 86_400.0])
def test_expiry_is_what_the_certificate_says(authority, valid_s):
    # Beyond 2050 the date is a GeneralizedTime, before it a UTCTime.
    certificate, _ = authority.issue("dated", valid_s=valid_s)
    expected = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    assert expiry_unix_s(certificate.read_bytes()) == expected.timestamp()
    assert abs(expected - datetime.datetime.now(datetime.timezone.utc)).total_seconds() > 3000


@settings(deadline=None)
@given(st.data())
def test_damaged_certificates_are_refused_and_crash_nothing(authority_pem, data):
    pem = bytearray(authority_pem)
    for _ in range(data.draw(st.integers(1, 8))):
        pem[data.draw(st.integers(0, len(pem) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        assert expiry_unix_s(bytes(pem[: data.draw(st.integers(0, len(pem)))])) < 1e12


@pytest.fixture(scope="module")
def authority_pem(authority):
    return authority.ca.read_bytes()


def test_a_certificate_and_another_ones_key_are_refused_without_a_word_of_the_key(authority):
    certificate, _ = authority.issue("one")
    _, other_key = authority.issue("two")
    with pytest.raises(TlsError, match="is not the unencrypted PEM key of the certificate") as error:
        KeyPair.read(certificate, other_key)
    secret = other_key.read_text().splitlines()[1]
    assert secret not in str(error.value)
    assert secret not in repr(KeyPair.read(*authority.issue("one")))


@pytest.mark.parametrize("content", [b"", b"  \n", b"no certificate", b"\xff" * 40])
def test_files_that_hold_nothing_useful_are_named(authority, tmp_path, content):
    bad = tmp_path / "bad.pem"
    bad.write_bytes(content)
    certificate, key = authority.issue("good")
    for pair in ((bad, key), (certificate, bad)):
        with pytest.raises(TlsError, match=r"bad\.pem"):
            KeyPair.read(*pair)
    with pytest.raises(TlsError, match=r"bad\.pem"):
        ClientSecurity(ca=str(bad)).load("far.example:1")
    with pytest.raises(TlsError, match=r"missing\.pem.*give a file that this user can read"):
        ClientSecurity(ca=str(tmp_path / "missing.pem")).load("far.example:1")


def test_relative_paths_lie_in_the_credentials_of_the_unit(tmp_path):
    assert locate("agent.key", {"CREDENTIALS_DIRECTORY": "/run/credentials/x"}) == tmp_path.__class__(
        "/run/credentials/x/agent.key"
    )
    assert str(locate("agent.key", {})) == "agent.key"
    assert str(locate("/etc/agent.key", {"CREDENTIALS_DIRECTORY": "/run/credentials/x"})) == "/etc/agent.key"
    (tmp_path / "token").write_text("gpusonde_abc\n")
    assert read_token("token", {"CREDENTIALS_DIRECTORY": str(tmp_path)}) == "gpusonde_abc"


@pytest.mark.parametrize("content", ["two words", "tab\there", "é", "x" * 600])
def test_what_is_no_token_is_refused_and_not_repeated(tmp_path, content):
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(TlsError) as error:
        read_token(str(file))
    assert content not in str(error.value)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("127.0.0.1:1", True), ("127.8.9.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("unix:/x", True),
        ("dns:///localhost:1", True), ("ipv4:127.0.0.1:1", True), ("0.0.0.0:1", False), ("[::]:1", False),
        ("localhost.example:1", False), ("10.0.0.1:1", False), ("xds:///localhost:1", False), ("", False),
    ],
)  # fmt: skip
def test_loopback_is_only_this_host(target, expected):
    assert is_loopback(target) is expected


def test_a_token_is_not_sent_in_plain_text_to_another_host(tmp_path):
    (tmp_path / "token").write_text("gpusonde_abc")
    security = ClientSecurity(token_file=str(tmp_path / "token"))
    assert security.load("127.0.0.1:7433").metadata == (("authorization", "Bearer gpusonde_abc"),)
    assert "gpusonde_abc" not in repr(security.load("127.0.0.1:7433"))
    with pytest.raises(TlsError, match="never sent in plain text"):
        security.load("10.0.0.1:7433")


def test_the_fingerprint_changes_with_each_file_and_only_then(authority, tmp_path):
    certificate, key = authority.issue("changing")
    token = tmp_path / "token"
    token.write_text("gpusonde_a")
    security = ClientSecurity(str(authority.ca), str(certificate), str(key), token_file=str(token))
    seen = [security.load("h:1").fingerprint, security.load("h:1").fingerprint]
    assert seen[0] == seen[1]
    authority.issue("changing")
    seen.append(security.load("h:1").fingerprint)
    token.write_text("gpusonde_b")
    seen.append(security.load("h:1").fingerprint)
    assert len(set(seen)) == 3


def test_a_server_keeps_the_last_good_certificate_and_says_what_is_wrong_once(authority, caplog):
    caplog.set_level(logging.INFO)
    certificate, key = authority.server()
    now = [0.0]
    tls = ServerTls(str(certificate), str(key), clock=lambda: now[0])
    tls.credentials()
    before = tls.expiry_unix_s
    key.write_bytes(b"half a key")
    for now[0] in (2.0, 4.0, 6.0):
        tls.refresh()
    assert tls.expiry_unix_s == before
    assert caplog.text.count("the certificate in use stays") == 1
    authority.server(valid_s=3 * 86_400.0)
    tls.refresh()
    assert tls.expiry_unix_s > before
    assert "was read again" in caplog.text


def test_grpc_is_told_of_a_certificate_once_and_of_no_change_otherwise(authority, monkeypatch):
    fetchers = []
    monkeypatch.setattr("grpc.dynamic_ssl_server_credentials", lambda _, fetch, **__: fetchers.append(fetch))
    certificate, key = authority.server()
    now = [0.0]
    ServerTls(str(certificate), str(key), clock=lambda: now[0]).credentials()
    assert [fetchers[0]() for _ in range(3)] == [None, None, None]
    authority.server()
    now[0] = 2.0
    assert [fetchers[0]() is None for _ in range(3)] == [False, True, True]


def test_a_server_does_not_start_with_a_bad_certificate(authority, tmp_path):
    with pytest.raises(TlsError, match="No such file"):
        ServerTls(str(tmp_path / "x.pem"), str(tmp_path / "x.key")).credentials()


def test_expiry_is_said_fourteen_days_before_once_a_day_and_at_once_for_another_certificate(caplog):
    now = [0.0]
    warning = ExpiryWarning("the certificate", clock=lambda: now[0])
    warning.check(None)
    warning.check(14 * 86_400.0 + 1)
    assert not caplog.records
    for now[0] in (10.0, 20.0, 86_000.0, 90_000.0):
        warning.check(14 * 86_400.0)
    assert len(caplog.records) == 2
    warning.check(10 * 86_400.0)
    assert "in 9.0 days" in caplog.records[-1].getMessage()
    now[0] = 10 * 86_400.0
    warning.check(10 * 86_400.0)
    assert caplog.records[-1].levelno == logging.ERROR
    assert "expired at 1970-01-11 00:00:00 UTC" in caplog.records[-1].getMessage()


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(authority, tmp_path):
    from cryptography.hazmat.primitives import serialization

    certificate, key = authority.issue("locked")
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(TlsError, match="unencrypted"):
        KeyPair.read(certificate, key)
    assert os.environ.get("CREDENTIALS_DIRECTORY") is None


@pytest.mark.parametrize(("mode", "said"), [(0o600, False), (0o640, False), (0o644, True), (0o602, True)])
def test_a_secret_that_every_user_can_read_or_change_is_warned_about(tmp_path, caplog, mode, said):
    file = tmp_path / "agent.key"
    file.write_text("a key")
    file.chmod(mode)
    warn_of_exposed_files(
        "", str(tmp_path / "missing"), "agent.key", environment={"CREDENTIALS_DIRECTORY": str(tmp_path)}
    )
    assert (f"{file} is open to every user of this host (mode {mode:04o})" in caplog.text) is said
    assert len(caplog.records) == said


def test_digests_of_tokens_may_be_read_by_all_and_changed_by_the_owner_only(tmp_path, caplog):
    file = tmp_path / "tokens.toml"
    file.touch(0o644)
    warn_of_exposed_files(str(file), others=stat.S_IWOTH)
    assert not caplog.records
    file.chmod(0o646)
    warn_of_exposed_files(str(file), others=stat.S_IWOTH)
    assert "(mode 0646)" in caplog.text
