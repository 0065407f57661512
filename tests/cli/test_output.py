"""Results as JSON, as Rich tables and as plain text."""

from __future__ import annotations

import contextlib
import csv
import enum
import fcntl
import io
import json
import math
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from gpusonde import formatting
from gpusonde.cli.demo.run import bundled_trace
from gpusonde.cli.main import main
from gpusonde.cli.output import Output, RichScreen, Screen, TableFormat, TableScreen, to_json
from gpusonde.cli.runs_view import render_levels
from gpusonde.epoch_detect import Cycle, CycleRole


class Colour(enum.Enum):
    RED = "red"


def test_json_never_holds_nan_or_infinity() -> None:
    payload = {"nan": float("nan"), "list": [np.float32("inf"), 1.5], "array": np.array([[1.0, np.nan]])}
    assert json.loads(to_json(payload)) == {"nan": None, "list": [None, 1.5], "array": [[1.0, None]]}


def test_a_level_of_a_run_of_which_no_period_is_told_has_its_own() -> None:
    level = Cycle(20.0, 19.0, 21.0, 28, np.empty(0), 0.73, CycleRole.CHECKPOINT, 0.67)
    lines: list[str] = []
    render_levels(cast(Screen, SimpleNamespace(line=lines.append)), [level], 0, math.nan)
    assert lines == ["cycle of 20.0 s x 28: confidence 0.73, role checkpoint 0.67"]


def test_json_knows_enumerations_and_numpy_scalars() -> None:
    assert json.loads(to_json({"a": Colour.RED, "b": np.int64(3), "c": np.bool_(True), "d": None})) == {
        "a": "red",
        "b": 3,
        "c": True,
        "d": None,
    }


def test_json_refuses_what_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="object has no place"):
        to_json({"a": object()})


def test_a_result_under_json_is_exactly_one_line_and_nothing_is_rendered() -> None:
    stdout = io.StringIO()

    def render(screen: Screen) -> None:
        raise AssertionError("rendered")

    Output(as_json=True, stdout=stdout).result({"epochs": 3}, render)
    assert stdout.getvalue() == '{"epochs": 3}\n'


def test_a_plain_table_is_aligned() -> None:
    stream = io.StringIO()
    Screen(stream).table(("name", "watts"), [("T4", "70"), ("A100-SXM4-80GB", "400")], numeric=("watts",))
    assert stream.getvalue().splitlines() == [
        "name            watts",
        "--------------  -----",
        "T4                 70",
        "A100-SXM4-80GB    400",
    ]


def test_an_empty_table_shows_its_columns() -> None:
    stream = io.StringIO()
    Screen(stream).table(("name", "watts"), [])
    assert stream.getvalue().splitlines()[0] == "name  watts"


def test_a_rich_table_in_a_pipe_keeps_every_cell_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = io.StringIO()
    cells = [f"column {i} with a rather long text" for i in range(5)]
    RichScreen(stream).table([str(i) for i in range(5)], [cells])
    assert any(all(cell in line for cell in cells) for line in stream.getvalue().splitlines())


class Terminal(io.StringIO):
    """A terminal for Rich, as wide as the environment says."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("width", "shown"), [(60, ["name", "watts", "remark", "note"]), (38, ["name", "watts", "note"])]
)
def test_a_narrow_terminal_gets_fewer_columns(width: int, shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    columns = ("name", "watts", "remark", "note")
    RichScreen(stream).table(columns, [("T4", "70", "a rather long text", "short")], optional=("remark", "name"))
    heading = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()[0]
    assert heading.split() == shown


@pytest.mark.parametrize("width", [60, 30, 18])
def test_what_names_a_row_is_neither_left_out_nor_wrapped_and_what_is_left_out_is_told(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    run = "20261122T081716-e95949f0"
    cells = (run, "NVIDIA H100 80GB HBM3", "gpu-node-17", "4711", "13.2", "slower since the last evaluation " * 3)
    RichScreen(stream).table(("run", "GPU", "host", "job", "epoch (s)", "why"), [cells], numeric=("epoch (s)",))
    heading, _, row, *below = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()
    told = "left out " + " ".join(below).rpartition("left out ")[2]
    assert row.startswith(run)
    assert told.startswith("left out for width: ")
    missing = told.removeprefix("left out for width: ").removesuffix("; --wide shows them").split(", ")
    assert [name for name in ("GPU", "host", "job", "epoch (s)", "why") if name not in heading] == missing


def test_long_text_is_wrapped_before_columns_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    RichScreen(stream).table(("job", "state", "why"), [("4711", "slower", "clocks fell " * 10)], optional=("state",))
    assert "left out" not in stream.getvalue()
    assert max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines())) <= 60


def test_wide_tables_keep_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(RichScreen, "wide", True)
    stream = Terminal()
    cells = [f"column {i} with a rather long text" for i in range(9)]
    RichScreen(stream).table([str(i) for i in range(9)], [cells])
    assert any(all(cell in line for cell in cells) for line in stream.getvalue().splitlines())


def test_optional_columns_are_left_out_and_told_where_they_would_have_to_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = io.StringIO()  # a pipe whose width is told
    words = "a rather long text that says at length how it was found"
    RichScreen(stream).table(("GPU", "watts", "basis"), [("T4", "70", words)], numeric=("watts",), optional=("basis",))
    assert stream.getvalue().splitlines()[-1] == "left out for width: basis; --wide shows them"
    assert max(map(len, stream.getvalue().splitlines())) <= 60


_TABLE = (("name", "why"), [("T4", "a | b\nc"), ("A100, SXM", "yes")])


@pytest.mark.parametrize(
    ("form", "tables", "remarks"),
    [
        (TableFormat.CSV, 'name,why\nT4,"a | b\nc"\n"A100, SXM",yes\n', "\nGPUs\nnote: two\n"),
        (
            TableFormat.MARKDOWN,
            "\n**GPUs**\n\nnote: two\n\n| name | why |\n| ---: | --- |\n| T4 | a \\| b c |\n| A100, SXM | yes |\n\n",
            "",
        ),
    ],
)
def test_tables_come_whole_as_csv_and_as_markdown(
    form: TableFormat, tables: str, remarks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableScreen, "chosen", form)
    stdout, stderr = io.StringIO(), io.StringIO()

    def render(screen: Screen) -> None:
        screen.heading("GPUs")
        screen.note("note: two")
        screen.table(*_TABLE, numeric=("name",))

    Output(as_json=False, stdout=stdout, stderr=stderr).result({}, render)
    assert (stdout.getvalue(), stderr.getvalue()) == (tables, remarks)


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("asked", ["gpus", "offers", "metrics", "predict --gpu-model T4 --epoch-s 60", "detect TRACE"])
def test_tables_of_commands_fit_and_name_every_row_on_one_line(
    asked: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    words = asked.replace("TRACE", str(bundled_trace())).split()
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main([*words, "--csv"]) == 0
    names = [row[0] for row in csv.reader(capsys.readouterr().out.splitlines()) if row][1:]
    rule = next(number for number, line in enumerate(lines) if line and set(line) == {"─"})
    assert len(lines[rule]) <= width
    assert len(names) > 3
    column = [
        line.split("   ")[0].strip() if line[:1] != " " else line.split()[0] for line in lines[rule + 1 :] if line
    ]
    assert [name for name in names if name not in column] == []


def test_brackets_in_a_users_text_are_not_taken_for_markup() -> None:
    stream = io.StringIO()
    RichScreen(stream).line("[bold]GPU[/bold]")
    assert stream.getvalue() == "[bold]GPU[/bold]\n"


def test_without_rich_the_tables_are_plain() -> None:
    script = "import sys; sys.modules['rich'] = None; from gpusonde.cli.main import main; sys.exit(main(['metrics']))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200)
    assert answer.stdout.splitlines()[1].startswith("-----")
    assert "dram_active" in answer.stdout


@pytest.mark.parametrize(
    ("value", "text"),
    [(17.4123, "17.4"), (0.004211, "0.00421"), (12345.6, "12,346"), (0.0, "0"), (float("nan"), "-"), (None, "-")],
)
def test_numbers_are_rounded_to_three_digits_without_exponent(value: float | None, text: str) -> None:
    assert formatting.number(value) == text


def test_quantities_carry_their_unit() -> None:
    assert formatting.seconds(17.38) == "17.4 s"
    assert formatting.percent(0.05) == "5 %"
    assert formatting.gibibytes(16 * 2**30) == "16.0 GiB"
    assert formatting.dollars(0.526) == "$0.526"
    assert formatting.dollars(3.06) == "$3.06"
    assert formatting.interval(17.1, 17.9) == "17.1 to 17.9"
    assert formatting.count(1, "epoch") == "1 epoch"
    assert formatting.count(12, "epoch") == "12 epochs"


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.50"), (0.99, "0.99"), (0.9977, ">0.99"), (1.0, ">0.99"), (0.0, "<0.01")]
)
def test_a_probability_never_claims_certainty(value: float, text: str) -> None:
    assert formatting.probability(value) == text


def test_names_of_many_alike_things_are_told_as_their_number() -> None:
    assert formatting.join_names(["T4"], "GPU") == "T4"
    assert formatting.join_names(["T4", "V100", "A10G"], "GPU") == "T4, V100 and A10G"
    assert formatting.join_names([f"G{i}" for i in range(8)], "GPU") == "8 GPUs (G0, G1, G2, G3, G4, G5, G6, G7)"


def test_durations_of_jobs_have_the_unit_that_people_use() -> None:
    assert [formatting.duration(value) for value in (17.38, 119, 150, 7200, 259135, float("inf"))] == [
        "17.4 s", "119 s", "2.50 min", "2.00 h", "72.0 h", "-",
    ]  # fmt: skip
    assert formatting.percent(0.999, None) == "99.9 %"
    assert formatting.percent(-0.125, 1, sign="+") == "-12.5 %"


def test_figures_beyond_all_sense_stay_short() -> None:
    assert [formatting.number(value) for value in (1e300, -1e300, 1e-300)] == ["1e+300", "-1e+300", "1e-300"]
    assert [formatting.percent(value) for value in (9.99, 1e300)] == ["999 %", "more than 10 times"]
    assert formatting.dollars(1e300) == "$1e+300"


def test_times_of_day_have_their_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert formatting.local_time(1_760_000_000_000_000_000) == "2025-10-09 04:53:20 EDT"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_sentences_end_their_lines_with_words_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("NO_COLOR", "1")
    said = "takes 11.5 h and costs $130.31; the plan is in /a/folder/of/a/rather/long/name/plan.toml"
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        RichScreen(stream).line(said)
    assert pipe.getvalue() == said + "\n"
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert [line.rstrip() for line in lines[:2]] == ["takes 11.5 h and costs", "$130.31; the plan is in"]
    assert " ".join(line.rstrip() for line in lines) == said


def on_terminal(folder: Path, *words: str) -> str:
    """What a terminal of 200 columns gets of a command."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "gpusonde.cli", *words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer,
    ) as command:
        os.close(writer)
        got = b""
        with contextlib.suppress(OSError):  # it ends with its last writer
            while part := os.read(reader, 65536):
                got += part
        os.close(reader)
        command.wait(timeout=120)
    return got.decode()


def test_a_terminal_obeys_nothing_that_a_trace_or_the_name_of_a_file_says(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[31m\x9b31m\u202e"
    ticks = "".join(f"{at},GPU-{evil},{100 + at % 10}\n" for at in range(200))
    (tmp_path / f"{evil}.csv").write_text(f"time_s,gpu_uuid,power_watts\n{ticks}", encoding="utf-8")
    for words in (("detect", f"{evil}.csv", "--plot", "x.png"), ("detect", f"no{evil}.csv")):
        got = on_terminal(tmp_path, *words)
        assert r"\x1b]0;owned\x07" in got, words
        assert not {"\x07", "\x9b", "\u202e"} & set(got), words
        assert "\x1b]0" not in got, words
        assert "\x1b[31m" not in got, words
        assert "Glyph" not in got


def test_a_file_whose_name_no_encoding_has_is_answered_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    named = os.fsdecode(b"\xff.parquet")
    shutil.copy(bundled_trace(), named)
    still = os.fsdecode(b"\xff.csv")
    Path(still).write_text("time_s,power_watts\n" + "".join(f"{at},{100 + at % 10}\n" for at in range(200)))
    for words in (
        ("report", still, "-o", "x.html"), ("report", still, "-o", os.fsdecode(b"\xfe.pftrace"), "--json"),
        ("plan", "init", "--trace", named, "--epochs", "9", "--targets", "T4", "--providers", "aws"),
    ):  # fmt: skip
        code = main(list(words))
        assert (code, capsys.readouterr().err) == (0, ""), words
    assert "\\udcff.csv" in Path("x.html").read_text(encoding="utf-8")


def test_the_line_of_an_error_ends_with_a_word_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["report", "a-run", "-o", "page.pdf"]) == 2
    lines = stderr.getvalue().splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 50
    assert " ".join(lines) == "gpusonde: error: page.pdf: the file ends with .html, or with .pftrace for Perfetto"
