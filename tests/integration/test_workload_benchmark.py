"""The benchmark of times from graphs runs, says what it lacks, and keeps what it did not measure anew."""

import re
import subprocess
import sys
from pathlib import Path

from support.training_times import write_training_times

ROOT = Path(__file__).parents[2]
BENCHMARK = ROOT / "benchmarks" / "workload"


def benchmark(*words):
    """The benchmark's output."""
    command = [sys.executable, str(BENCHMARK), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sections_without_their_data_say_so_and_fail_nothing(tmp_path):
    sections = ["torchvision_rows", "profet_rows", "controls", "ghn_features", "families", "ernest", "batches"]

    page = benchmark(*sections, "--data", tmp_path / "none")

    assert len(re.findall(r"^Not run: needs the table", page, re.MULTILINE)) == len(sections)


def test_batches_are_measured_against_ernests_runs(tmp_path):
    times = write_training_times(tmp_path / "times.csv", keras=())

    page = benchmark("batches", "--quick", "--data", times)

    assert "Not run" not in page
    assert "| what | bar | measured | met |" in page
    assert re.search(r"^\| 2 \| \d", page, re.MULTILINE)


def test_an_unknown_section_is_refused_with_the_known_ones():
    done = subprocess.run([sys.executable, str(BENCHMARK), "graph"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no section graph; there are graphs, unlisted, message_passing" in done.stderr


def test_the_page_begins_with_how_everything_is_measured_and_keeps_other_sections(tmp_path):
    page = tmp_path / "workload.md"
    page.write_text("# Old\n\n<!-- section: hostile -->\n## Hostile input\n\nmeasured long ago\n")

    benchmark("ernest", "--data", tmp_path / "none", "--out", page)

    text = page.read_text()
    assert text.startswith("# Training times from graphs: results\n")
    assert "Random 80/20" in text
    assert "\n## Ernest\n" in text
    assert text.endswith("measured long ago\n")
