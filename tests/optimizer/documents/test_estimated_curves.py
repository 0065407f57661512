"""Curves of a problem file that were estimated and not measured: their intervals count, and the answer says so."""

import pytest
from support.problem_documents import small_problem

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.errors import DocumentError
from gpusonde.optimizer.documents.problem import parse_plan, parse_problem
from gpusonde.optimizer.documents.watching import estimate_plan
from gpusonde.simulator.compute import CurveOrigin

GPUS, OFFERS = load_gpus(), load_offers()


def estimated(half_width=1.0, note=None, **changes):
    """The small problem with an estimated curve of the T4."""
    rows = [
        {
            "batch_size": size,
            "total_s": 0.004 + 0.003 * size,
            "total_low_s": (0.004 + 0.003 * size) / half_width,
            "total_high_s": (0.004 + 0.003 * size) * half_width,
            "interval_coverage": 0.9,
        }
        for size in (4, 16, 64, 256)
    ]
    document = small_problem()
    document["job"]["curves"][0] = {"device": "T4", "largest_batch": 128, "gray_box": rows} | changes
    if note is not None:
        document["job"]["curves"][0]["note"] = note
    return document


def parsed(document):
    return parse_problem(document, GPUS, OFFERS)


def kept_time_s(document):
    problem = parsed(document)
    plan = parse_plan({"groups": [{"offer": "t4", "machines": 4, "batch_size": 64}]}, problem.problem, "plan")
    return estimate_plan(problem, plan)["estimate"]["time_at_confidence_s"]


def test_a_wide_interval_of_an_estimate_is_a_wide_margin_of_a_deadline():
    assert kept_time_s(estimated(1.5)) > 1.15 * kept_time_s(estimated(1.05))


def test_estimates_without_an_interval_are_taken_as_they_are():
    document = estimated()
    for row in document["job"]["curves"][0]["gray_box"]:
        for key in ("total_low_s", "total_high_s", "interval_coverage"):
            del row[key]
    found = parsed(document).job.curves["T4"]
    assert found.origin is CurveOrigin.GRAY_BOX
    assert found.predict(16).total_s[0] == pytest.approx(0.052, rel=1e-2)


def test_what_is_to_know_of_an_estimate_stands_beside_the_answer():
    (note, _) = parsed(estimated(note="seen on other networks only")).notes
    assert note == (
        "the compute curve of T4 is estimated from the network's graph (seen on other networks only); "
        "'gpusonde profile' measures it"
    )


@pytest.mark.parametrize(
    "row",
    [
        {"total_low_s": 0.02},  # above the estimate
        {"total_high_s": 0.01},
        {"interval_coverage": 1.0},
        {"interval_coverage": 1.5},
        {"total_low_s": -1.0},
    ],
)
def test_an_interval_that_is_none_is_refused(row):
    document = estimated()
    document["job"]["curves"][0]["gray_box"][0] |= row
    with pytest.raises(DocumentError) as error:
        parsed(document)
    assert error.value.field.startswith("job.curves[0].gray_box[0]")
