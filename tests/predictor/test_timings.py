"""Tables of timings, and what is said without any metric."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gpusonde.catalog import Precision
from gpusonde.errors import TableError
from gpusonde.predictor.crossgpu import LatencyModel
from gpusonde.predictor.crossgpu.evaluation import evaluate_timings, is_timings_table, read_timings

HEADING = "uid,pair_key,dataset,gpu,precision,t_rel,main\n"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "cross_gpu" / "cross_gpu_long.csv"


def write(folder: Path, *rows: str) -> Path:
    path = folder / "timings.csv"
    path.write_text(HEADING + "".join(f"{row}\n" for row in rows))
    return path


def test_a_job_is_predicted_from_each_gpu_it_ran_on_to_every_other(tmp_path):
    path = write(
        tmp_path,
        "0,a,one,T4,fp32,2.0,True",
        "1,a,one,V100,fp32,0.9,True",
        "2,a,one,V100,fp32,1.1,True",
        "3,a,one,A10G,fp32,0.7,False",
        "4,b,one,T4,amp,1.0,True",
    )
    assert is_timings_table(path)
    timings = read_timings(path)
    assert [timing.precision for timing in timings][-1] is Precision.MIXED
    trusted, every = (evaluate_timings(timings, LatencyModel.shipped(), only_main=only) for only in (True, False))
    assert trusted.overall.pairs == 2
    assert every.overall.pairs == 6
    # Repeats count as their median, in the logarithm.
    assert sorted(trusted.errors.measured_s.tolist()) == pytest.approx([math.sqrt(0.99), 2.0])


def test_timings_that_do_not_say_of_which_job_are_compared_with_nothing(tmp_path):
    rows = ("0,a,one,T4,fp32,2.0,True", "1,a,one,V100,fp32,0.9,True")
    timings = read_timings(write(tmp_path, *rows, "2,,one,T4,fp32,90.0,True", "3,,one,V100,fp32,1.0,True"))
    assert evaluate_timings(timings, LatencyModel.shipped(), only_main=True).overall.pairs == 2


@pytest.mark.parametrize(
    ("row", "field", "said"),
    [
        ("0,a,one,T4,fp32,-1,True", "t_rel", "must be positive"),
        ("0,a,one,T4,fp32,soon,True", "t_rel", "not a number"),
        ("0,a,one,T4,int4,1,True", "precision", "unknown"),
        ("0,a,one,T9,fp32,1,True", "gpu", "unknown GPU"),
        ("0,a,one,T4,fp32,1,perhaps", "main", "use True, False"),
        ("0,a,one,T4", None, "truncated"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_field(tmp_path, row, field, said):
    with pytest.raises(TableError, match=said) as caught:
        read_timings(write(tmp_path, row))
    assert (caught.value.line, caught.value.field) == (2, field)


def test_a_table_without_a_job_on_two_gpus_is_refused(tmp_path):
    timings = read_timings(write(tmp_path, "0,a,one,T4,fp32,1,True", "1,b,one,V100,fp32,1,True"))
    with pytest.raises(ValueError, match="two GPUs"):
        evaluate_timings(timings, LatencyModel.shipped(), only_main=True)


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_file(), reason="../shared/data is absent")
def test_static_figures_alone_stay_below_the_aims_on_measured_timings():
    timings, model = read_timings(SHARED), LatencyModel.shipped()
    trusted = evaluate_timings(timings, model, only_main=True).overall
    assert trusted.mape <= 0.29
    assert trusted.median_ape <= 0.20
    assert trusted.coverage > 0.85
    assert evaluate_timings(timings, model, only_main=False).overall.median_ape <= 0.20
