"""Real measurements: the bars that stand in the issue."""

from pathlib import Path

import numpy as np
import pytest

from gpusonde.epoch_detect import EpochDetection, EpochTracker, detect
from gpusonde.telemetry import Trace, read_trace

TITAN_X = Path(__file__).parents[3] / "shared" / "data" / "traces" / "raw" / "titanx_nvidia_smi_2gpu.csv"

pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not TITAN_X.exists(), reason=f"{TITAN_X} is not here"),
]


@pytest.fixture(scope="module")
def titan_x() -> Trace:
    return read_trace(TITAN_X, gpu=0)


@pytest.fixture(scope="module")
def whole(titan_x: Trace) -> EpochDetection:
    return detect(titan_x)


def test_titan_x_checkpoint_cycle_is_found_untrimmed_with_all_metrics(whole: EpochDetection) -> None:
    assert whole.verdict == "epochs"
    assert whole.period_s == pytest.approx(13.16, rel=0.03)
    assert whole.period_low_s < 13.16 < whole.period_high_s


@pytest.mark.parametrize(("head_s", "tail_s"), [(0, 60), (10, 0), (5, 33), (11, 59)])
def test_titan_x_epochs_do_not_depend_on_wire_rounding_wall_clock_or_idle(
    titan_x: Trace, whole: EpochDetection, head_s: float, tail_s: float
) -> None:
    cut = titan_x.window(titan_x.time_s[0] + head_s, titan_x.time_s[-1] - tail_s)
    moved = Trace(cut.time_s + 1.7e9, {k: v.astype(np.float32).astype(float) for k, v in cut.values.items()})
    found = detect(moved)
    np.testing.assert_allclose(found.epoch_starts_s - 1.7e9, whole.epoch_starts_s, atol=2e-6)
    assert found.period_s == pytest.approx(whole.period_s, abs=1e-6)
    tracker = EpochTracker(moved.metrics)
    tracker.update(moved.time_s, np.array(list(moved.values.values())))
    tracker.finish()
    streamed = [e.start_s for e in tracker.epochs if e.status == "confirmed"]
    assert streamed == found.epoch_starts_s.tolist()
