"""The packages, installed by dpkg into a root of their own; the libraries are those of this environment, not pip's."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("shtab", reason="packages are built with the tools of the extra dev")
pytest.importorskip("argparse_manpage", reason="packages are built with the tools of the extra dev")

ROOT = Path(__file__).parents[2]
NEEDED = ("nfpm", "dpkg", "systemd-sysusers", "systemd-tmpfiles")
SYSTEM_PYTHON = "/usr/bin/python3"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def run(*command, **more):
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=250, check=False, **more
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def is_like_the_systems_python():
    if not Path(SYSTEM_PYTHON).exists():
        return False
    return run(SYSTEM_PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip() == VERSION


pytestmark = [
    pytest.mark.skipif(any(shutil.which(tool) is None for tool in NEEDED), reason=f"needs {', '.join(NEEDED)}"),
    pytest.mark.skipif(not is_like_the_systems_python(), reason=f"the system's Python is not {VERSION}"),
    pytest.mark.needs_root,
    pytest.mark.skipif(os.geteuid() != 0, reason="dpkg gives files to root"),
]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    module = runpy.run_path(str(ROOT / "deploy" / "packages" / "build.py"))
    inside = module["build"].__globals__

    def install(environment, requirement):
        site = environment / "lib" / f"python{VERSION}" / "site-packages"
        (site / "here.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        for library in re.findall(r"\[.*\]", requirement):
            (site / "collector_only.py").write_text(f"extras = {library!r}\n")

    inside["_install"] = install
    inside["_wheel"] = lambda _work: Path("gpusonde.whl")
    folder = tmp_path_factory.mktemp("packages")
    work = folder / "work"
    work.mkdir()
    built = module["build"](list(module["NAMES"]), ["deb", "rpm"], folder / "out", SYSTEM_PYTHON, work)
    return {path.name.split("_")[0]: path for path in built if path.suffix == ".deb"} | {
        path.name.split("-0.")[0] + ".rpm": path for path in built if path.suffix == ".rpm"
    }


def dpkg(root, *arguments):
    # Nothing that the packages need is in an empty root; their scripts are told its name.
    return run("dpkg", f"--root={root}", "--force-depends,confold", "--force-script-chrootless", *arguments)


@pytest.fixture(scope="module")
def root(packages, tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "etc", "usr/lib"):
        (root / folder).mkdir(parents=True)
    for file in ("status", "available"):
        (root / "var/lib/dpkg" / file).touch()
    dpkg(root, "-i", *(packages[name] for name in ("gpusonde", "gpusonde-agent", "gpusonde-collector")))
    return root


def test_the_command_runs_from_where_it_was_installed(root):
    python = root / "opt/gpusonde/bin/python"
    assert run(python, "-m", "gpusonde.cli", "--version").startswith("gpusonde ")
    assert os.readlink(root / "usr/bin/gpusonde") == "/opt/gpusonde/bin/gpusonde"
    assert (root / "opt/gpusonde/bin/gpusonde").read_text().startswith("#!/opt/gpusonde/bin/python\n")
    assert (root / "opt/gpusonde/bin/gpusonde").stat().st_mode & 0o777 == 0o755


def test_units_find_the_command_and_their_configuration(root):
    for daemon in ("agent", "collector"):
        unit = (root / f"usr/lib/systemd/system/gpusonde-{daemon}.service").read_text()
        (command,) = re.findall(r"^ExecStart=(\S+)", unit, re.MULTILINE)
        assert (root / command.lstrip("/")).is_symlink()
        (page,) = re.findall(r"^Documentation=file:/(\S+)", unit, re.MULTILINE)
        assert (root / page).is_file()
        (defaults,) = re.findall(r"^EnvironmentFile=-/(\S+)", unit, re.MULTILINE)
        assert (root / defaults).is_file()
        assert (root / f"etc/gpusonde/{daemon}.toml").is_file()
    assert re.search(r"^gpusonde:", (root / "etc/group").read_text(), re.MULTILINE)
    assert (root / "etc/gpusonde/tls").stat().st_mode & 0o777 == 0o750


def test_no_file_belongs_to_two_packages_and_the_collectors_libraries_are_its_own(packages, root):
    listed = {
        name: set(dpkg(root, "-L", name).split()) for name in ("gpusonde", "gpusonde-agent", "gpusonde-collector")
    }
    owned = [file for files in listed.values() for file in files if not (root / file.lstrip("/")).is_dir()]
    assert len(owned) == len(set(owned))
    assert f"/opt/gpusonde/lib/python{VERSION}/site-packages/collector_only.py" in listed["gpusonde-collector"]


def test_what_somebody_has_configured_stays_when_the_package_is_installed_again(packages, root):
    settings = root / "etc/gpusonde/agent.toml"
    settings.write_text('[agent]\nid = "host-7"\n')
    dpkg(root, "-i", packages["gpusonde-agent"])
    assert "host-7" in settings.read_text()
    dpkg(root, "-r", "gpusonde-agent")
    assert "host-7" in settings.read_text()
    assert not (root / "usr/lib/systemd/system/gpusonde-agent.service").exists()
    dpkg(root, "-P", "gpusonde-agent")
    assert not settings.exists()


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", "bash-completion/completions/gpusonde"),
        ("zsh", "zsh/vendor-completions/_gpusonde"),
        ("fish", "fish/vendor_completions.d/gpusonde.fish"),
    ],
)
def test_shells_take_the_completions(root, shell, file):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    run(shell, "-n", root / "usr/share" / file)
    text = (root / "usr/share" / file).read_text()
    assert "total-epochs" in text
    assert "fsck" in text


def test_bash_completes_commands_and_options(root):
    script = root / "usr/share/bash-completion/completions/gpusonde"
    asked = 'COMP_WORDS=(gpusonde {0}); COMP_CWORD={1}; _shtab_gpusonde; printf "%s\\n" "${{COMPREPLY[@]}}"'
    typed = [("st", 1, "store"), ("store fs", 2, "fsck"), ("detect --total", 2, "--total-epochs")]
    for words, at, expected in typed:
        said = run("bash", "-c", f'. "{script}"; {asked.format(words, at)}')
        assert expected in said.split(), words


@pytest.mark.skipif(shutil.which("man") is None, reason="no man here")
def test_man_shows_every_command(root):
    page = " ".join(run("man", "-l", root / "usr/share/man/man1/gpusonde.1.gz").split())
    assert "gpusonde - Training progress" in page
    assert "--total-epochs" in page
    assert "'gpusonde COMMAND --help' explains a command" in page.replace("\u2019", "'").replace("\u2018", "'")


@pytest.mark.skipif(shutil.which("rpm") is None, reason="no rpm here")
def test_rpm_reads_its_packages(packages):
    kept = run("rpm", "-qp", "--configfiles", packages["gpusonde-collector.rpm"]).split()
    assert kept == ["/etc/default/gpusonde-collector", "/etc/gpusonde/collector.toml"]
    assert f"python(abi) = {VERSION}" in run("rpm", "-qp", "--requires", packages["gpusonde.rpm"])
