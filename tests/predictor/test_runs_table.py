from __future__ import annotations

from pathlib import Path

import pytest
from support.synthetic_runs import synthetic_runs, write_runs

from gpusonde.errors import TableError
from gpusonde.predictor.crossgpu import LatencyModel, ModelFileError, read_runs


def written(path: Path, change=lambda rows: None) -> Path:
    rows = synthetic_runs(models=2, batches=1)
    change(rows)
    return write_runs(path / "runs.csv", rows)


def refusal(path: Path) -> TableError:
    with pytest.raises(TableError) as caught:
        read_runs(path)
    return caught.value


def rename(old: str, new: str):
    def change(rows):
        for row in rows:
            row[new] = row.pop(old)

    return change


def put(column: str, value: object, row: int = 2):
    def change(rows):
        rows[row][column] = value

    return change


def test_units_become_those_of_the_metric_catalogue(tmp_path):
    run = read_runs(written(tmp_path)).run(0)
    metrics = run.measurement().metrics
    assert 0 < metrics["gpu_utilization"].mean <= 1
    assert metrics["framebuffer_used_bytes"].mean == pytest.approx((16280.9 - 500) * 2**20)
    assert metrics["power_watts"].maximum < 400
    assert run.gpu.name == "P100-PCIe-16GB"


def test_memory_bandwidth_is_recomputed_because_the_column_is_wrong_for_the_p100(tmp_path):
    bandwidth = read_runs(written(tmp_path)).run(0).static_attributes["memory_bandwidth_bytes_per_second"]
    assert bandwidth == pytest.approx(732.16e9)


def test_counterparts_are_the_runs_of_the_same_configuration_on_other_gpus(tmp_path):
    table = read_runs(written(tmp_path))
    found = table.counterparts(1)
    assert [run.gpu.name for run in found] == ["P100-PCIe-16GB", "T4", "A10G"]
    assert {run.configuration for run in found} == {table.run(1).configuration}


def test_a_row_that_is_not_there_is_an_error_with_the_range(tmp_path):
    table = read_runs(written(tmp_path))
    with pytest.raises(IndexError, match=r"rows 0\.\.7"):
        table.run(8)
    with pytest.raises(IndexError):
        table.run(-1)


def test_pairs_are_ordered_and_stay_within_a_configuration(runs):
    source, target = runs.pairs()
    assert len(source) == 5 * 4 * 12
    for i, j in zip(source, target, strict=True):
        assert runs.runs[i].configuration == runs.runs[j].configuration
        assert runs.runs[i].gpu.name != runs.runs[j].gpu.name


@pytest.mark.parametrize("latency", [0, -1.5, "nan", "inf", "", "12s"])
def test_an_impossible_latency_is_refused_with_line_and_field(tmp_path, latency):
    error = refusal(written(tmp_path, put("one_epoch_average_second", latency)))
    assert (error.line, error.field) == (4, "one_epoch_average_second")
    assert str(error).startswith(f"{tmp_path / 'runs.csv'}:4: field 'one_epoch_average_second':")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("power_drawW_mean", "power_drawmW_mean", "expected power_drawW_mean"),
        ("memory_usedMiB_mean", "memory_usedGiB_mean", "expected memory_usedMiB_mean"),
        ("Multiprocessors", "Multiprocesors", "did you mean 'Multiprocessors'"),
    ],
)
def test_an_unknown_unit_or_column_is_refused_with_the_nearest_known_one(tmp_path, old, new, expected):
    error = refusal(written(tmp_path, rename(old, new)))
    assert (error.line, error.field) == (1, new)
    assert expected in str(error)


def test_a_missing_statistic_is_refused(tmp_path):
    def drop(rows):
        for row in rows:
            del row["utilization_gpu_75"]

    error = refusal(written(tmp_path, drop))
    assert error.field == "utilization_gpu_75"


def test_a_missing_metric_is_refused(tmp_path):
    def drop(rows):
        for row in rows:
            for name in [name for name in row if name.startswith("utilization_memory_")]:
                del row[name]

    error = refusal(written(tmp_path, drop))
    assert error.field == "utilization_memory_mean"
    assert "memory_utilization" in str(error)


def test_ratios_in_a_percent_column_are_refused(tmp_path):
    def shrink(rows):
        for row in rows:
            for name in [name for name in row if name.startswith("utilization_gpu_")]:
                row[name] = float(row[name]) / 100

    assert "ratios where percent are expected" in str(refusal(written(tmp_path, shrink)))


def test_a_value_above_the_plausible_range_is_refused_as_another_unit(tmp_path):
    error = refusal(written(tmp_path, put("power_drawW_max", 120_000)))
    assert (error.line, error.field) == (4, "power_drawW")
    assert "another unit" in str(error)


def test_quartiles_out_of_order_are_refused(tmp_path):
    error = refusal(written(tmp_path, put("utilization_gpu_25", 99)))
    assert "quartile_1" in str(error)
    assert error.line == 4


def test_an_unknown_gpu_is_refused_with_line_and_field(tmp_path):
    error = refusal(written(tmp_path, put("name", "Radeon VII")))
    assert (error.line, error.field) == (4, "name")


def test_a_device_figure_in_another_unit_is_refused_with_its_line(tmp_path):
    error = refusal(written(tmp_path, put("power_limitW", 70_000)))
    assert error.line == 4
    assert "power_limit_watts" in str(error)


def test_a_truncated_line_is_refused(tmp_path):
    path = written(tmp_path)
    path.write_text(path.read_text()[:-200])
    error = refusal(path)
    assert error.line == 9
    assert "truncated" in str(error)


def test_an_empty_file_and_a_binary_file_are_refused(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("")
    assert "empty" in str(refusal(path))
    path.write_bytes(b"PK\x03\x04\xff\xfe\x00")
    assert "not a CSV text file" in str(refusal(path))


def test_columns_named_as_our_metrics_are_read_in_our_units(tmp_path):
    def change(rows):
        for row in rows:
            for statistic in ("mean", "std", "min", "25", "50", "75", "max"):
                row[f"dram_active_{statistic}"] = 0.25

    run = read_runs(written(tmp_path, change)).run(0)
    assert run.metrics["dram_active"].mean == 0.25


@pytest.mark.shared_data
def test_the_measured_runs_are_read(shared_runs_path):
    table = read_runs(shared_runs_path)
    assert len(table) == 470
    assert len(table.pairs()[0]) == 1136
    assert table.gpu_names == ("A10G", "P100-PCIe-16GB", "T4", "V100-SXM2-16GB")


@pytest.mark.parametrize("content", [b"\0" * 500_000, b"gpu," + b"x" * 500_000 + b"\n1,2\n", b"gpu\n" + b"9" * 500_000])
def test_what_is_no_table_is_refused_in_few_words(tmp_path, content):
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(TableError) as error:
        read_runs(path)
    assert len(str(error.value)) < 3000


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a file without end")
def test_a_file_without_end_is_refused():
    with pytest.raises(TableError, match="larger than"):
        read_runs("/dev/zero")
    with pytest.raises(ModelFileError):
        LatencyModel.load("/dev/zero")
