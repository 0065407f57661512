"""Log lines of the daemons: as the configuration says, as a flag says, and as a reload says."""

import json
import os
import signal
import subprocess
import sys

import pytest
from support.wire_agent import wait_until


@pytest.fixture
def collector(tmp_path):
    """Starts collectors, waits until they serve and ends them; returns the process and its log."""
    started = []

    def start(text, *flags):
        config, log = tmp_path / "collector.toml", tmp_path / "log"
        config.write_text(f'[server]\nlisten = "127.0.0.1:0"\n[metrics]\nlisten = ""\n{text}')
        command = [sys.executable, "-m", "gpusonde.cli", "collector", "--store", str(tmp_path / "store")]
        with log.open("wb") as stderr:
            process = subprocess.Popen([*command, "--config", str(config), *flags], stderr=stderr)
        started.append(process)
        wait_until(lambda: "collecting on" in log.read_text() or process.poll() is not None, 120)
        return process, config, log

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        assert process.wait(200) == 0


def forms(log):
    return ["json" if line.startswith("{") else "text" for line in log.read_text().splitlines()]


def test_the_configuration_chooses_the_form_and_a_reload_another_one(collector):
    process, config, log = collector('[log]\nformat = "json"\n')
    assert set(forms(log)) == {"json"}
    assert json.loads(log.read_text().splitlines()[-1])["logger"].startswith("gpusonde.")
    config.write_text(config.read_text().replace("json", "text"))
    os.kill(process.pid, signal.SIGHUP)
    wait_until(lambda: forms(log)[-1] == "text")
    assert "changed: log.format" in log.read_text().splitlines()[-1]


def test_a_flag_wins_over_the_configuration_and_over_reloads(collector):
    process, config, log = collector('[log]\nformat = "text"\n', "--set", "log.format=json")
    assert set(forms(log)) == {"json"}
    config.write_text(config.read_text().replace('"text"', '"json"') + 'level = "debug"\n')
    os.kill(process.pid, signal.SIGHUP)
    wait_until(lambda: "changed: log.level" in log.read_text())
    assert set(forms(log)) == {"json"}


def test_a_bad_file_is_told_and_changes_nothing(collector):
    process, config, log = collector("")
    config.write_text("[server]\nlisten = 7\n")
    os.kill(process.pid, signal.SIGHUP)
    wait_until(lambda: "the configuration stays as it was" in log.read_text())
    assert f"{config}: server.listen: 7 is not text" in log.read_text()
