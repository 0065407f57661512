"""The way of docs/operations.md from certificates to ``gpusonde runs``, with its own configurations, on loopback."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.wire_agent import wait_until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
CERTIFICATES = ROOT / "deploy" / "tls" / "make-dev-certs.sh"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def configuration(what):
    """The TOML block of the page that holds ``what``."""
    blocks = re.findall(r"^ *```toml\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = (block for block in blocks if what in block)
    return re.sub(r"(?m)^ +", "", found)


def gpusonde(*arguments):
    return [sys.executable, "-m", "gpusonde.cli", *map(str, arguments)]


def test_two_daemons_and_a_reader_meet_over_tls_as_the_page_says(tmp_path):
    certificates = tmp_path / "certs"
    names = ("--collector", "localhost", "--agent", "host-7")
    subprocess.run([str(CERTIFICATES), str(certificates), *names], check=True, capture_output=True, timeout=200)
    for suffix in ("pem", "key"):
        shutil.copy(certificates / f"agent-host-7.{suffix}", certificates / f"agent.{suffix}")
    store, log = tmp_path / "store", tmp_path / "log"
    collector_file, agent_file = tmp_path / "collector.toml", tmp_path / "agent.toml"
    text = (
        configuration("[server]").replace("/etc/gpusonde/tls", str(certificates)).replace("0.0.0.0:7433", "0.0.0.0:0")
    )
    collector_file.write_text(text)
    with log.open("wb") as output:
        collector = subprocess.Popen(
            gpusonde("collector", "--config", collector_file, "--store", store, "--set", "metrics.listen="),
            stdout=output,
            stderr=output,
        )
    try:
        address = store / "address"
        wait_until(lambda: address.exists() or collector.poll() is not None, 120, "start of the collector")
        assert collector.poll() is None, log.read_text()
        target = f"localhost:{address.read_text().strip().rsplit(':', 1)[1]}"
        text = configuration("[uplink]").replace("/etc/gpusonde/tls", str(certificates))
        agent_file.write_text(text.replace("collector.example.org:7433", target))
        trace = ROOT / "tests" / "data" / "demo_trace.parquet"
        replay = ("--spool", tmp_path / "spool", "--replay", trace, "--speed", 1000, "--json")
        sent = subprocess.run(
            gpusonde("agent", "--config", agent_file, *replay),
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert json.loads(sent.stdout)["agent_id"] == "host-7"
        mine = {"ca": "ca.pem", "cert": "reader.pem", "key": "reader.key"}
        reader = [f"--tls-{what}={certificates / file}" for what, file in mine.items()]
        deadline = time.monotonic() + 200
        runs = []
        while not runs and time.monotonic() < deadline:
            asked = subprocess.run(
                gpusonde("runs", "--collector", target, *reader, "--json"), capture_output=True, text=True, check=True
            )
            runs = json.loads(asked.stdout)["runs"]
        assert [run["agent_id"] for run in runs] == ["host-7"]
        stranger = subprocess.run(
            gpusonde("runs", "--collector", target, reader[0], "--json"), capture_output=True, text=True, check=False
        )
        assert stranger.returncode == 1
    finally:
        collector.terminate()
        assert collector.wait(200) == 0
