"""``deploy/tls/make-dev-certs.sh``: what it makes serves a collector, an agent and the commands."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.collector_process import ask
from support.running_collector import ThreadCollector
from support.wire_agent import StreamEnded, WireStream, batch, hello, inventory

from gpusonde.cli.main import main
from gpusonde.service.tls import ClientSecurity

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "tls" / "make-dev-certs.sh"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def make(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", str(SCRIPT), str(directory), *options], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates") / "tls"
    done = make(directory, "--collector", "localhost", "--collector", "127.0.0.1", "--agent", "host-1")
    assert done.returncode == 0, done.stderr
    return directory


def security(directory: Path, name: str) -> ClientSecurity:
    return ClientSecurity(str(directory / "ca.pem"), str(directory / f"{name}.pem"), str(directory / f"{name}.key"))


def settings(directory: Path) -> dict[str, str]:
    return {
        "security__tls_certificate": str(directory / "collector.pem"),
        "security__tls_key": str(directory / "collector.key"),
        "security__tls_client_ca": str(directory / "ca.pem"),
    }


def test_the_certificates_are_those_that_the_documentation_names(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {path.name for path in certificates.iterdir()} == {
        f"{name}.{kind}" for name in ("ca", "collector", "agent-host-1", "reader", "admin") for kind in ("pem", "key")
    }
    assert {path.stat().st_mode & 0o777 for path in certificates.glob("*.key")} == {0o600}
    with ThreadCollector(tmp_path / "data", **settings(certificates)) as collector:
        with WireStream(collector.target, hello("host-1"), security=security(certificates, "agent-host-1")) as stream:
            stream.greet()
            stream.send(inventory(), batch(2)).wait_acked(2)
            files = ("--tls-ca", str(certificates / "ca.pem"), "--tls-cert", str(certificates / "admin.pem"))
            at = ("--collector", collector.target, *files, "--tls-key", str(certificates / "admin.key"))
            (agent,) = ask("fleet", "list", *at)["agents"]
            assert agent["identity"] == "certificate agent/host-1"
        with (
            WireStream(collector.target, hello("host-2"), security=security(certificates, "agent-host-1")) as stream,
            pytest.raises(StreamEnded, match="may not stream as agent host-2"),
        ):
            stream.greet()
        for variable, file in (("CA", "ca.pem"), ("CERT", "reader.pem"), ("KEY", "reader.key")):
            monkeypatch.setenv(f"GPUSONDE_TLS_{variable}", str(certificates / file))
        assert ask("runs", "--collector", collector.target) == {"runs": []}
        assert main(["fleet", "list", "--collector", collector.target]) == 1
        assert "certificate reader/reader is no admin" in capsys.readouterr().err


def test_run_again_it_renews_and_keeps_the_authority(certificates: Path) -> None:
    before = {path.name: path.read_bytes() for path in certificates.glob("*.pem")}
    assert make(certificates, "--agent", "host-2").returncode == 0
    after = {path.name: path.read_bytes() for path in certificates.glob("*.pem")}
    assert {name for name in before if before[name] == after[name]} == {"ca.pem", "agent-host-1.pem"}
    assert "agent-host-2.pem" in after


@pytest.mark.parametrize(
    "options", [("--agent", "a\nsubjectAltName=URI:x"), ("--agent", ""), ("--what", "x"), ("--agent",)]
)
def test_what_is_no_name_goes_into_no_certificate(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert make(tmp_path / "tls", *options).returncode == 2
    assert not (tmp_path / "tls").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tls-cert", "x"), "come together"),
        (("--tls-cert", "x", "--tls-key", "y"), "needs the server's authority"),
        (("--collector", "far.example:1", "--token-file", "x"), "never sent in plain text"),
    ],
)
def test_options_that_do_not_go_together_are_a_usage_error(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", *options]) == 2
    assert words in capsys.readouterr().err
