"""Builds the packages of systems with dpkg or rpm: ``make packages``.

    .venv/bin/python deploy/packages/build.py --out dist [--python /usr/bin/python3] [--only NAME] [--kind deb]

``gpusonde`` is the command with the libraries of a GPU host, in a virtual environment at /opt/gpusonde, with
completions for shells and a page for man; ``gpusonde-collector`` adds the collector's libraries to that environment
(the same versions, so no file is in both), its unit and its configuration; ``gpusonde-agent`` the agent's. They are
for the release of Python that they are built with: build them on the system that they are for.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import shtab
from argparse_manpage.manpage import Manpage

from gpusonde.cli.main import build_whole_parser

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
HOME = "opt/gpusonde"
DAEMONS = {"gpusonde-agent": "agent", "gpusonde-collector": "collector"}
NAMES = ("gpusonde", *DAEMONS)
# Where each of the two kinds of systems looks for completions of zsh.
ZSH = {"deb": "vendor-completions", "rpm": "site-functions"}
# What the manual calls the arguments that are names of files.
_FILES = re.compile(r"FILE|PNG|SRC|OUT|STORE|TRACES?|PROBLEM|MODEL|.*\.(csv|json|toml)")
_SUMMARY = {
    "gpusonde": "Training progress, epoch latency and what to rent, from GPU metrics alone",
    "gpusonde-agent": "Samples the GPUs of a host and streams them to a gpusonde collector",
    "gpusonde-collector": "Keeps the streams of gpusonde agents, finds epochs and answers questions",
}


def build(names: list[str], kinds: list[str], out: Path, python: str, work: Path) -> list[Path]:
    """Build packages and return their files.

    Args:
        names: Of ``NAMES``.
        kinds: ``deb``, ``rpm`` or both.
        out: Where they go.
        python: The interpreter that they are to run with.
        work: An empty folder.
    """
    out.mkdir(parents=True, exist_ok=True)
    libraries = work / "libraries"
    base = work / "gpusonde"
    wheel = _wheel(work)
    _run(python, "-m", "venv", "--without-pip", base / HOME)
    _install(base / HOME, str(wheel))
    _clean(base, python)
    if "gpusonde-collector" in names:
        _add_libraries(base, libraries, wheel, python)
    _write_manual(work)
    release = _run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    made = []
    for name in names:
        for kind in kinds:
            config = work / f"{name}.{kind}.json"
            config.write_text(json.dumps(_description(name, kind, release, work)))
            told = _run(Path(sys.executable).with_name("nfpm"), "package", "-f", config, "-p", kind, "-t", out)
            made.append(Path(told.rpartition("created package: ")[2].strip()))
    return made


def _run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _wheel(work: Path) -> Path:
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", work, ".")
    (wheel,) = work.glob("gpusonde-*.whl")
    return wheel


def _install(environment: Path, requirement: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "--disable-pip-version-check"]
    _run(*pip, "install", "--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt", requirement)


def _clean(base: Path, python: str) -> None:
    """Leave nothing in the environment that names the folder that it was made in."""
    environment = base / HOME
    for script in (environment / "bin").iterdir():
        if not script.name.startswith("python"):
            script.unlink()
    command = environment / "bin" / "gpusonde"
    command.write_text(f"#!/{HOME}/bin/python\nimport sys\n\nfrom gpusonde.cli.main import main\n\nsys.exit(main())\n")
    command.chmod(0o755)
    for note in environment.glob("lib/*/site-packages/gpusonde-*.dist-info/direct_url.json"):
        note.unlink()
    settings = environment / "pyvenv.cfg"
    lines = settings.read_text().splitlines()
    settings.write_text("\n".join(line for line in lines if not line.startswith("command")) + "\n")
    # Daemons may not write beside their code. Who changes files of a package has the package system to answer to.
    how = ["-q", "-j", "0", "-s", base, "-p", "/", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([python, "-m", "compileall", *how, environment], stdout=subprocess.DEVNULL, check=False)


def _add_libraries(base: Path, libraries: Path, wheel: Path, python: str) -> None:
    """Lay out what the collector needs and the base has not."""
    whole = libraries.with_name("whole")
    shutil.copytree(base, whole, symlinks=True)
    _install(whole / HOME, f"{wheel}[collector,web,sql,push]")
    _clean(whole, python)
    for path in sorted(whole.rglob("*")):
        inside = path.relative_to(whole)
        if not path.is_dir() and not (base / inside).exists() and not (base / inside).is_symlink():
            (libraries / inside).parent.mkdir(parents=True, exist_ok=True)
            path.rename(libraries / inside)
    shutil.rmtree(whole)


def _write_manual(work: Path) -> None:
    """Write completions and the page for man."""
    parser = build_whole_parser()
    for action in _actions(parser):
        if _FILES.fullmatch(str(action.metavar or "")):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    for shell in ("bash", "zsh", "fish"):
        (work / f"gpusonde.{shell}").write_text(shtab.complete(parser, shell))
    about = {"manual_title": "gpusonde", "version": metadata.version("gpusonde"), "description": _SUMMARY["gpusonde"]}
    # A line that begins with a quote would be taken for a command of troff's.
    (work / "gpusonde.1").write_text(re.sub(r"(?m)^'", r"\\&'", str(Manpage(parser, about))))
    _run("gzip", "-9nf", work / "gpusonde.1")


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)


def _description(name: str, kind: str, release: str, work: Path) -> dict[str, Any]:
    """Return what nfpm is told of a package."""
    version = metadata.version("gpusonde")
    about: dict[str, Any] = {
        "name": name,
        "arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "version": version,
        "section": "admin",
        "maintainer": "the maintainers of gpusonde <maintainers@gpusonde.invalid>",
        "description": _SUMMARY[name],
        "license": "Apache-2.0",
        "depends": [f"gpusonde = {version}-1" if kind == "rpm" else f"gpusonde (= {version}-1)"],
        "release": "1",
    }
    if name == "gpusonde":
        major, minor = map(int, release.split("."))
        between = [f"python3 (>= {release}~)", f"python3 (<< {major}.{minor + 1}~)", "systemd"]
        about["depends"] = between if kind == "deb" else [f"python(abi) = {release}", "systemd"]
        about["contents"] = _base_files(kind, work)
        about["scripts"] = {"postinstall": str(DEPLOY / "packages" / "base.postinstall.sh")}
        return about
    daemon = DAEMONS[name]
    if daemon == "collector":
        about["depends"].append("libgomp1" if kind == "deb" else "libgomp")
    about["contents"] = _daemon_files(daemon, work)
    about["scripts"] = {}
    for moment in ("postinstall", "preremove"):
        script = work / f"{name}.{moment}.sh"
        script.write_text((DEPLOY / "packages" / f"unit.{moment}.sh").read_text().replace("@UNIT@", f"{name}.service"))
        about["scripts"][moment] = str(script)
    return about


def _base_files(kind: str, work: Path) -> list[dict[str, Any]]:
    systemd = DEPLOY / "systemd"
    return [
        {"src": f"{work}/gpusonde/{HOME}", "dst": f"/{HOME}", "type": "tree"},
        {"src": f"/{HOME}/bin/gpusonde", "dst": "/usr/bin/gpusonde", "type": "symlink"},
        _file(systemd / "gpusonde.sysusers.conf", "/usr/lib/sysusers.d/gpusonde.conf"),
        _file(systemd / "gpusonde.tmpfiles.conf", "/usr/lib/tmpfiles.d/gpusonde.conf"),
        _file(work / "gpusonde.bash", "/usr/share/bash-completion/completions/gpusonde"),
        _file(work / "gpusonde.zsh", f"/usr/share/zsh/{ZSH[kind]}/_gpusonde"),
        _file(work / "gpusonde.fish", "/usr/share/fish/vendor_completions.d/gpusonde.fish"),
        _file(work / "gpusonde.1.gz", "/usr/share/man/man1/gpusonde.1.gz"),
        _file(ROOT / "LICENSE", "/usr/share/doc/gpusonde/copyright"),
        *(_file(page, f"/usr/share/doc/gpusonde/{page.name}") for page in sorted((ROOT / "docs").glob("*.md"))),
    ]


def _daemon_files(daemon: str, work: Path) -> list[dict[str, Any]]:
    name = f"gpusonde-{daemon}"
    kept = "config|noreplace"
    files = [
        _file(DEPLOY / "systemd" / f"{name}.service", f"/usr/lib/systemd/system/{name}.service"),
        _file(DEPLOY / "config" / f"{daemon}.toml", f"/etc/gpusonde/{daemon}.toml") | {"type": kept},
        _file(DEPLOY / "systemd" / f"{name}.default", f"/etc/default/{name}") | {"type": kept},
    ]
    if daemon == "collector":
        files.append({"src": f"{work}/libraries/{HOME}", "dst": f"/{HOME}", "type": "tree"})
    return files


def _file(source: Path, target: str) -> dict[str, Any]:
    return {"src": str(source), "dst": target, "file_info": {"mode": 0o644}}


def main() -> None:
    """Build what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the packages")
    parser.add_argument("--python", default="/usr/bin/python3", help="interpreter that they run with (%(default)s)")
    parser.add_argument("--only", action="append", choices=NAMES, help="build this one alone; may be repeated")
    parser.add_argument("--kind", action="append", choices=list(ZSH), help="build this kind alone")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        for path in build(
            args.only or list(NAMES), args.kind or list(ZSH), args.out.resolve(), args.python, Path(work)
        ):
            print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
