"""The benchmark of times from graphs runs, says what it lacks, and keeps what it did not measure anew."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARK = ROOT / "benchmarks" / "workload"


def benchmark(*words):
    """The benchmark's output."""
    command = [sys.executable, str(BENCHMARK), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_unknown_section_is_refused_with_the_known_ones():
    done = subprocess.run([sys.executable, str(BENCHMARK), "graph"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no section graph; there are graphs, message_passing" in done.stderr


def test_the_page_begins_with_how_everything_is_measured_and_keeps_other_sections(tmp_path):
    page = tmp_path / "workload.md"
    page.write_text("# Old\n\n<!-- section: hostile -->\n## Hostile input\n\nmeasured long ago\n")

    benchmark("graphs", "--quick", "--out", page)

    text = page.read_text()
    assert text.startswith("# Training times from graphs: results\n")
    assert "Leave one architecture out" in text
    assert "\n## Graphs\n" in text
    assert text.endswith("measured long ago\n")
