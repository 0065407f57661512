"""The command's frame: exit codes, the error boundary, lazy imports, log lines."""

from __future__ import annotations

import argparse
import ast
import json
import logging
import shlex
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from gpusonde.cli import main
from gpusonde.cli.__main__ import start
from gpusonde.cli.errors import describe
from gpusonde.cli.main import build_parser
from gpusonde.errors import CommandError, UsageError
from gpusonde.service import process
from gpusonde.telemetry import TraceError

HEAVY = ("scipy", "sklearn", "pandas", "catboost", "matplotlib", "pyarrow")


def run_raising(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, *, as_json: bool = False, verbose: bool = False
) -> int:

    def raising(_args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(main, "run_command", raising)
    return main.run(argparse.Namespace(command="detect", json=as_json, verbose=verbose))


def gpusonde(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpusonde.cli", *arguments], capture_output=True, text=True, check=False, timeout=200
    )


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["metrics", "--no-such-option"], ["--json"]])
def test_a_wrong_command_line_exits_2_with_usage_on_stderr(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) == 2
    printed = capsys.readouterr()
    assert "usage: gpusonde" in printed.err
    assert "gpusonde: error:" in printed.err


@pytest.mark.parametrize(
    ("arguments", "guess", "usage"),
    [
        (["detcet"], "detect", "usage: gpusonde [-h]"),
        (["detect", "--gpuu", "0", "x.csv"], "--gpu", "usage: gpusonde detect"),
        (["detect", "x.csv", "--inter=1"], "--interval-s", "usage: gpusonde detect"),
        (["store", "exprt"], "export", "usage: gpusonde store"),
        (["detect", "x.csv", "--mode", "papr"], "paper", "usage: gpusonde detect"),
    ],
)
def test_misspelt_words_get_a_guess_and_the_error_comes_before_the_usage(
    arguments: list[str], guess: str, usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) == 2
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("gpusonde: error: ")
    assert first.endswith(f"; did you mean {guess}?")
    assert rest[0].startswith(usage)


def test_ctrl_c_between_parsing_and_running_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "configure", interrupted)
    assert main.main(["metrics"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_wrong_command_line_under_json_prints_one_error_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["metrics", "--json", "--nonsense"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["type"] == "UsageError"
    assert "--nonsense" in error["message"]


def test_options_are_never_guessed_from_a_prefix() -> None:
    assert main.main(["metrics", "--js"]) == 2


@pytest.mark.parametrize(("text", "seconds"), [("100ms", 0.1), ("1.5h", 5400.0), ("2min", 120.0), ("0.25", 0.25)])
def test_durations_are_seconds_or_have_a_unit(text: str, seconds: float) -> None:
    assert build_parser().parse_args(["detect", "x.csv", "--interval-s", text]).interval_s == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["0", "-3", "0ms", "10 parsecs", "fast", "nan"])
def test_what_is_no_duration_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(UsageError, match=r"write 100ms, 1\.5h or a number of seconds"):
        build_parser().parse_args(["detect", "x.csv", f"--interval-s={text}"])


def test_version_names_the_distribution() -> None:
    from importlib.metadata import version

    answer = gpusonde("--version")
    assert (answer.returncode, answer.stdout) == (0, f"gpusonde {version('gpusonde')}\n")


def every_command() -> list[list[str]]:
    """What can be typed, without options."""
    return [
        [name, action] if action else [name]
        for name, command in main.COMMANDS.items()
        for action in command.actions or ("",)
    ]


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_every_command_explains_itself(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main.main([*words, "--help"])
    assert stopped.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--json" in shown
    example = shown.partition(f"example: gpusonde {' '.join(words)} ")[2]
    assert main.build_parser().parse_args([*words, *shlex.split(example)]).handler


@pytest.mark.parametrize("arguments", ["['agent', '--help']", "['gpus', '--json']", "['metrics']", "['--help']"])
def test_a_gpu_hosts_commands_import_no_scientific_stack(arguments: str) -> None:
    script = (
        "import sys\n"
        "from gpusonde.cli.main import main\n"
        "try:\n"
        f"    main({arguments})\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)\n"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200)
    assert answer.stderr.splitlines()[-1] == "[]"


def imported_by(arguments: list[str]) -> list[str]:
    """Modules of ours, and heavy ones of others, that a command has imported when it ends."""
    script = (
        "import sys\n"
        "from gpusonde.cli.main import main\n"
        "try:\n"
        f"    main({arguments!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        "others = {'numpy', 'grpc', 'pathlib', 'logging', 'dataclasses'}\n"
        "print(sorted(m for m in sys.modules if m.startswith('gpusonde.') or m in others), file=sys.stderr)\n"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200)
    return list(ast.literal_eval(answer.stderr.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["store", "--help"], ["--version"]], ids=" ".join)
def test_help_imports_no_command_and_no_component(arguments: list[str]) -> None:
    found = imported_by(arguments)
    assert [name for name in found if name.startswith("gpusonde.")] == [
        "gpusonde.cli", "gpusonde.cli.main", "gpusonde.cli.parsing", "gpusonde.errors"
    ]  # fmt: skip
    if arguments != ["--version"]:  # which importlib.metadata needs them for
        assert "pathlib" not in found


def test_a_command_imports_no_other_one() -> None:
    homes = {f"gpusonde.cli.{command.module}" for command in main.COMMANDS.values() if command.module}
    assert homes & set(imported_by(["gpus", "--help"])) == {"gpusonde.cli.commands.catalog"}


def test_our_own_errors_become_one_line_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_raising(monkeypatch, TraceError("the trace has no metric 'x';\n it has 'y'")) == 1
    printed = capsys.readouterr()
    assert printed.err == "gpusonde: error: the trace has no metric 'x'; it has 'y'\n"
    assert printed.out == ""


def test_an_error_under_json_is_an_object_with_file_line_and_field(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = CommandError("run.csv:3: field 'time_s': not a number; correct it")
    error.path, error.line, error.field = Path("run.csv"), 3, "time_s"  # type: ignore[attr-defined]
    assert run_raising(monkeypatch, error, as_json=True) == 1
    assert json.loads(capsys.readouterr().out) == {
        "error": {
            "type": "CommandError",
            "message": "run.csv:3: field 'time_s': not a number; correct it",
            "file": "run.csv",
            "line": 3,
            "field": "time_s",
        }
    }


def test_a_fault_of_ours_says_that_it_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_raising(monkeypatch, ZeroDivisionError("division by zero")) == 1
    assert "this is a fault in gpusonde" in capsys.readouterr().err


def test_verbose_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_raising(monkeypatch, TraceError("bad"), verbose=True)
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_ctrl_c_exits_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_raising(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_ctrl_c_while_a_command_is_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_names: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "load_module", interrupted)
    assert main.main(["metrics"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_ctrl_c_before_the_command_is_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def __getattr__(self, _name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "gpusonde.cli.main", Interrupted())
    assert start() == 130
    assert capsys.readouterr() == ("", "interrupted\n")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_goes_away_is_no_error(options: list[str]) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "gpusonde.cli", "metrics", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    assert command.stderr.read() == b""
    command.stderr.close()
    assert command.wait(timeout=200) == main.EXIT_BROKEN_PIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device /dev/full")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_under_stdout_is_one_line_and_exit_1(options: list[str]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = subprocess.run(
            [sys.executable, "-m", "gpusonde.cli", "metrics", *options],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=200,
        )  # fmt: skip
    assert command.stderr == "gpusonde: error: standard output: No space left on device\n"
    assert command.returncode == 1


@pytest.mark.parametrize("options", ["", "--json"])
def test_a_process_without_stdout_or_stderr_does_its_work(options: str) -> None:
    def shell(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=200)

    command = f"{sys.executable} -m gpusonde.cli gpus {options}"
    silent = shell(f"{command} >&-")
    assert (silent.returncode, silent.stderr) == (0, "")
    refused = shell(f"{command} no-such-gpu 2>&-")
    assert refused.returncode == 1
    assert bool(refused.stdout) is bool(options)
    if options:
        assert json.loads(refused.stdout)["error"]["type"] == "UnknownGpuError"


def test_an_operating_system_error_names_the_file() -> None:
    report = describe(FileNotFoundError(2, "No such file or directory", "trace.csv"), "detect")
    assert (report.message, report.file, report.is_bug) == (
        "trace.csv: No such file or directory",
        "trace.csv",
        False,
    )


def test_a_missing_extra_says_which_one_to_install() -> None:
    report = describe(ModuleNotFoundError("No module named 'scipy'", name="scipy.signal"), "detect")
    assert "pip install 'gpusonde[cli]'" in report.message
    assert report.type == "MissingExtraError"
    assert "'gpusonde[collector]'" in describe(ModuleNotFoundError("", name="scipy"), "collector").message


def test_a_module_that_no_extra_brings_is_a_fault_of_ours() -> None:
    assert describe(ModuleNotFoundError("No module named 'nonsense'", name="nonsense"), "detect").is_bug


def test_a_collector_that_is_not_there_is_said_so() -> None:
    class Unavailable(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAVAILABLE

        def details(self) -> str:
            return "connection refused"

    message = describe(Unavailable(), "runs").message
    assert "the collector cannot be reached (connection refused)" in message
    assert "--collector" in message


def test_json_log_lines_are_objects(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        process.configure("json", verbose=False, level=logging.WARNING, stream=sys.stderr)
        logging.getLogger("gpusonde.agent.uplink").warning("collector %s is away", "c1")
        logging.getLogger("gpusonde.agent.uplink").info("not printed")
    finally:
        logging.getLogger().handlers[:], logging.getLogger().level = before
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    entry = json.loads(lines[0])
    assert entry["message"] == "collector c1 is away"
    assert (entry["level"], entry["logger"]) == ("warning", "gpusonde.agent.uplink")
    assert entry["time"].endswith("+00:00")
