"""Options of a training."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest

from gpusonde.errors import EncoderError
from gpusonde.predictor.workload.training.options import TrainingOptions
from gpusonde.predictor.workload.training.progress import defer_interrupts


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0},
        {"steps": True},
        {"steps": 1e3},
        {"seed": -1},
        {"architectures": 5},
        {"learning_rate": float("nan")},
        {"gradient_norm": 0.0},
        {"weight_decay": -1.0},
        {"learning_rate_drops": (1.0,)},
        {"test_images": 0},
    ],
)
def test_options_that_nothing_can_be_trained_with_are_refused(changes):
    (name,) = changes
    with pytest.raises(EncoderError, match="architectures per step" if name == "architectures" else name):
        TrainingOptions(**changes)


def test_the_learning_rate_drops_after_its_shares_of_the_steps():
    options = TrainingOptions(steps=10, learning_rate=1.0, learning_rate_drops=(0.5, 0.9), learning_rate_factor=0.1)
    rates = [options.learning_rate_at(step) for step in range(10)]
    assert rates == pytest.approx([1] * 5 + [0.1] * 4 + [0.01])


def test_options_survive_json_and_differences_are_named():
    document = json.loads(json.dumps(TrainingOptions().as_document()))
    assert TrainingOptions().differences(document) == []
    assert TrainingOptions(steps=7, seed=2).differences(document) == [
        "steps (600 there, 7 here)",
        "seed (0 there, 2 here)",
    ]


@pytest.fixture
def foreground():
    """SIGINT as in a terminal, wherever the tests run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("foreground")
def test_the_first_interrupt_is_a_wish_and_the_second_one_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with defer_interrupts() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal arrives at the next instruction
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(5)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_background_job_goes_on_ignoring_interrupts():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with defer_interrupts() as interrupted:
            os.kill(os.getpid(), signal.SIGINT)
            assert not interrupted()
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_signals_stay_as_they_are():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with defer_interrupts() as interrupted:
            seen.append((interrupted(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
