import json

import numpy as np
import pytest
from support.ring_network import SIZES, grid

from gpusonde.errors import DocumentError
from gpusonde.simulator.allreduce import (
    HYBRID_CUBE_MESH,
    AllreduceModel,
    documents,
    measurements_from_json,
    measurements_to_json,
    model_from_json,
    model_to_json,
)

ROW = {"fabric": "any", "transfer_bytes": 1024, "world_size": 2, "seconds": 0.001}


def measurements_document(*rows):
    return json.dumps({"format": documents.MEASUREMENTS_FORMAT, "measurements": list(rows)})


def model_document(**change):
    head = {"format": documents.MODEL_FORMAT, "kind": "default", "half_life_s": 86400.0, "measurements": [ROW]}
    return json.dumps({**head, **change})


def test_measurements_come_back_as_they_were():
    rows = tuple(grid(location="here", device="A100", measured_at_s=1e9, repeats=5, log_spread=0.1))
    assert measurements_from_json(measurements_to_json(rows)) == rows


def test_a_model_comes_back_with_the_same_predictions():
    rows = grid(concurrent=(1, 2), measured_at_s=5.0)
    model = AllreduceModel.fit(rows, now_s=9.0, half_life_s=3.0, topologies={"ring": HYBRID_CUBE_MESH})
    again = model_from_json(model_to_json(model))
    assert again.measurements == model.measurements
    assert again.topologies == model.topologies
    assert again.decay == model.decay
    one, other = (each.network("ring").bus_bandwidth(np.array(SIZES), 6, 3) for each in (model, again))
    assert (one.bytes_per_second == other.bytes_per_second).all()
    assert (one.log_spread == other.log_spread).all()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "[]",
        "{}",
        json.dumps({"format": "gpusonde.allreduce-measurements/2", "measurements": []}),
        json.dumps({"format": documents.MEASUREMENTS_FORMAT, "measurements": {}}),
        measurements_document(3),
        measurements_document({**ROW, "surprise": 1}),
        measurements_document({key: value for key, value in ROW.items() if key != "seconds"}),
        measurements_document({**ROW, "seconds": "fast"}),
        measurements_document({**ROW, "seconds": True}),
        measurements_document({**ROW, "seconds": None}),
        measurements_document({**ROW, "world_size": 2.5}),
        measurements_document({**ROW, "world_size": 10**400}),
        measurements_document({**ROW, "transfer_bytes": 10**400}),
        measurements_document({**ROW, "fabric": 3}),
        measurements_document({**ROW, "seconds": -1}),
        measurements_document({**ROW, "transfer_bytes": float("nan")}),
    ],
)
def test_what_is_no_measurement_is_refused(text):
    with pytest.raises(DocumentError):
        measurements_from_json(text)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "magic"},
        {"half_life_s": 0},
        {"half_life_s": "long"},
        {"now_s": 1e300},
        {"residual": 3},
        {"measurements": []},
        {"topologies": []},
        {"topologies": {"any": [[0, 1]]}},
        {"topologies": {"any": [[1, 0, 2]]}},
        {"topologies": {"any": [[0, 10**9, 2]]}},
        {"topologies": {"any": 3}},
    ],
)
def test_what_is_no_model_is_refused(change):
    with pytest.raises(DocumentError):
        model_from_json(model_document(**change))


def test_a_small_model_is_read():
    assert model_from_json(model_document()).fabrics == ("any",)


def test_a_document_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(documents, "MOST_CHARACTERS", 10)
    with pytest.raises(DocumentError, match="too many"):
        measurements_from_json(measurements_document(ROW))
