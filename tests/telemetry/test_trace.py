"""``Trace`` itself."""

from __future__ import annotations

import numpy as np
import pytest

from gpusonde.telemetry import Trace, TraceError, UnknownMetricError


def _trace() -> Trace:
    values = {"power_watts": np.arange(5.0), "sm_active": np.full(5, 0.5)}
    return Trace(np.array([0.0, 0.1, 0.2, 0.3, 1.3]), values, gpu_uuid="g", attributes={"a": "b"})


def test_duration_and_interval_come_from_the_times() -> None:
    trace = _trace()
    assert len(trace) == 5
    assert trace.duration_s == 1.3
    assert trace.interval_s == pytest.approx(0.1)
    single = trace.window(0.0, 0.05)
    assert (len(single), single.duration_s) == (1, 0.0)
    assert np.isnan(single.interval_s)


def test_a_window_takes_its_start_and_leaves_its_end() -> None:
    window = _trace().window(0.1, 0.3)
    assert window.time_s.tolist() == [0.1, 0.2]
    assert window.values["power_watts"].tolist() == [1.0, 2.0]
    assert (window.gpu_uuid, dict(window.attributes)) == ("g", {"a": "b"})


def test_select_orders_metrics_as_asked_and_names_what_is_there_otherwise() -> None:
    assert _trace().select(["sm_active", "power_watts"]).metrics == ("sm_active", "power_watts")
    with pytest.raises(TraceError, match="has no metric 'dram_active'; it has power_watts, sm_active"):
        _trace().select(["dram_active"])
    with pytest.raises(UnknownMetricError, match="did you mean power_watts"):
        _trace().select(["power_wats"])


@pytest.mark.parametrize(
    ("times", "values", "says"),
    [
        ([[0.0]], [[1.0]], "shape"),
        ([0.0, np.nan], [1.0, 1.0], r"time_s\[1\] is not a finite number"),
        ([0.0, 1.0, 1.0], [1.0] * 3, r"time_s\[2\] = 1.0 does not come after"),
        ([0.0, 1.0], [1.0], "power_watts has shape"),
    ],
)
def test_arrays_that_are_no_trace_are_refused(times: list[float], values: list[float], says: str) -> None:
    with pytest.raises(TraceError, match=says):
        Trace(np.array(times), {"power_watts": np.array(values)})


def test_a_trace_does_not_change_when_its_parts_are_asked_to() -> None:
    trace = _trace()
    with pytest.raises(TypeError):
        trace.values["power_watts"] = np.zeros(5)  # type: ignore[index]
    with pytest.raises(TypeError):
        trace.attributes["a"] = "c"  # type: ignore[index]
