"""The units as far as they can be checked without installing them."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SYSTEMD = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
LARGEST_EXPOSURE = 2.0

needs_systemd_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")


def analyze(*arguments):
    return subprocess.run(
        ["systemd-analyze", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )


def settings(unit):
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string(unit.read_text())
    return parser


def test_there_is_a_unit_for_each_daemon():
    assert [unit.name for unit in UNITS] == ["gpusonde-agent.service", "gpusonde-collector.service"]


@needs_systemd_analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_nothing_wrong_with_a_unit(unit, tmp_path):
    copy = tmp_path / unit.name
    # Only that the command is not installed here would be wrong.
    copy.write_text(unit.read_text().replace("/usr/bin/gpusonde", shutil.which("true")))
    done = analyze("verify", "--man=no", str(copy))
    if "Operation not permitted" in done.stderr or "Failed to" in done.stderr.split("\n", 1)[0]:
        pytest.skip(f"systemd-analyze cannot work here: {done.stderr.splitlines()[0]}")
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd_analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_exposes_little(unit):
    done = analyze("security", "--offline=yes", "--no-pager", str(unit))
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze has no --offline")
    (exposure,) = re.findall(r"Overall exposure level for .*: ([\d.]+)", done.stdout)
    assert float(exposure) <= LARGEST_EXPOSURE


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_every_group_of_a_unit_is_declared(unit):
    groups = settings(unit)["Service"].get("SupplementaryGroups", "").split()
    declared = re.findall(r"^g (\S+) - -$", (SYSTEMD / "gpusonde.sysusers.conf").read_text(), re.MULTILINE)
    assert groups
    assert set(groups) <= set(declared)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_waits_longer_than_its_daemon_drains(unit):
    from gpusonde.agent import AgentConfig
    from gpusonde.collector import CollectorConfig

    drains_s = {
        "gpusonde-agent": AgentConfig().uplink.drain_timeout_s,
        "gpusonde-collector": CollectorConfig().server.drain_grace_s,
    }
    assert float(settings(unit)["Service"]["TimeoutStopSec"]) >= drains_s[unit.stem] + 5


@pytest.mark.parametrize("daemon", ["agent", "collector"])
def test_the_variables_of_the_defaults_file_are_options(daemon):
    from gpusonde.agent import AgentConfig
    from gpusonde.collector import CollectorConfig

    text = (SYSTEMD / f"gpusonde-{daemon}.default").read_text()
    variables = dict(re.findall(r"^#(GPUSONDE_\w+)=(\S+)$", text, re.MULTILINE))
    assert variables
    kind = AgentConfig if daemon == "agent" else CollectorConfig
    for variable in variables:
        section, _, option = variable.removeprefix(kind.environment_prefix).lower().partition("_")
        assert f"{section}.{option}" in kind.options()


def test_the_folder_of_the_slurm_files_is_the_agents_default():
    from gpusonde.agent import AgentConfig

    assert (
        f"d {AgentConfig().jobs.slurm_mapping_dir} 0755 root root -" in (SYSTEMD / "gpusonde.tmpfiles.conf").read_text()
    )


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="no systemd-tmpfiles here")
def test_systemd_makes_the_folders(tmp_path):
    # Under another root the groups of this host are unknown.
    lines = (SYSTEMD / "gpusonde.tmpfiles.conf").read_text().replace("root gpusonde", "- -").replace("root root", "- -")
    (tmp_path / "folders.conf").write_text(lines)
    root = tmp_path / "root"
    root.mkdir()
    done = subprocess.run(
        ["systemd-tmpfiles", "--create", f"--root={root}", str(tmp_path / "folders.conf")],
        capture_output=True,
        text=True,
        check=False,
    )
    if "not permitted" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, "")
    assert (root / "run/gpusonde/jobs").is_dir()
    assert (root / "etc/gpusonde/tls").stat().st_mode & 0o777 == 0o750
