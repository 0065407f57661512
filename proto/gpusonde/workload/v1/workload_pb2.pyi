from google.protobuf import timestamp_pb2 as _timestamp_pb2
from gpusonde.common.v1 import gpu_pb2 as _gpu_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GraphFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRAPH_FORMAT_UNSPECIFIED: _ClassVar[GraphFormat]
    GRAPH_FORMAT_JSON: _ClassVar[GraphFormat]
    GRAPH_FORMAT_ONNX: _ClassVar[GraphFormat]
    GRAPH_FORMAT_PT2: _ClassVar[GraphFormat]

class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRECISION_UNSPECIFIED: _ClassVar[Precision]
    PRECISION_FP16: _ClassVar[Precision]
    PRECISION_FP32: _ClassVar[Precision]
    PRECISION_FP64: _ClassVar[Precision]
    PRECISION_MIXED: _ClassVar[Precision]
    PRECISION_TF32: _ClassVar[Precision]
    PRECISION_BF16: _ClassVar[Precision]
    PRECISION_FP8: _ClassVar[Precision]

class Parallelism(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PARALLELISM_UNSPECIFIED: _ClassVar[Parallelism]
    PARALLELISM_NONE: _ClassVar[Parallelism]
    PARALLELISM_DATA_PARALLEL: _ClassVar[Parallelism]
    PARALLELISM_DISTRIBUTED: _ClassVar[Parallelism]

class Optimizer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPTIMIZER_UNSPECIFIED: _ClassVar[Optimizer]
    OPTIMIZER_SGD: _ClassVar[Optimizer]
    OPTIMIZER_MOMENTUM: _ClassVar[Optimizer]
    OPTIMIZER_ADAMW: _ClassVar[Optimizer]

class Regressor(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REGRESSOR_UNSPECIFIED: _ClassVar[Regressor]
    REGRESSOR_LINEAR: _ClassVar[Regressor]
    REGRESSOR_POLYNOMIAL: _ClassVar[Regressor]
    REGRESSOR_SVR: _ClassVar[Regressor]
    REGRESSOR_MLP: _ClassVar[Regressor]
    REGRESSOR_BOOSTED_RESIDUAL: _ClassVar[Regressor]

class WorkloadErrorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKLOAD_ERROR_KIND_UNSPECIFIED: _ClassVar[WorkloadErrorKind]
    WORKLOAD_ERROR_KIND_INVALID_REQUEST: _ClassVar[WorkloadErrorKind]
    WORKLOAD_ERROR_KIND_MALFORMED_GRAPH: _ClassVar[WorkloadErrorKind]
    WORKLOAD_ERROR_KIND_GRAPH_TOO_LARGE: _ClassVar[WorkloadErrorKind]
    WORKLOAD_ERROR_KIND_UNSUPPORTED_GRAPH: _ClassVar[WorkloadErrorKind]
    WORKLOAD_ERROR_KIND_DATA_DEPENDENT_GRAPH: _ClassVar[WorkloadErrorKind]
    WORKLOAD_ERROR_KIND_UNKNOWN_DEVICE: _ClassVar[WorkloadErrorKind]
    WORKLOAD_ERROR_KIND_UNKNOWN_HOST: _ClassVar[WorkloadErrorKind]
    WORKLOAD_ERROR_KIND_NO_EMBEDDING: _ClassVar[WorkloadErrorKind]
    WORKLOAD_ERROR_KIND_OUT_OF_TIME: _ClassVar[WorkloadErrorKind]
    WORKLOAD_ERROR_KIND_OUT_OF_MEMORY: _ClassVar[WorkloadErrorKind]
    WORKLOAD_ERROR_KIND_INTERNAL: _ClassVar[WorkloadErrorKind]

class TrainingState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAINING_STATE_UNSPECIFIED: _ClassVar[TrainingState]
    TRAINING_STATE_QUEUED: _ClassVar[TrainingState]
    TRAINING_STATE_RUNNING: _ClassVar[TrainingState]
    TRAINING_STATE_DONE: _ClassVar[TrainingState]
    TRAINING_STATE_FAILED: _ClassVar[TrainingState]
GRAPH_FORMAT_UNSPECIFIED: GraphFormat
GRAPH_FORMAT_JSON: GraphFormat
GRAPH_FORMAT_ONNX: GraphFormat
GRAPH_FORMAT_PT2: GraphFormat
PRECISION_UNSPECIFIED: Precision
PRECISION_FP16: Precision
PRECISION_FP32: Precision
PRECISION_FP64: Precision
PRECISION_MIXED: Precision
PRECISION_TF32: Precision
PRECISION_BF16: Precision
PRECISION_FP8: Precision
PARALLELISM_UNSPECIFIED: Parallelism
PARALLELISM_NONE: Parallelism
PARALLELISM_DATA_PARALLEL: Parallelism
PARALLELISM_DISTRIBUTED: Parallelism
OPTIMIZER_UNSPECIFIED: Optimizer
OPTIMIZER_SGD: Optimizer
OPTIMIZER_MOMENTUM: Optimizer
OPTIMIZER_ADAMW: Optimizer
REGRESSOR_UNSPECIFIED: Regressor
REGRESSOR_LINEAR: Regressor
REGRESSOR_POLYNOMIAL: Regressor
REGRESSOR_SVR: Regressor
REGRESSOR_MLP: Regressor
REGRESSOR_BOOSTED_RESIDUAL: Regressor
WORKLOAD_ERROR_KIND_UNSPECIFIED: WorkloadErrorKind
WORKLOAD_ERROR_KIND_INVALID_REQUEST: WorkloadErrorKind
WORKLOAD_ERROR_KIND_MALFORMED_GRAPH: WorkloadErrorKind
WORKLOAD_ERROR_KIND_GRAPH_TOO_LARGE: WorkloadErrorKind
WORKLOAD_ERROR_KIND_UNSUPPORTED_GRAPH: WorkloadErrorKind
WORKLOAD_ERROR_KIND_DATA_DEPENDENT_GRAPH: WorkloadErrorKind
WORKLOAD_ERROR_KIND_UNKNOWN_DEVICE: WorkloadErrorKind
WORKLOAD_ERROR_KIND_UNKNOWN_HOST: WorkloadErrorKind
WORKLOAD_ERROR_KIND_NO_EMBEDDING: WorkloadErrorKind
WORKLOAD_ERROR_KIND_OUT_OF_TIME: WorkloadErrorKind
WORKLOAD_ERROR_KIND_OUT_OF_MEMORY: WorkloadErrorKind
WORKLOAD_ERROR_KIND_INTERNAL: WorkloadErrorKind
TRAINING_STATE_UNSPECIFIED: TrainingState
TRAINING_STATE_QUEUED: TrainingState
TRAINING_STATE_RUNNING: TrainingState
TRAINING_STATE_DONE: TrainingState
TRAINING_STATE_FAILED: TrainingState

class Graph(_message.Message):
    __slots__ = ("content", "format", "name")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    format: GraphFormat
    name: str
    def __init__(self, content: _Optional[bytes] = ..., format: _Optional[_Union[GraphFormat, str]] = ..., name: _Optional[str] = ...) -> None: ...

class GraphSource(_message.Message):
    __slots__ = ("graph", "same_as")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    SAME_AS_FIELD_NUMBER: _ClassVar[int]
    graph: Graph
    same_as: int
    def __init__(self, graph: _Optional[_Union[Graph, _Mapping]] = ..., same_as: _Optional[int] = ...) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("device", "device_count", "node_count", "precision", "parallelism", "environment", "agent_ids", "host_names", "link", "network_bytes_per_second")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    HOST_NAMES_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    NETWORK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    device: str
    device_count: int
    node_count: int
    precision: Precision
    parallelism: Parallelism
    environment: str
    agent_ids: _containers.RepeatedScalarFieldContainer[str]
    host_names: _containers.RepeatedScalarFieldContainer[str]
    link: str
    network_bytes_per_second: float
    def __init__(self, device: _Optional[str] = ..., device_count: _Optional[int] = ..., node_count: _Optional[int] = ..., precision: _Optional[_Union[Precision, str]] = ..., parallelism: _Optional[_Union[Parallelism, str]] = ..., environment: _Optional[str] = ..., agent_ids: _Optional[_Iterable[str]] = ..., host_names: _Optional[_Iterable[str]] = ..., link: _Optional[str] = ..., network_bytes_per_second: _Optional[float] = ...) -> None: ...

class PredictRequest(_message.Message):
    __slots__ = ("workloads",)
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    workloads: _containers.RepeatedCompositeFieldContainer[Workload]
    def __init__(self, workloads: _Optional[_Iterable[_Union[Workload, _Mapping]]] = ...) -> None: ...

class Workload(_message.Message):
    __slots__ = ("graph", "batch_size", "cluster", "dataset_type", "regressor", "samples_per_epoch", "optimizer")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    DATASET_TYPE_FIELD_NUMBER: _ClassVar[int]
    REGRESSOR_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    graph: GraphSource
    batch_size: int
    cluster: Cluster
    dataset_type: str
    regressor: Regressor
    samples_per_epoch: int
    optimizer: Optimizer
    def __init__(self, graph: _Optional[_Union[GraphSource, _Mapping]] = ..., batch_size: _Optional[int] = ..., cluster: _Optional[_Union[Cluster, _Mapping]] = ..., dataset_type: _Optional[str] = ..., regressor: _Optional[_Union[Regressor, str]] = ..., samples_per_epoch: _Optional[int] = ..., optimizer: _Optional[_Union[Optimizer, str]] = ...) -> None: ...

class PredictResponse(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[WorkloadAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[WorkloadAnswer, _Mapping]]] = ...) -> None: ...

class WorkloadAnswer(_message.Message):
    __slots__ = ("prediction", "error")
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    prediction: WorkloadPrediction
    error: WorkloadError
    def __init__(self, prediction: _Optional[_Union[WorkloadPrediction, _Mapping]] = ..., error: _Optional[_Union[WorkloadError, _Mapping]] = ...) -> None: ...

class WorkloadPrediction(_message.Message):
    __slots__ = ("iteration_seconds", "epoch_seconds", "coverage", "regressor", "features", "out_of_distribution", "reasons", "nearest", "embedding", "graph", "cluster", "fits", "memory", "communication_ratio")
    ITERATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    REGRESSOR_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_DISTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    NEAREST_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATION_RATIO_FIELD_NUMBER: _ClassVar[int]
    iteration_seconds: Interval
    epoch_seconds: Interval
    coverage: float
    regressor: str
    features: str
    out_of_distribution: bool
    reasons: _containers.RepeatedScalarFieldContainer[str]
    nearest: _containers.RepeatedCompositeFieldContainer[NearestArchitecture]
    embedding: EmbeddingUse
    graph: GraphSummary
    cluster: ResolvedCluster
    fits: _gpu_pb2.Fits
    memory: StepMemory
    communication_ratio: float
    def __init__(self, iteration_seconds: _Optional[_Union[Interval, _Mapping]] = ..., epoch_seconds: _Optional[_Union[Interval, _Mapping]] = ..., coverage: _Optional[float] = ..., regressor: _Optional[str] = ..., features: _Optional[str] = ..., out_of_distribution: bool = ..., reasons: _Optional[_Iterable[str]] = ..., nearest: _Optional[_Iterable[_Union[NearestArchitecture, _Mapping]]] = ..., embedding: _Optional[_Union[EmbeddingUse, _Mapping]] = ..., graph: _Optional[_Union[GraphSummary, _Mapping]] = ..., cluster: _Optional[_Union[ResolvedCluster, _Mapping]] = ..., fits: _Optional[_Union[_gpu_pb2.Fits, str]] = ..., memory: _Optional[_Union[StepMemory, _Mapping]] = ..., communication_ratio: _Optional[float] = ...) -> None: ...

class StepMemory(_message.Message):
    __slots__ = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "workspace_bytes", "device_bytes", "largest_batch", "largest_batch_checkpointed")
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_BATCH_FIELD_NUMBER: _ClassVar[int]
    LARGEST_BATCH_CHECKPOINTED_FIELD_NUMBER: _ClassVar[int]
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    workspace_bytes: int
    device_bytes: int
    largest_batch: int
    largest_batch_checkpointed: int
    def __init__(self, weights_bytes: _Optional[int] = ..., gradients_bytes: _Optional[int] = ..., optimizer_bytes: _Optional[int] = ..., activations_bytes: _Optional[int] = ..., workspace_bytes: _Optional[int] = ..., device_bytes: _Optional[int] = ..., largest_batch: _Optional[int] = ..., largest_batch_checkpointed: _Optional[int] = ...) -> None: ...

class Interval(_message.Message):
    __slots__ = ("value", "low", "high")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    value: float
    low: float
    high: float
    def __init__(self, value: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class NearestArchitecture(_message.Message):
    __slots__ = ("name", "family", "similarity")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    family: str
    similarity: float
    def __init__(self, name: _Optional[str] = ..., family: _Optional[str] = ..., similarity: _Optional[float] = ...) -> None: ...

class EmbeddingUse(_message.Message):
    __slots__ = ("dataset_type", "available", "encoder_sha256", "training", "note")
    DATASET_TYPE_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    ENCODER_SHA256_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    dataset_type: str
    available: bool
    encoder_sha256: str
    training: Training
    note: str
    def __init__(self, dataset_type: _Optional[str] = ..., available: bool = ..., encoder_sha256: _Optional[str] = ..., training: _Optional[_Union[Training, _Mapping]] = ..., note: _Optional[str] = ...) -> None: ...

class GraphSummary(_message.Message):
    __slots__ = ("name", "front_end", "operations", "parameters", "flops_per_sample", "notes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FRONT_END_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    FLOPS_PER_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    front_end: str
    operations: int
    parameters: int
    flops_per_sample: float
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., front_end: _Optional[str] = ..., operations: _Optional[int] = ..., parameters: _Optional[int] = ..., flops_per_sample: _Optional[float] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class ResolvedCluster(_message.Message):
    __slots__ = ("device", "device_count", "node_count", "precision", "parallelism", "agent_ids", "host", "notes")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    device: str
    device_count: int
    node_count: int
    precision: Precision
    parallelism: Parallelism
    agent_ids: _containers.RepeatedScalarFieldContainer[str]
    host: HostResources
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, device: _Optional[str] = ..., device_count: _Optional[int] = ..., node_count: _Optional[int] = ..., precision: _Optional[_Union[Precision, str]] = ..., parallelism: _Optional[_Union[Parallelism, str]] = ..., agent_ids: _Optional[_Iterable[str]] = ..., host: _Optional[_Union[HostResources, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkloadError(_message.Message):
    __slots__ = ("kind", "text", "field")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    kind: WorkloadErrorKind
    text: str
    field: str
    def __init__(self, kind: _Optional[_Union[WorkloadErrorKind, str]] = ..., text: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("graphs", "dataset_type", "nearest_count")
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    DATASET_TYPE_FIELD_NUMBER: _ClassVar[int]
    NEAREST_COUNT_FIELD_NUMBER: _ClassVar[int]
    graphs: _containers.RepeatedCompositeFieldContainer[GraphSource]
    dataset_type: str
    nearest_count: int
    def __init__(self, graphs: _Optional[_Iterable[_Union[GraphSource, _Mapping]]] = ..., dataset_type: _Optional[str] = ..., nearest_count: _Optional[int] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("answers", "encoder_sha256", "trained_steps")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_SHA256_FIELD_NUMBER: _ClassVar[int]
    TRAINED_STEPS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[EmbeddingAnswer]
    encoder_sha256: str
    trained_steps: int
    def __init__(self, answers: _Optional[_Iterable[_Union[EmbeddingAnswer, _Mapping]]] = ..., encoder_sha256: _Optional[str] = ..., trained_steps: _Optional[int] = ...) -> None: ...

class EmbeddingAnswer(_message.Message):
    __slots__ = ("embedding", "error")
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    embedding: Embedding
    error: WorkloadError
    def __init__(self, embedding: _Optional[_Union[Embedding, _Mapping]] = ..., error: _Optional[_Union[WorkloadError, _Mapping]] = ...) -> None: ...

class Embedding(_message.Message):
    __slots__ = ("values", "nearest")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NEAREST_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    nearest: _containers.RepeatedCompositeFieldContainer[NearestArchitecture]
    def __init__(self, values: _Optional[_Iterable[float]] = ..., nearest: _Optional[_Iterable[_Union[NearestArchitecture, _Mapping]]] = ...) -> None: ...

class DatasetType(_message.Message):
    __slots__ = ("name", "encoder_sha256", "trained_steps", "shipped")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENCODER_SHA256_FIELD_NUMBER: _ClassVar[int]
    TRAINED_STEPS_FIELD_NUMBER: _ClassVar[int]
    SHIPPED_FIELD_NUMBER: _ClassVar[int]
    name: str
    encoder_sha256: str
    trained_steps: int
    shipped: bool
    def __init__(self, name: _Optional[str] = ..., encoder_sha256: _Optional[str] = ..., trained_steps: _Optional[int] = ..., shipped: bool = ...) -> None: ...

class QueueTrainingRequest(_message.Message):
    __slots__ = ("dataset_type", "again")
    DATASET_TYPE_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    dataset_type: str
    again: bool
    def __init__(self, dataset_type: _Optional[str] = ..., again: bool = ...) -> None: ...

class QueueTrainingResponse(_message.Message):
    __slots__ = ("training",)
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    training: Training
    def __init__(self, training: _Optional[_Union[Training, _Mapping]] = ...) -> None: ...

class ListTrainingsRequest(_message.Message):
    __slots__ = ("dataset_types",)
    DATASET_TYPES_FIELD_NUMBER: _ClassVar[int]
    dataset_types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, dataset_types: _Optional[_Iterable[str]] = ...) -> None: ...

class ListTrainingsResponse(_message.Message):
    __slots__ = ("trainings", "dataset_types")
    TRAININGS_FIELD_NUMBER: _ClassVar[int]
    DATASET_TYPES_FIELD_NUMBER: _ClassVar[int]
    trainings: _containers.RepeatedCompositeFieldContainer[Training]
    dataset_types: _containers.RepeatedCompositeFieldContainer[DatasetType]
    def __init__(self, trainings: _Optional[_Iterable[_Union[Training, _Mapping]]] = ..., dataset_types: _Optional[_Iterable[_Union[DatasetType, _Mapping]]] = ...) -> None: ...

class Training(_message.Message):
    __slots__ = ("dataset_type", "state", "reason", "queued_time", "started_time", "ended_time", "completed_steps", "total_steps", "attempts", "encoder_sha256")
    DATASET_TYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TIME_FIELD_NUMBER: _ClassVar[int]
    STARTED_TIME_FIELD_NUMBER: _ClassVar[int]
    ENDED_TIME_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_STEPS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_SHA256_FIELD_NUMBER: _ClassVar[int]
    dataset_type: str
    state: TrainingState
    reason: str
    queued_time: _timestamp_pb2.Timestamp
    started_time: _timestamp_pb2.Timestamp
    ended_time: _timestamp_pb2.Timestamp
    completed_steps: int
    total_steps: int
    attempts: int
    encoder_sha256: str
    def __init__(self, dataset_type: _Optional[str] = ..., state: _Optional[_Union[TrainingState, str]] = ..., reason: _Optional[str] = ..., queued_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., started_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., ended_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., completed_steps: _Optional[int] = ..., total_steps: _Optional[int] = ..., attempts: _Optional[int] = ..., encoder_sha256: _Optional[str] = ...) -> None: ...

class DescribeClusterRequest(_message.Message):
    __slots__ = ("agent_ids", "host_names", "page_size", "page_token")
    AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    HOST_NAMES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    agent_ids: _containers.RepeatedScalarFieldContainer[str]
    host_names: _containers.RepeatedScalarFieldContainer[str]
    page_size: int
    page_token: str
    def __init__(self, agent_ids: _Optional[_Iterable[str]] = ..., host_names: _Optional[_Iterable[str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class DescribeClusterResponse(_message.Message):
    __slots__ = ("hosts", "next_page_token")
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedCompositeFieldContainer[HostDescription]
    next_page_token: str
    def __init__(self, hosts: _Optional[_Iterable[_Union[HostDescription, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class HostDescription(_message.Message):
    __slots__ = ("agent_id", "host", "connected", "load", "load_time", "available", "devices")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    LOAD_TIME_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    host: _gpu_pb2.Host
    connected: bool
    load: _gpu_pb2.HostLoad
    load_time: _timestamp_pb2.Timestamp
    available: HostResources
    devices: _containers.RepeatedCompositeFieldContainer[DeviceDescription]
    def __init__(self, agent_id: _Optional[str] = ..., host: _Optional[_Union[_gpu_pb2.Host, _Mapping]] = ..., connected: bool = ..., load: _Optional[_Union[_gpu_pb2.HostLoad, _Mapping]] = ..., load_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., available: _Optional[_Union[HostResources, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[DeviceDescription, _Mapping]]] = ...) -> None: ...

class HostResources(_message.Message):
    __slots__ = ("cores", "memory_bytes", "disk_bytes_per_second", "flops")
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    cores: float
    memory_bytes: float
    disk_bytes_per_second: float
    flops: float
    def __init__(self, cores: _Optional[float] = ..., memory_bytes: _Optional[float] = ..., disk_bytes_per_second: _Optional[float] = ..., flops: _Optional[float] = ...) -> None: ...

class DeviceDescription(_message.Message):
    __slots__ = ("gpu_uuid", "product_name", "device", "memory_bytes", "flops", "busy_ratio", "available_flops", "free_memory_bytes", "replayed")
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    PRODUCT_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    BUSY_RATIO_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FLOPS_FIELD_NUMBER: _ClassVar[int]
    FREE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    gpu_uuid: str
    product_name: str
    device: str
    memory_bytes: int
    flops: float
    busy_ratio: float
    available_flops: float
    free_memory_bytes: float
    replayed: bool
    def __init__(self, gpu_uuid: _Optional[str] = ..., product_name: _Optional[str] = ..., device: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., flops: _Optional[float] = ..., busy_ratio: _Optional[float] = ..., available_flops: _Optional[float] = ..., free_memory_bytes: _Optional[float] = ..., replayed: bool = ...) -> None: ...
