"""``gpusonde agent`` and ``record`` without a collector."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.certificates import Authority, tls_settings
from support.running_collector import ThreadCollector

from gpusonde.cli.demo.run import bundled_trace
from gpusonde.cli.main import main
from gpusonde.collector.security.identity import Role
from gpusonde.collector.security.tokens import new_token, token_entry
from gpusonde.telemetry import read_trace


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, answer


def test_a_printed_configuration_is_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "--print-config", "--collector", "10.0.0.1:7000", "--set", "source.interval=200ms"]) == 0
    file = tmp_path / "agent.toml"
    file.write_text(capsys.readouterr().out)
    assert 'interval = "200ms"' in file.read_text()
    code, answer = run_json(capsys, "agent", "--config", str(file), "--print-config")
    assert code == 0
    assert answer["config_toml"].strip() == file.read_text().strip()
    assert answer["config_file"] == str(file)


def test_a_good_configuration_is_said_to_be_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "--check-config"]) == 0
    assert capsys.readouterr().out == "the configuration is good\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--set", "source.interval=10ms"], 2, "100ms"),
        (["--set", "source.intervall=1s"], 2, "intervall"),
        (["--set", "source.interval=1"], 2, "has no unit"),
        (["--set", "nonsense"], 2, "SECTION.NAME=VALUE"),
        (["--config", "/nowhere/agent.toml"], 1, "/nowhere/agent.toml"),
        (["--collector", "nowhere"], 2, "HOST:PORT"),
        (["--speed", "0"], 2, "above zero"),
    ],
)
def test_a_bad_configuration_is_refused(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agent", "--check-config", *arguments]) == code
    assert said in capsys.readouterr().err


def test_a_replay_of_a_file_that_is_no_trace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("")
    code, answer = run_json(capsys, "agent", "--replay", str(path), "--spool", str(tmp_path / "spool"))
    assert code == 1
    assert answer["error"]["file"] == str(path)


def test_without_a_collector_the_agent_says_so_and_keeps_everything(tmp_path: Path) -> None:
    agent = subprocess.Popen(
        [
            *(sys.executable, "-m", "gpusonde.cli", "agent", "--json", "--replay", str(bundled_trace())),
            *("--speed", "500", "--spool", str(tmp_path / "spool"), "--collector", "127.0.0.1:1"),
            *("--set", "uplink.drain_timeout=100ms"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert agent.stderr is not None
    said = ""
    deadline = time.monotonic() + 200
    # Which of the two is said first is the kernel's choice.
    awaited = ("the source has ended", "collector 127.0.0.1:1 is not there")
    while not all(words in said for words in awaited) and time.monotonic() < deadline:
        said += agent.stderr.readline()
    agent.send_signal(signal.SIGTERM)
    out, _ = agent.communicate(timeout=200)
    assert "collector 127.0.0.1:1 is not there" in said
    assert str(tmp_path / "spool") in said
    report = json.loads(out)
    assert agent.returncode == 1
    assert not report["drained"]
    assert report["ticks"] == len(read_trace(bundled_trace()))
    assert report["unacked_records"] == report["records"] > 0
    assert report["lost_ticks"] == 0


def test_a_replay_that_is_refused_ends_and_says_why(tmp_path: Path) -> None:
    """A daemon waits for somebody to correct its token; whoever replays a trace is there to do it."""
    authority = Authority(tmp_path / "authority")
    token = new_token()
    secret, tokens = tmp_path / "token", tmp_path / "tokens.toml"
    secret.write_text(token)
    tokens.write_text(token_entry(token, Role.READER))
    settings = tls_settings(authority, security__tokens_file=str(tokens)) | {"security__tls_client_ca": ""}
    with ThreadCollector(tmp_path / "store", **settings) as collector:
        command = [*(sys.executable, "-m", "gpusonde.cli", "agent", "--replay", str(bundled_trace()), "--speed", "500")]
        command += ["--spool", str(tmp_path / "spool"), "--collector", collector.target]
        tls = ["--set", f"uplink.tls_ca={authority.ca}", "--set", f"uplink.token_file={secret}"]
        refused = subprocess.run([*command, *tls], capture_output=True, text=True, timeout=120, check=False)
        plain = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode == plain.returncode == 1
    assert f"gpusonde: error: collector {collector.target} refuses this agent: PERMISSION_DENIED" in refused.stderr
    assert f"gpusonde: error: no way to collector {collector.target}: it speaks TLS; set uplink.tls_ca" in plain.stderr
    assert "Traceback" not in refused.stderr + plain.stderr


def test_a_recorded_replay_is_the_trace_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "copy.parquet"
    code, answer = run_json(
        capsys, "record", str(out), "--replay", str(bundled_trace()), "--speed", "500", "--attribute", "purpose=test"
    )
    assert (code, answer["missed_ticks"]) == (0, 0)
    original, copy = read_trace(bundled_trace()), read_trace(out)
    assert len(copy) == len(original) == answer["ticks"]
    assert copy.attributes["purpose"] == "test"
    assert np.allclose(copy.time_s - copy.time_s[0], original.time_s - original.time_s[0], atol=2e-6)
    assert np.array_equal(copy.values["dram_active"], original.values["dram_active"])


def test_a_recording_stops_after_its_duration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(
        capsys, "record", str(tmp_path / "short.csv"), "--replay", str(bundled_trace()), "--duration-s", "0.5"
    )
    assert code == 0
    assert 0 < answer["ticks"] <= 10


@pytest.mark.parametrize("name", ["trace.txt", "missing_folder/trace.csv"])
def test_a_recording_into_an_impossible_file_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = run_json(capsys, "record", str(tmp_path / name), "--replay", str(bundled_trace()))
    assert code == 1
    assert name in answer["error"]["message"]
