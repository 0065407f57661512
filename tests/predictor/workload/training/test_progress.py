"""What a training shows of itself."""

from __future__ import annotations

import io

import pytest

from gpusonde.predictor.workload.training.progress import Phase, PlainLines, ProgressReport, show_on


def test_plain_lines_come_at_the_ends_of_a_phase_and_every_ten_seconds():
    stream, now = io.StringIO(), [0.0]
    lines = PlainLines(stream, clock=lambda: now[0])
    for done in range(26):
        lines(ProgressReport(Phase.TRAINING, done, 25, loss=2.0 - done / 100, seconds_left=25.0 - done))
        now[0] += 1
    lines(ProgressReport(Phase.TESTING, 0, 4))
    assert stream.getvalue().splitlines() == [
        "training: 0 of 25, loss 2.000, about 25 s left",
        "training: 10 of 25, loss 1.900, about 15 s left",
        "training: 20 of 25, loss 1.800, about 5 s left",
        "training: 25 of 25, loss 1.750, about 0 s left",
        "testing on unseen architectures: 0 of 4",
    ]


@pytest.mark.parametrize(("seconds", "said"), [(89, "89 s"), (600, "10 min"), (9000, "2.5 h")])
def test_times_are_told_in_a_unit_that_fits(seconds, said):
    stream = io.StringIO()
    PlainLines(stream)(ProgressReport(Phase.TRAINING, 0, 1, seconds_left=seconds))
    assert f"about {said} left" in stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar():
    pytest.importorskip("rich")
    terminal = Terminal()
    with show_on(terminal) as show:
        for done in range(5):
            show(ProgressReport(Phase.TRAINING, done, 4, loss=1.25, seconds_left=4.0 - done))
    assert "4/4" in terminal.getvalue()
    assert "loss 1.250" in terminal.getvalue()


def test_anything_else_gets_lines():
    stream = io.StringIO()
    with show_on(stream) as show:
        show(ProgressReport(Phase.ARCHITECTURES, 3, 250))
    assert stream.getvalue() == "making architectures: 3 of 250\n"
