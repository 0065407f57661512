"""The planning benchmark runs, says what it lacks, and keeps what it did not measure anew."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARK = ROOT / "benchmarks" / "planning"
DATA = ROOT.parent / "shared" / "data" / "distributed"


def benchmark(*words):
    """The benchmark's output."""
    command = [sys.executable, str(BENCHMARK), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sections_without_their_data_say_so_and_fail_nothing(tmp_path):
    sections = ["compute", "end_to_end", "allreduce", "regret", "continual"]
    page = benchmark(*sections, "--data", tmp_path / "none")
    assert len(re.findall(r"^Not run: needs ", page, re.MULTILINE)) == len(sections)


@pytest.mark.parametrize("section", ["exact", "paper_search"])
def test_a_section_on_drawn_problems_needs_no_measurements(section, tmp_path):
    page = benchmark(section, "--quick", "--data", tmp_path / "none")
    assert "Not run" not in page
    assert "| what | bar | measured | met |" in page


@pytest.mark.shared_data
@pytest.mark.skipif(not DATA.is_dir(), reason="the measurement files of ../shared/data are absent")
@pytest.mark.parametrize("section", ["compute", "end_to_end", "allreduce"])
def test_a_section_prints_its_bars_from_the_measurements(section):
    page = benchmark(section, "--quick", "--data", DATA)
    assert "Not run" not in page
    assert "| what | bar | measured | met |" in page


def test_an_unknown_section_is_refused_with_the_known_ones():
    done = subprocess.run([sys.executable, str(BENCHMARK), "computer"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no section computer; there are compute, end_to_end" in done.stderr


def test_a_section_measured_anew_replaces_its_own_lines_only(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARK))
    from page import BAR_COLUMNS, read_sections, table, write_page

    page = tmp_path / "planning.md"
    rows = [
        ("curves", "<= 5.5 %", "5.4 %", "yes"),
        ("ratio", "<= 1.05", "1.2", "**no**"),
        ("more", "reported", "7", "-"),
    ]
    head = ["# Head", "| both | bar | {curves; ratio} |", "## What falls short", "{missed}"]
    write_page(page, head, {"compute": ["## Compute", "", *table(BAR_COLUMNS, rows)], "exact": ["## Exact", "old"]})
    write_page(page, head, {**read_sections(page), "exact": ["## Exact", "new"]})
    text = page.read_text()
    assert text.count("| curves | <= 5.5 % | 5.4 % | yes |") == 1
    assert text.count("| ratio | <= 1.05 | 1.2 | **no** |") == 2
    assert "| both | bar | 5.4 %; 1.2 | **no** |" in text
    assert "1 of 2 bars are met" in text
    assert "new" in text
    assert "old" not in text
    assert text.index("## What falls short") < text.index("## Compute") < text.index("## Exact")
    write_page(page, head, {"compute": ["## Compute", "", *table(BAR_COLUMNS, [rows[0], rows[2]])]})
    assert "1 of 1 bars are met (what is *reported* has none)." in page.read_text()
    assert "| both | bar | 5.4 %; not run | - |" in page.read_text()
