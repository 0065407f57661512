"""The Dockerfiles as far as they can be checked without a builder: what they copy, who runs, what is asked."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpusonde.agent import AgentConfig
from gpusonde.collector import CollectorConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy" / "docker"
FILES = {"agent": AgentConfig, "collector": CollectorConfig}


def instructions(name):
    """(stage, instruction, arguments) in order; continued lines are joined."""
    text = (DOCKER / f"{name}.Dockerfile").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    stage = 0
    for line in re.sub(r"\\\n\s*", " ", lines).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.partition(" ")
        stage += word == "FROM"
        yield stage, word, rest.strip()


def last_stage(name, word):
    found = list(instructions(name))
    return [rest for stage, each, rest in found if stage == found[-1][0] and each == word]


@pytest.mark.parametrize("name", FILES)
def test_everything_that_is_copied_is_there_and_let_through(name):
    ignored = (DOCKER / f"{name}.Dockerfile.dockerignore").read_text().splitlines()
    copied = [rest for stage, word, rest in instructions(name) if word == "COPY" and not rest.startswith("--from")]
    sources = [source for rest in copied for source in rest.split()[:-1]]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert [source for source in sources if f"!{source}" not in ignored] == []


@pytest.mark.parametrize("name", FILES)
def test_all_that_the_wheel_is_made_of_is_copied(name):
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {package.split("/")[0] for package in wheel["packages"]} | set(wheel["force-include"])
    copied = {s for _, word, rest in instructions(name) if word == "COPY" for s in rest.split()[:-1]}
    assert needed <= copied


@pytest.mark.parametrize("name", FILES)
def test_the_daemon_runs_in_a_second_stage_as_nobody_and_is_asked_for_its_health(name):
    assert list(instructions(name))[-1][0] == 2
    (user,) = last_stage(name, "USER")
    uid, gid = user.split(":")
    assert int(uid) >= 1000 <= int(gid)
    (check,) = last_stage(name, "HEALTHCHECK")
    port = {"agent": 9435, "collector": 9434}[name]
    assert f"127.0.0.1:{port}/-/healthy" in check
    compile(shlex.split(check.split("CMD ", 1)[1].strip("[]"))[-1], "health check", "exec")
    assert last_stage(name, "CMD") == [f'["{name}"]']


@pytest.mark.parametrize("name", FILES)
def test_the_environment_holds_options_only(name):
    (environment,) = last_stage(name, "ENV")
    values = dict(pair.split("=", 1) for pair in environment.split())
    ours = {key: value for key, value in values.items() if key.startswith("GPUSONDE_")}
    FILES[name].load(environment=ours)
    assert ours


def test_image_and_package_of_the_collector_have_the_extras_that_its_options_take():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (image,) = [rest for _, word, rest in instructions("collector") if word == "ARG" and rest.startswith("EXTRAS=")]
    package = re.search(r"\{wheel\}\[(.*?)\]", (ROOT / "deploy" / "packages" / "build.py").read_text())
    assert package is not None
    for extras in (image.removeprefix("EXTRAS="), package[1]):
        assert {"collector", "push"} <= set(extras.split(",")) <= set(known)


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="no hadolint here")
@pytest.mark.parametrize("name", FILES)
def test_hadolint_finds_nothing(name):
    done = subprocess.run(
        ["hadolint", "--no-color", str(DOCKER / f"{name}.Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
