from __future__ import annotations

from pathlib import Path

import pytest

from gpusonde.catalog import Precision, load_gpus
from gpusonde.errors import TableError
from gpusonde.predictor.tables import TableLimits
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.engine import HostResources, Parallelism
from gpusonde.predictor.workload.engine.measurements import KnownNetworks, Network, read_measurements

ROW = {
    "model": "keras/LeNet5",
    "framework": "tf2.5-keras",
    "batch_per_gpu": "16.0",
    "image_size": "32.0",
    "input_desc": "3x32x32, 10 classes",
    "precision": "fp32",
    "gpu": "K80 (half board)",
    "n_gpus": "1",
    "n_nodes": "1.0",
    "parallelism": "none",
    "sec_per_iter": "0.0125",
    "source": "some-lab/profet@1234",
    "file": "data/anchor.pickle",
    "licence": "MIT",
}
COLUMNS = [*ROW]


def text(*rows, columns=COLUMNS):
    lines = [",".join(columns)]
    for row in rows:
        cells = {**ROW, **row}
        lines.append(",".join('"' + cells[column].replace('"', '""') + '"' for column in columns))
    return "\n".join(lines) + "\n"


@pytest.fixture
def read(tmp_path):
    catalog = load_gpus()

    def read_text(content, **options):
        path = tmp_path / "times.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_measurements(path, catalog, **options)

    return read_text


def test_a_row_becomes_a_measurement(read):
    (measurement,) = read(text({})).measurements

    request = measurement.request
    assert measurement.seconds == 0.0125
    assert (measurement.architecture, measurement.family) == ("lenet5", "lenet")
    assert measurement.source == "some-lab/profet@1234"
    assert request.batch_size == 16
    assert request.graph == zoo.load_keras("LeNet5", 32)
    assert request.cluster.device == "K80"
    assert request.cluster.precision is Precision.FP32
    assert request.cluster.parallelism is Parallelism.NONE
    assert request.cluster.environment == "tf2.5-keras/profet"


def test_a_keras_network_that_was_measured_with_other_classes_or_channels_has_no_graph(read):
    rows = [
        {"input_desc": ""},
        {"input_desc": "3x224x224, 1000 classes", "image_size": "224"},
        {"input_desc": "3x32x32, 7 classes"},
        {"input_desc": "1x32x32, 10 classes"},
    ]

    table = read(text(*rows))

    assert [each.request.graph.operations[-1].output for each in table.measurements] == [(1, 10), (1, 1000)]
    assert sorted(each.rpartition("has ")[2] for each in table.left_out) == ["10 classes, not 7", "3 channels, not 1"]


def test_several_gpus_and_how_they_share_the_job(read):
    rows = [
        {"n_gpus": "4", "parallelism": "DataParallel"},
        {"n_gpus": "8", "n_nodes": "2", "parallelism": "DDP"},
        {"n_gpus": "1", "parallelism": "DDP"},
    ]

    clusters = [each.request.cluster for each in read(text(*rows)).measurements]

    assert [each.parallelism for each in clusters] == [
        Parallelism.DATA_PARALLEL,
        Parallelism.DISTRIBUTED,
        Parallelism.NONE,
    ]
    assert [(each.device_count, each.node_count) for each in clusters] == [(4, 1), (8, 2), (1, 1)]


def test_a_row_says_what_starts_its_kernels(read):
    columns = [*COLUMNS, "launch"]
    rows = [{"launch": each} for each in ("", "eager", "graph")]
    measured = read(text(*rows, columns=columns)).measurements
    assert [each.request.cluster.graph_launch for each in measured] == [False, False, True]
    with pytest.raises(TableError, match="'lazy' is unknown"):
        read(text({"launch": "lazy"}, columns=columns))


def test_what_the_hosts_had_free_is_taken_as_far_as_it_is_known(read):
    columns = [*COLUMNS, "host_cores", "host_memory_bytes", "host_flops"]
    free = {"host_cores": "7.5", "host_memory_bytes": "4e12", "host_flops": ""}
    measured, unknown = read(text(free, dict.fromkeys(free, ""), columns=columns)).measurements

    assert measured.request.cluster.host == HostResources(cores=7.5, memory_bytes=4e12)
    assert unknown.request.cluster.host is None
    with pytest.raises(TableError, match=r"times.csv:2: field 'host_cores': '-1' must be positive"):
        read(text({**free, "host_cores": "-1"}, columns=columns))


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("results/dgx-a100/A100_4_gpus__float_model_train_benchmark.csv", "dgx-a100"),
        ("results/2080TI/GeForce RTX 2080 Ti_1_gpus__half_model_training_benchmark.csv", "2080TI"),
        ("results/2080TI/GeForce RTX 2080 Ti_single_model_training_benchmark(1).csv", "2080TI earlier(1)"),
        ("results/2080TI/GeForce RTX 2080 Ti_double_model_training_benchmark(2).csv", "2080TI earlier(2)"),
        ("results/TitanV/TITAN V_half_model_training_benchmark.csv", "TitanV earlier"),
        ("", "profet"),
    ],
)
def test_hosts_and_runs_are_places_of_their_own(read, file, place):
    (measurement,) = read(text({"file": file})).measurements

    assert measurement.request.cluster.environment == f"tf2.5-keras/{place}"


def test_a_column_names_the_place_where_there_is_one(read):
    content = text({"environment": "here"}, columns=[*COLUMNS, "environment"])

    assert read(content).measurements[0].request.cluster.environment == "here"


def test_torchvisions_networks_are_those_of_the_zoo(read):
    (measurement,) = read(text({"model": "resnet18", "image_size": "224.0"})).measurements

    assert measurement.request.graph == zoo.load("resnet18")
    assert (measurement.architecture, measurement.family) == ("resnet18", "resnet")


def test_one_network_is_one_architecture_in_both_frameworks(read):
    rows = [{"model": "vgg16", "image_size": "224"}, {"model": "keras/VGG16", "image_size": "224"}]

    assert {each.architecture for each in read(text(*rows)).measurements} == {"vgg16"}


def test_four_columns_are_enough(read):
    content = text({"gpu": "T4"}, columns=["model", "gpu", "batch_per_gpu", "sec_per_iter", "image_size"])

    (measurement,) = read(content).measurements

    assert measurement.request.cluster.environment is None
    assert measurement.request.cluster.precision is Precision.FP32


def test_rows_that_nothing_can_be_learned_from_are_counted_by_reason(read):
    table = read(
        text(
            {},
            {"model": "elasticflow/bert", "image_size": ""},
            {"model": "elasticflow/bert", "image_size": ""},
            {"model": "keras/LeNet6"},
            {"model": "keras/InceptionV3"},
            {"image_size": ""},
            {"gpu": "Abacus 9000"},
            {"precision": "?"},
            {"model": "resnet18", "image_size": "160"},
            {"n_gpus": "2", "parallelism": "pipeline"},
        )
    )

    assert len(table.measurements) == 1
    assert table.row_count == 10
    reasons = dict(table.left_out)
    assert reasons.pop("elasticflow/bert: no graph of this network") == 2
    assert sorted(reasons.values()) == [1] * 7
    told = "\n".join(reasons)
    for part in (
        "keras/LeNet6",
        "not 160",
        "images of 128, 224, 256 pixels, not",
        "without an image size",
        "Abacus 9000",
        "precision '?'",
        "'pipeline'",
    ):
        assert part in told


def test_only_permitted_licences_are_read(read):
    content = text({}, {"licence": ""}, {"licence": "Apache-2.0"})

    table = read(content, licences={"MIT", "Apache-2.0"})

    assert len(table.measurements) == 2
    assert table.left_out == {"licence not named": 1}


def test_a_users_own_networks_are_found_by_name(read):
    network = Network(zoo.load_keras("VGGSmall", 64), "mine", "mine")

    (measurement,) = read(text({"model": "mine"}), networks=KnownNetworks({"mine": network})).measurements

    assert measurement.request.graph is network.graph
    assert measurement.architecture == "mine"


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ({"sec_per_iter": "fast"}, "field 'sec_per_iter': 'fast' is not a number"),
        ({"sec_per_iter": "-0.1"}, "must be positive"),
        ({"sec_per_iter": "nan"}, "must be positive and finite"),
        ({"sec_per_iter": "inf"}, "must be positive and finite"),
        ({"sec_per_iter": ""}, "is not a number"),
        ({"batch_per_gpu": "2.5"}, "whole number"),
        ({"batch_per_gpu": "0"}, "must be positive"),
        ({"n_gpus": "1", "n_nodes": "2"}, "1 devices on 2 hosts"),
        ({"n_gpus": "2", "parallelism": "none"}, "how they share the job"),
        ({"image_size": "large"}, "is not a number"),
        ({"model": ""}, "no name"),
    ],
)
def test_a_row_that_cannot_be_is_refused_with_its_line(read, cells, problem):
    with pytest.raises(TableError, match=problem) as refused:
        read(text({}, cells))

    assert refused.value.line == 3
    assert "times.csv:3: " in str(refused.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "empty file"),
        ("model,gpu,sec_per_iter\n", "field 'batch_per_gpu': the column is missing"),
        ("model,gpu,sec_per_iter,batch_per_gpu,gpu\n", "field 'gpu': the column is there twice"),
        ("model,gpu,sec_per_iter,batch_per_gpu\nkeras/LeNet5,T4,1\n", ":2: 3 fields where the heading has 4"),
        (b"model,gpu,sec_per_iter,batch_per_gpu\n\xff\n", ":2: not UTF-8"),
        (b"model,gpu,sec_per_iter,batch_per_gpu\na\0b\n", ":2: holds a NUL"),
        ('model,gpu,sec_per_iter,batch_per_gpu\n"a\n', ":2: .*unexpected end"),
    ],
)
def test_what_is_no_table_is_refused(read, content, problem):
    with pytest.raises(TableError, match=problem):
        read(content)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (TableLimits(rows=2), ":4: more than 2 rows"),
        (TableLimits(file_bytes=100), "larger than 100 bytes"),
        (TableLimits(line_characters=150), ":2: longer than 150 characters"),
    ],
)
def test_large_tables_are_refused(read, limits, problem):
    with pytest.raises(TableError, match=problem):
        read(text({}, {}, {}), limits=limits)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_measurements(tmp_path / "none.csv", load_gpus())


@pytest.mark.shared_data
def test_of_the_table_at_hand_every_row_is_used_or_its_network_named():
    path = Path(__file__).parents[4].parent / "shared" / "data" / "workloads" / "training_times.csv"
    if not path.exists():
        pytest.skip(f"the measured training times are not here: {path}")

    table = read_measurements(path, load_gpus(), licences={"MIT", "Apache-2.0"})

    assert table.row_count == 2197
    assert {reason.split("/")[0] for reason in table.left_out} == {"elasticflow"}
    assert sum(table.left_out.values()) == 169
    assert len({each.architecture for each in table.measurements}) >= 30
    assert {"K80", "M60", "TITAN Xp", "TITAN V"} <= {each.request.cluster.device for each in table.measurements}
