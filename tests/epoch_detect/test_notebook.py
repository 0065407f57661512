"""Tables of pandas in the place of traces, what notebooks show of the answer, and the notebook of the documentation."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest
from support.epoch_traces import training_trace

from gpusonde.epoch_detect import detect
from gpusonde.errors import TraceError
from gpusonde.telemetry import as_traces

pd = pytest.importorskip("pandas")
NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


@pytest.fixture(scope="module")
def trace():
    return training_trace(20.0, 8)[0]


@pytest.fixture(scope="module")
def frame(trace):
    return pd.DataFrame(dict(trace.values), index=pd.Index(trace.time_s, name="time_s"))


def same(found, wanted):
    return found.epoch_starts_s == pytest.approx(wanted.epoch_starts_s, abs=1e-5) and found.verdict == wanted.verdict


def test_a_table_is_read_whatever_holds_its_times(trace, frame):
    wanted = detect(trace)
    assert wanted.verdict == "epochs"
    assert same(detect(frame), wanted)
    assert same(detect(frame.reset_index()), wanted)
    assert same(detect(frame.set_axis(pd.to_timedelta(trace.time_s, unit="s"))), wanted)
    began = pd.Timestamp("2026-11-23T08:00:00Z")
    dated = frame.set_axis(began + pd.to_timedelta(trace.time_s, unit="s"))
    assert same(detect(dated), wanted)
    (read,) = as_traces(dated)
    assert read.origin_unix_s + read.time_s[0] == pytest.approx(began.timestamp(), abs=1e-6)
    assert same(detect(dated.rename_axis("when").reset_index(), columns={"when": "timestamp"}), wanted)


def test_values_come_through_to_the_last_bit_and_gaps_stay_gaps(trace, frame):
    holed = frame.copy()
    holed.iloc[5, 0] = np.nan
    (read,) = as_traces(holed)
    assert np.isnan(read.values["dram_active"][5])
    assert read.values["power_watts"].tolist() == trace.values["power_watts"].tolist()


def test_columns_of_other_names_and_units_are_told_and_rows_of_several_gpus_parted(frame):
    percent = frame.rename(columns={"dram_active": "dram"}) * [100.0, 1.0]
    rules = {"dram": "dram_active:percent"}
    (read,) = as_traces(percent, rules)
    assert read.values["dram_active"] == pytest.approx(frame["dram_active"].to_numpy())
    assert [trace.metrics for trace in as_traces(percent, ["dram=dram_active:percent"])] == [read.metrics]
    both = pd.concat([frame.assign(gpu_uuid="GPU-0"), frame.assign(gpu_uuid="GPU-1")])
    assert [trace.gpu_uuid for trace in as_traces(both)] == ["GPU-0", "GPU-1"]


def test_what_is_no_trace_is_refused_in_its_own_name(frame):
    for wrong in (frame.reset_index(drop=True), frame[[]], frame.rename(columns=str.upper), frame.iloc[::-1]):
        with pytest.raises(TraceError, match="DataFrame"):
            as_traces(wrong)


def test_a_notebook_shows_the_answer_as_escaped_html(trace, frame):
    found = detect(frame)
    shown = found._repr_html_()
    assert found.reason in shown
    assert shown.count("<tr>") == 1 + len(found.cycles)
    holed = frame.drop(frame.index[600:900]).assign(**{"<script>": 1.0})
    (read,) = as_traces(holed)
    assert any("<script>" in warning for warning in read.warnings)
    warned = detect(read)
    odd = type(found)("none", "<b>", warnings=("<script>alert(1)</script>",))
    assert "<script>" not in odd._repr_html_() + warned._repr_html_()
    assert "&lt;script&gt;" in odd._repr_html_()


def test_the_levels_are_a_table_and_the_picture_axes_of_matplotlib(frame):
    pytest.importorskip("matplotlib").use("agg")
    found = detect(frame)
    table = found.to_pandas()
    assert table["period_s"].tolist() == [cycle.period_s for cycle in found.cycles]
    assert "starts_s" not in table.columns
    axes = found.plot(frame)
    trace_line, *starts = axes.lines
    assert len(trace_line.get_xdata()) == len(frame)
    assert [line.get_xdata()[0] for line in starts] == found.epoch_starts_s.tolist()
    assert found.plot(frame, ax=axes) is axes


def test_the_notebook_of_the_documentation_runs():
    pytest.importorskip("matplotlib").use("agg")
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    names = {}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == []
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), NOTEBOOK.name, "exec"), names)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names))
    found = names["found"]
    assert (found.verdict, len(found.epoch_starts_s)) == ("epochs", 9)
    assert found.period_s == pytest.approx(60.0, rel=0.01)
    assert len(shown) == 5
    assert abs(shown[-1][0] - pd.Timestamp("2026-11-23T08:00:30Z")) < pd.Timedelta("1s")
