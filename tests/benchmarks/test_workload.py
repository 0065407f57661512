"""The parts of ``benchmarks/workload`` that decide what its figures mean."""

from __future__ import annotations

import argparse
import csv
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from support.training_times import KERAS, TORCHVISION, write_training_times

from gpusonde.predictor.workload.graph import load_graph

BENCHMARKS = ("planning", "workload")
TIMM = Path(__file__).parents[3] / "shared" / "data" / "workloads" / "timm_train_rtx3090.csv"


@pytest.fixture(scope="module")
def times(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training_times(tmp_path_factory.mktemp("times") / "times.csv")


@pytest.fixture
def args(times: Path) -> argparse.Namespace:
    return argparse.Namespace(data=times, quick=False, bars=[])


def test_rows_are_told_apart_by_what_their_graphs_were_read_with(module, args) -> None:
    cut = module("rows")

    assert {each.architecture for each in cut.torchvision(args)} == set(TORCHVISION)
    assert {each.architecture for each in cut.profet(args)} == {name.lower() for name in KERAS}


def test_machines_are_hosts_with_rows_for_every_number_of_gpus(module, args) -> None:
    cut = module("rows")
    rows = cut.torchvision(args)
    without = [each for each in rows if (each.request.cluster.device, each.request.cluster.device_count) != ("T4", 3)]

    assert sorted(cut.machines(without)) == ["pytorch-1.x/2080TI", "pytorch-1.x/dgx-a100"]
    fewer = [each for each in rows if "A100" not in each.request.cluster.device or each.seconds == rows[0].seconds]
    assert sorted(cut.machines(fewer)) == ["pytorch-1.x/2080TI"]


def test_ernest_is_asked_for_numbers_of_gpus_that_it_has_not_seen(module, args) -> None:
    bench, cut = module("ernest"), module("rows")
    rows = cut.torchvision(args)

    (fold,) = bench._counts(rows, (4,))

    known, unknown = ([rows[each].request.cluster.device_count for each in part] for part in (fold.known, fold.unknown))
    assert set(known) == {1, 2, 3}
    assert set(unknown) == {4}


def test_ernest_is_asked_for_batches_between_or_above_those_that_it_has_seen(module, args) -> None:
    bench, cut = module("ernest"), module("rows")
    rows = cut.profet(args)

    between, above = ([fold.unknown for fold in bench._batches(rows, inner=inner)] for inner in (True, False))

    assert {rows[each].request.batch_size for each in np.concatenate(between)} == {32, 64}
    assert {rows[each].request.batch_size for each in np.concatenate(above)} == {128}


def test_controls_are_told_nothing_of_the_network_by_the_cluster_columns(module, args) -> None:
    descriptions, cut = module("descriptions"), module("rows")
    rows = cut.torchvision(args)
    columns = descriptions.cluster(rows)

    first = [columns[position] for position, each in enumerate(rows) if each.architecture == "resnet18"]
    other = [columns[position] for position, each in enumerate(rows) if each.architecture == "vgg19"]

    assert np.array_equal(first, other)


def test_a_controls_columns_stand_beside_their_own_rows(module, args) -> None:
    descriptions, cut = module("descriptions"), module("rows")
    rows = cut.torchvision(args)

    described = descriptions.described(rows, descriptions.layers_and_parameters)

    assert described[:, 1] == pytest.approx([np.log(each.request.graph.parameter_count + 1) for each in rows])


@pytest.mark.shared_data
@pytest.mark.skipif(not TIMM.exists(), reason="../shared/data is not here")
def test_graphs_of_timm_have_as_many_parameters_as_the_networks_that_were_measured(module) -> None:
    with lzma.open(module("modern_rows").GRAPHS, "rt", encoding="utf-8") as file:
        lines = file.readlines()
    with TIMM.open(encoding="utf-8", newline="") as file:
        measured = {
            (row["model"].removeprefix("timm/"), int(row["image_size"])): 1e6 * float(row["param_count_m"])
            for row in csv.DictReader(file)
        }

    # One in seven: whoever writes the file checks all of them.
    sampled = [json.loads(line) for line in lines[::7]]
    read = {
        (held["name"], held["image_size"]): load_graph(json.dumps(held["graph"])).parameter_count for held in sampled
    }

    assert len(lines) == 302
    assert read == pytest.approx({key: measured[key] for key in read}, rel=0.01)
