from gpusonde.common.v1 import gpu_pb2 as _gpu_pb2
from gpusonde.common.v1 import job_pb2 as _job_pb2
from gpusonde.common.v1 import metric_pb2 as _metric_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    ENCODING_FLOAT32_LE: _ClassVar[Encoding]
    ENCODING_FLOAT32_LE_ZSTD: _ClassVar[Encoding]

class LossReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOSS_REASON_UNSPECIFIED: _ClassVar[LossReason]
    LOSS_REASON_SPOOL_FULL: _ClassVar[LossReason]
    LOSS_REASON_SPOOL_CORRUPT: _ClassVar[LossReason]
    LOSS_REASON_DISK_FULL: _ClassVar[LossReason]

class GpuEventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GPU_EVENT_KIND_UNSPECIFIED: _ClassVar[GpuEventKind]
    GPU_EVENT_KIND_XID: _ClassVar[GpuEventKind]
    GPU_EVENT_KIND_LOST: _ClassVar[GpuEventKind]
    GPU_EVENT_KIND_RECOVERED: _ClassVar[GpuEventKind]
    GPU_EVENT_KIND_CLOCK_STEP: _ClassVar[GpuEventKind]
ENCODING_UNSPECIFIED: Encoding
ENCODING_FLOAT32_LE: Encoding
ENCODING_FLOAT32_LE_ZSTD: Encoding
LOSS_REASON_UNSPECIFIED: LossReason
LOSS_REASON_SPOOL_FULL: LossReason
LOSS_REASON_SPOOL_CORRUPT: LossReason
LOSS_REASON_DISK_FULL: LossReason
GPU_EVENT_KIND_UNSPECIFIED: GpuEventKind
GPU_EVENT_KIND_XID: GpuEventKind
GPU_EVENT_KIND_LOST: GpuEventKind
GPU_EVENT_KIND_RECOVERED: GpuEventKind
GPU_EVENT_KIND_CLOCK_STEP: GpuEventKind

class StreamSamplesRequest(_message.Message):
    __slots__ = ("hello", "record", "host_load", "records")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    HOST_LOAD_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    record: Record
    host_load: _gpu_pb2.HostLoad
    records: _containers.RepeatedCompositeFieldContainer[Record]
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., record: _Optional[_Union[Record, _Mapping]] = ..., host_load: _Optional[_Union[_gpu_pb2.HostLoad, _Mapping]] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ...) -> None: ...

class StreamSamplesResponse(_message.Message):
    __slots__ = ("hello_ack", "ack", "throttle", "drain")
    HELLO_ACK_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    hello_ack: HelloAck
    ack: Ack
    throttle: Throttle
    drain: Drain
    def __init__(self, hello_ack: _Optional[_Union[HelloAck, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., throttle: _Optional[_Union[Throttle, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("agent_id", "spool_id", "first_available_sequence", "host", "agent_version", "encodings", "agent_start_time_unix_nano", "instance_id", "first_sequence", "marks")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    SPOOL_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_AVAILABLE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    AGENT_START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    spool_id: str
    first_available_sequence: int
    host: _gpu_pb2.Host
    agent_version: str
    encodings: _containers.RepeatedScalarFieldContainer[Encoding]
    agent_start_time_unix_nano: int
    instance_id: str
    first_sequence: int
    marks: _containers.RepeatedCompositeFieldContainer[RecordMark]
    def __init__(self, agent_id: _Optional[str] = ..., spool_id: _Optional[str] = ..., first_available_sequence: _Optional[int] = ..., host: _Optional[_Union[_gpu_pb2.Host, _Mapping]] = ..., agent_version: _Optional[str] = ..., encodings: _Optional[_Iterable[_Union[Encoding, str]]] = ..., agent_start_time_unix_nano: _Optional[int] = ..., instance_id: _Optional[str] = ..., first_sequence: _Optional[int] = ..., marks: _Optional[_Iterable[_Union[RecordMark, _Mapping]]] = ...) -> None: ...

class RecordMark(_message.Message):
    __slots__ = ("sequence", "gpu_uuid", "tick_time_unix_nano")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    TICK_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    gpu_uuid: str
    tick_time_unix_nano: int
    def __init__(self, sequence: _Optional[int] = ..., gpu_uuid: _Optional[str] = ..., tick_time_unix_nano: _Optional[int] = ...) -> None: ...

class HelloAck(_message.Message):
    __slots__ = ("durable_sequence", "encoding", "max_record_bytes", "max_unacked_records", "collector_id", "host_load_interval_ms", "same_sequence", "max_records_per_request")
    DURABLE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_UNACKED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    COLLECTOR_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_LOAD_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    SAME_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    durable_sequence: int
    encoding: Encoding
    max_record_bytes: int
    max_unacked_records: int
    collector_id: str
    host_load_interval_ms: int
    same_sequence: int
    max_records_per_request: int
    def __init__(self, durable_sequence: _Optional[int] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., max_record_bytes: _Optional[int] = ..., max_unacked_records: _Optional[int] = ..., collector_id: _Optional[str] = ..., host_load_interval_ms: _Optional[int] = ..., same_sequence: _Optional[int] = ..., max_records_per_request: _Optional[int] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("sequence", "inventory", "batch", "job_bindings", "loss_report", "gpu_events", "source_ended", "job_activity")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    JOB_BINDINGS_FIELD_NUMBER: _ClassVar[int]
    LOSS_REPORT_FIELD_NUMBER: _ClassVar[int]
    GPU_EVENTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ENDED_FIELD_NUMBER: _ClassVar[int]
    JOB_ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    inventory: Inventory
    batch: SampleBatch
    job_bindings: JobBindings
    loss_report: LossReport
    gpu_events: GpuEvents
    source_ended: SourceEnded
    job_activity: JobActivity
    def __init__(self, sequence: _Optional[int] = ..., inventory: _Optional[_Union[Inventory, _Mapping]] = ..., batch: _Optional[_Union[SampleBatch, _Mapping]] = ..., job_bindings: _Optional[_Union[JobBindings, _Mapping]] = ..., loss_report: _Optional[_Union[LossReport, _Mapping]] = ..., gpu_events: _Optional[_Union[GpuEvents, _Mapping]] = ..., source_ended: _Optional[_Union[SourceEnded, _Mapping]] = ..., job_activity: _Optional[_Union[JobActivity, _Mapping]] = ...) -> None: ...

class Inventory(_message.Message):
    __slots__ = ("gpus", "metrics", "source", "sampling_interval_us")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_INTERVAL_US_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedCompositeFieldContainer[_gpu_pb2.Gpu]
    metrics: _containers.RepeatedCompositeFieldContainer[_metric_pb2.MetricDescriptor]
    source: str
    sampling_interval_us: int
    def __init__(self, gpus: _Optional[_Iterable[_Union[_gpu_pb2.Gpu, _Mapping]]] = ..., metrics: _Optional[_Iterable[_Union[_metric_pb2.MetricDescriptor, _Mapping]]] = ..., source: _Optional[str] = ..., sampling_interval_us: _Optional[int] = ...) -> None: ...

class SampleBatch(_message.Message):
    __slots__ = ("blocks", "encoding")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[GpuBlock]
    encoding: Encoding
    def __init__(self, blocks: _Optional[_Iterable[_Union[GpuBlock, _Mapping]]] = ..., encoding: _Optional[_Union[Encoding, str]] = ...) -> None: ...

class GpuBlock(_message.Message):
    __slots__ = ("gpu", "tick_count", "start_time_unix_nano", "tick_offsets_us", "values", "missed_ticks", "counter_bases", "blank_counts")
    GPU_FIELD_NUMBER: _ClassVar[int]
    TICK_COUNT_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    TICK_OFFSETS_US_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    MISSED_TICKS_FIELD_NUMBER: _ClassVar[int]
    COUNTER_BASES_FIELD_NUMBER: _ClassVar[int]
    BLANK_COUNTS_FIELD_NUMBER: _ClassVar[int]
    gpu: int
    tick_count: int
    start_time_unix_nano: int
    tick_offsets_us: bytes
    values: bytes
    missed_ticks: int
    counter_bases: _containers.RepeatedScalarFieldContainer[float]
    blank_counts: _containers.RepeatedCompositeFieldContainer[BlankCount]
    def __init__(self, gpu: _Optional[int] = ..., tick_count: _Optional[int] = ..., start_time_unix_nano: _Optional[int] = ..., tick_offsets_us: _Optional[bytes] = ..., values: _Optional[bytes] = ..., missed_ticks: _Optional[int] = ..., counter_bases: _Optional[_Iterable[float]] = ..., blank_counts: _Optional[_Iterable[_Union[BlankCount, _Mapping]]] = ...) -> None: ...

class BlankCount(_message.Message):
    __slots__ = ("metric", "reason", "count")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    metric: int
    reason: _gpu_pb2.BlankReason
    count: int
    def __init__(self, metric: _Optional[int] = ..., reason: _Optional[_Union[_gpu_pb2.BlankReason, str]] = ..., count: _Optional[int] = ...) -> None: ...

class JobBindings(_message.Message):
    __slots__ = ("bindings",)
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    bindings: _containers.RepeatedCompositeFieldContainer[_job_pb2.JobBinding]
    def __init__(self, bindings: _Optional[_Iterable[_Union[_job_pb2.JobBinding, _Mapping]]] = ...) -> None: ...

class LossReport(_message.Message):
    __slots__ = ("first_lost_sequence", "last_lost_sequence", "reason", "lost_ticks")
    FIRST_LOST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_LOST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LOST_TICKS_FIELD_NUMBER: _ClassVar[int]
    first_lost_sequence: int
    last_lost_sequence: int
    reason: LossReason
    lost_ticks: int
    def __init__(self, first_lost_sequence: _Optional[int] = ..., last_lost_sequence: _Optional[int] = ..., reason: _Optional[_Union[LossReason, str]] = ..., lost_ticks: _Optional[int] = ...) -> None: ...

class GpuEvents(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[GpuEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[GpuEvent, _Mapping]]] = ...) -> None: ...

class GpuEvent(_message.Message):
    __slots__ = ("gpu", "time_unix_nano", "kind", "value")
    GPU_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    gpu: int
    time_unix_nano: int
    kind: GpuEventKind
    value: int
    def __init__(self, gpu: _Optional[int] = ..., time_unix_nano: _Optional[int] = ..., kind: _Optional[_Union[GpuEventKind, str]] = ..., value: _Optional[int] = ...) -> None: ...

class SourceEnded(_message.Message):
    __slots__ = ("gpus",)
    GPUS_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, gpus: _Optional[_Iterable[int]] = ...) -> None: ...

class JobActivity(_message.Message):
    __slots__ = ("start_time_unix_nano", "offsets_ms", "groups")
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_MS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    start_time_unix_nano: int
    offsets_ms: _containers.RepeatedScalarFieldContainer[int]
    groups: _containers.RepeatedCompositeFieldContainer[ProcessGroupActivity]
    def __init__(self, start_time_unix_nano: _Optional[int] = ..., offsets_ms: _Optional[_Iterable[int]] = ..., groups: _Optional[_Iterable[_Union[ProcessGroupActivity, _Mapping]]] = ...) -> None: ...

class ProcessGroupActivity(_message.Message):
    __slots__ = ("gpu_uuids", "forks", "exits", "lifetime_ms", "read_bytes", "written_bytes", "processor_ms", "processes", "holders")
    GPU_UUIDS_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    EXITS_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_MS_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    gpu_uuids: _containers.RepeatedScalarFieldContainer[str]
    forks: _containers.RepeatedScalarFieldContainer[int]
    exits: _containers.RepeatedScalarFieldContainer[int]
    lifetime_ms: _containers.RepeatedScalarFieldContainer[int]
    read_bytes: _containers.RepeatedScalarFieldContainer[int]
    written_bytes: _containers.RepeatedScalarFieldContainer[int]
    processor_ms: _containers.RepeatedScalarFieldContainer[int]
    processes: int
    holders: int
    def __init__(self, gpu_uuids: _Optional[_Iterable[str]] = ..., forks: _Optional[_Iterable[int]] = ..., exits: _Optional[_Iterable[int]] = ..., lifetime_ms: _Optional[_Iterable[int]] = ..., read_bytes: _Optional[_Iterable[int]] = ..., written_bytes: _Optional[_Iterable[int]] = ..., processor_ms: _Optional[_Iterable[int]] = ..., processes: _Optional[int] = ..., holders: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("durable_sequence",)
    DURABLE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    durable_sequence: int
    def __init__(self, durable_sequence: _Optional[int] = ...) -> None: ...

class Throttle(_message.Message):
    __slots__ = ("max_unacked_records", "batch_interval_ms")
    MAX_UNACKED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    BATCH_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    max_unacked_records: int
    batch_interval_ms: int
    def __init__(self, max_unacked_records: _Optional[int] = ..., batch_interval_ms: _Optional[int] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("grace_ms", "preferred_target")
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_TARGET_FIELD_NUMBER: _ClassVar[int]
    grace_ms: int
    preferred_target: str
    def __init__(self, grace_ms: _Optional[int] = ..., preferred_target: _Optional[str] = ...) -> None: ...
