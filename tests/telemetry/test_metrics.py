"""The metric catalogue."""

from __future__ import annotations

import pytest

from gpusonde.telemetry import (
    METRIC_BY_CODE,
    METRIC_BY_DCGM_FIELD_ID,
    METRIC_BY_NAME,
    METRICS,
    Unit,
    UnknownMetricError,
    metric,
)


def test_names_ids_and_codes_are_unique() -> None:
    assert len(METRIC_BY_NAME) == len(METRICS)
    assert len(METRIC_BY_CODE) == sum(len(entry.codes) for entry in METRICS)
    assert len(METRIC_BY_DCGM_FIELD_ID) == sum(entry.dcgm_field_id is not None for entry in METRICS)
    gpm = [entry.gpm_metric_id for entry in METRICS if entry.gpm_metric_id is not None]
    assert len(set(gpm)) == len(gpm)


def test_names_say_their_unit_unless_they_are_ratios() -> None:
    for entry in METRICS:
        if entry.unit is not Unit.RATIO:
            assert entry.name.endswith(f"_{entry.unit.value}"), entry.name


@pytest.mark.parametrize(
    ("code", "name", "dcgm", "gpm"),
    [
        ("GRACT", "graphics_active", 1001, 1),
        ("SMACT", "sm_active", 1002, 2),
        ("SMOCC", "sm_occupancy", 1003, 3),
        ("TENSO", "tensor_active", 1004, 5),
        ("DRAMA", "dram_active", 1005, 10),
        ("FP64A", "fp64_active", 1006, 11),
        ("FP32A", "fp32_active", 1007, 12),
        ("FP16A", "fp16_active", 1008, 13),
        ("PCITX", "pcie_tx_bytes_per_second", 1009, 20),
        ("PCIRX", "pcie_rx_bytes_per_second", 1010, 21),
        ("NVLTX", "nvlink_tx_bytes_per_second", 1011, 61),
        ("NVLRX", "nvlink_rx_bytes_per_second", 1012, 60),
    ],
)
def test_profiling_metrics_have_nvidias_ids(code: str, name: str, dcgm: int, gpm: int) -> None:
    assert METRIC_BY_CODE[code].name == name
    assert (metric(name).dcgm_field_id, metric(name).gpm_metric_id) == (dcgm, gpm)


def test_an_unknown_name_brings_the_nearest() -> None:
    with pytest.raises(UnknownMetricError) as caught:
        metric("dram_activ")
    assert caught.value.nearest[0] == "dram_active"
    assert "'gpusonde metrics' lists them all" in str(caught.value)


def test_a_name_of_megabytes_is_unknown_in_few_words():
    with pytest.raises(UnknownMetricError) as error:
        metric("sm_active" * 500_000)
    assert len(str(error.value)) < 300
    assert "sm_active" in error.value.nearest or not error.value.nearest
