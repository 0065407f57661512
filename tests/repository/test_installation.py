"""What somebody gets who installs: a wheel, the pinned versions, and a bare command that works on its own."""

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gpusonde.telemetry import Trace, write_trace

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
OFFLINE = re.compile(r"Failed to establish a new connection|Name or service not known|Temporary failure in name resol")


def pins():
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if line and not line.startswith("#")]
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(pin.name): pin for pin in found if pin.marker is None or pin.marker.evaluate()}


def run(*command, **more):
    """Run a command that must succeed, and return what it says."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, **more)
    if done.returncode and OFFLINE.search(done.stdout + done.stderr):
        pytest.skip("no package registry can be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def needed(extra):
    """Names that an extra of gpusonde leads to, directly or through what it needs."""
    found, waiting = set(), [("gpusonde", extra)]
    while waiting:
        name, extra = waiting.pop()
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            known = canonicalize_name(requirement.name)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                fresh = [(known, each) for each in ("", *requirement.extras)]
                waiting += [pair for pair in fresh if pair not in found]
                found.update(fresh)
    # setuptools is each Python's own: an older one does not run on a newer Python.
    return {name for name, _ in found} - {"gpusonde", "setuptools"}


@pytest.mark.parametrize("extra", ["", "collector", "clickhouse", "sql", "dev"])
def test_everything_that_is_needed_is_pinned_to_what_the_tests_run_with(extra):
    pinned = pins()
    assert sorted(needed(extra) - set(pinned)) == []
    differing = [name for name in needed(extra) if metadata.version(name) not in pinned[name].specifier]
    assert differing == [], "install with -c constraints.txt, or run 'make constraints' once the tests pass"


def test_the_wheel_in_an_empty_environment_is_a_gpu_hosts_agent(tmp_path):
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("gpusonde-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "empty"))
    python = tmp_path / "empty" / "bin" / "python"
    run(*pip, "--python", str(python), "install", "--quiet", "--only-binary=:all:", "-c", str(CONSTRAINTS), str(wheel))
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    listed = json.loads(run(*pip, "--python", str(python), "list", "--format", "json"))
    assert {"scipy", "scikit-learn", "pandas", "pyarrow"}.isdisjoint(each["name"].lower() for each in listed)
    gpusonde = str(python.with_name("gpusonde"))
    run(gpusonde, "agent", "--check-config", env=environment, cwd=tmp_path)
    write_trace(Trace(np.arange(50) * 0.1, {"sm_active": np.full(50, 0.5)}, gpu_model="Tesla T4"), tmp_path / "t.csv")
    recorded = run(
        gpusonde, "record", "copy.csv", "--replay", "t.csv", "--speed", "100", "--json", env=environment, cwd=tmp_path
    )
    assert json.loads(recorded)["ticks"] == 50
