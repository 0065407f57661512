"""The bytes of messages: clients and collectors of different versions meet, so that numbers may never change."""

import pytest

from gpusonde.common.v1 import gpu_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.workload.v1 import workload_pb2

PREDICT = workload_pb2.PredictRequest(
    workloads=[
        workload_pb2.Workload(
            graph=workload_pb2.GraphSource(
                graph=workload_pb2.Graph(content=b"{}", format=workload_pb2.GRAPH_FORMAT_JSON, name="net")
            ),
            batch_size=32,
            cluster=workload_pb2.Cluster(
                device="V100",
                device_count=4,
                node_count=2,
                precision=workload_pb2.PRECISION_FP16,
                parallelism=workload_pb2.PARALLELISM_DISTRIBUTED,
                environment="here",
                agent_ids=["a"],
                host_names=["h"],
            ),
            dataset_type="digits",
            regressor=workload_pb2.REGRESSOR_SVR,
            samples_per_epoch=60_000,
        ),
        workload_pb2.Workload(graph=workload_pb2.GraphSource(same_as=0)),
    ]
)
ANSWER = workload_pb2.WorkloadAnswer(
    prediction=workload_pb2.WorkloadPrediction(
        iteration_seconds=workload_pb2.Interval(value=0.5, low=0.25, high=1.0),
        coverage=0.5,
        regressor="svr",
        features="f",
        out_of_distribution=True,
        reasons=["r"],
        nearest=[workload_pb2.NearestArchitecture(name="n", family="m", similarity=0.5)],
        embedding=workload_pb2.EmbeddingUse(dataset_type="d", available=True, encoder_sha256="ab", note="x"),
    )
)
REFUSAL = workload_pb2.WorkloadAnswer(
    error=workload_pb2.WorkloadError(kind=workload_pb2.WORKLOAD_ERROR_KIND_GRAPH_TOO_LARGE, text="t", field="graph")
)
LOAD = ingest_pb2.StreamSamplesRequest(
    host_load=gpu_pb2.HostLoad(
        cpu_busy_ratio=0.5,
        available_memory_bytes=1 << 30,
        free_disk_bytes=1,
        disk_bytes_per_second=2.0,
        disk_busy_ratio=0.0,
    )
)
HOST = gpu_pb2.Host(
    host_name="h",
    cpu_count=8,
    memory_bytes=1,
    kernel_release="k",
    cpu_model="m",
    cpu_core_count=4,
    cpu_flops=1e9,
    disk_bytes=5,
)

WIRE = [
    (
        PREDICT,
        (
            "0a3b0a0d 0a0b0a02 7b7d1001 1a036e65 7410201a 1a0a0456 31303010 04180220 01280332 04686572 653a0161"
            " 42016822 06646967 69747328 0330e0d4 030a040a 021000"
        ),
    ),
    (
        ANSWER,
        (
            "0a520a1b 09000000 000000e0 3f110000 00000000 d03f1900 00000000 00f03f19 00000000 0000e03f"
            " 22037376 722a0166 30013a01 72420f0a 016e1201 6d190000 00000000 e03f4a0c 0a016410 011a0261 622a0178"
        ),
    ),
    (REFUSAL, "120c0803 1201741a 05677261 7068"),
    (LOAD, "1a230900 00000000 00e03f10 80808080 04180121 00000000 00000040 29000000 00000000 00"),
    (ingest_pb2.HelloAck(durable_sequence=1, host_load_interval_ms=30_000), "080130b0 ea01"),
    (HOST, "0a016810 08180122 016b2a01 6d300439 00000000 65cdcd41 4005"),
]


@pytest.mark.parametrize(("message", "written"), WIRE, ids=[type(message).__name__ for message, _ in WIRE])
def test_messages_are_written_as_ever_and_read_again(message, written):
    data = bytes.fromhex(written)
    assert message.SerializeToString(deterministic=True) == data
    assert type(message).FromString(data) == message


def test_the_numbers_of_enumerations_stand():
    for names in (
        ("GRAPH_FORMAT_", "UNSPECIFIED JSON ONNX PT2"),
        ("PRECISION_", "UNSPECIFIED FP16 FP32 FP64 MIXED TF32 BF16 FP8"),
        ("PARALLELISM_", "UNSPECIFIED NONE DATA_PARALLEL DISTRIBUTED"),
        ("REGRESSOR_", "UNSPECIFIED LINEAR POLYNOMIAL SVR MLP BOOSTED_RESIDUAL"),
        ("TRAINING_STATE_", "UNSPECIFIED QUEUED RUNNING DONE FAILED"),
        (
            "WORKLOAD_ERROR_KIND_",
            (
                "UNSPECIFIED INVALID_REQUEST MALFORMED_GRAPH GRAPH_TOO_LARGE UNSUPPORTED_GRAPH DATA_DEPENDENT_GRAPH"
                " UNKNOWN_DEVICE UNKNOWN_HOST NO_EMBEDDING OUT_OF_TIME OUT_OF_MEMORY INTERNAL"
            ),
        ),
    ):
        prefix, values = names
        found = [getattr(workload_pb2, prefix + value) for value in values.split()]
        assert found == list(range(len(found)))


def test_the_first_of_several_graphs_can_be_named_again():
    assert PREDICT.workloads[1].graph.WhichOneof("source") == "same_as"
    assert workload_pb2.GraphSource().WhichOneof("source") is None
