from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from gpusonde.common.v1 import gpu_pb2 as _gpu_pb2
from gpusonde.common.v1 import job_pb2 as _job_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATUS_UNSPECIFIED: _ClassVar[RunStatus]
    RUN_STATUS_ACTIVE: _ClassVar[RunStatus]
    RUN_STATUS_ENDED: _ClassVar[RunStatus]

class EpochVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EPOCH_VERDICT_UNSPECIFIED: _ClassVar[EpochVerdict]
    EPOCH_VERDICT_EPOCHS: _ClassVar[EpochVerdict]
    EPOCH_VERDICT_SHORT_CYCLE: _ClassVar[EpochVerdict]
    EPOCH_VERDICT_NONE: _ClassVar[EpochVerdict]

class CycleRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CYCLE_ROLE_UNSPECIFIED: _ClassVar[CycleRole]
    CYCLE_ROLE_UNKNOWN: _ClassVar[CycleRole]
    CYCLE_ROLE_STEP: _ClassVar[CycleRole]
    CYCLE_ROLE_EVALUATION: _ClassVar[CycleRole]
    CYCLE_ROLE_CHECKPOINT: _ClassVar[CycleRole]
    CYCLE_ROLE_EPOCH: _ClassVar[CycleRole]
    CYCLE_ROLE_TRIAL: _ClassVar[CycleRole]

class EpochStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EPOCH_STATUS_UNSPECIFIED: _ClassVar[EpochStatus]
    EPOCH_STATUS_PROVISIONAL: _ClassVar[EpochStatus]
    EPOCH_STATUS_CONFIRMED: _ClassVar[EpochStatus]
    EPOCH_STATUS_WITHDRAWN: _ClassVar[EpochStatus]
    EPOCH_STATUS_OTHER_LEVEL: _ClassVar[EpochStatus]

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_UNKNOWN: _ClassVar[JobState]
    JOB_STATE_STARTING: _ClassVar[JobState]
    JOB_STATE_TRAINING: _ClassVar[JobState]
    JOB_STATE_EVALUATING: _ClassVar[JobState]
    JOB_STATE_CHECKPOINTING: _ClassVar[JobState]
    JOB_STATE_STALLED: _ClassVar[JobState]
    JOB_STATE_HUNG: _ClassVar[JobState]
    JOB_STATE_SERVING: _ClassVar[JobState]
    JOB_STATE_IDLE: _ClassVar[JobState]
    JOB_STATE_SLOWER: _ClassVar[JobState]
    JOB_STATE_ENDED: _ClassVar[JobState]

class PredictionStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREDICTION_STATUS_UNSPECIFIED: _ClassVar[PredictionStatus]
    PREDICTION_STATUS_OK: _ClassVar[PredictionStatus]
    PREDICTION_STATUS_EXTRAPOLATED: _ClassVar[PredictionStatus]
    PREDICTION_STATUS_INSUFFICIENT_EPOCHS: _ClassVar[PredictionStatus]
    PREDICTION_STATUS_UNSUPPORTED_GPU: _ClassVar[PredictionStatus]
RUN_STATUS_UNSPECIFIED: RunStatus
RUN_STATUS_ACTIVE: RunStatus
RUN_STATUS_ENDED: RunStatus
EPOCH_VERDICT_UNSPECIFIED: EpochVerdict
EPOCH_VERDICT_EPOCHS: EpochVerdict
EPOCH_VERDICT_SHORT_CYCLE: EpochVerdict
EPOCH_VERDICT_NONE: EpochVerdict
CYCLE_ROLE_UNSPECIFIED: CycleRole
CYCLE_ROLE_UNKNOWN: CycleRole
CYCLE_ROLE_STEP: CycleRole
CYCLE_ROLE_EVALUATION: CycleRole
CYCLE_ROLE_CHECKPOINT: CycleRole
CYCLE_ROLE_EPOCH: CycleRole
CYCLE_ROLE_TRIAL: CycleRole
EPOCH_STATUS_UNSPECIFIED: EpochStatus
EPOCH_STATUS_PROVISIONAL: EpochStatus
EPOCH_STATUS_CONFIRMED: EpochStatus
EPOCH_STATUS_WITHDRAWN: EpochStatus
EPOCH_STATUS_OTHER_LEVEL: EpochStatus
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_UNKNOWN: JobState
JOB_STATE_STARTING: JobState
JOB_STATE_TRAINING: JobState
JOB_STATE_EVALUATING: JobState
JOB_STATE_CHECKPOINTING: JobState
JOB_STATE_STALLED: JobState
JOB_STATE_HUNG: JobState
JOB_STATE_SERVING: JobState
JOB_STATE_IDLE: JobState
JOB_STATE_SLOWER: JobState
JOB_STATE_ENDED: JobState
PREDICTION_STATUS_UNSPECIFIED: PredictionStatus
PREDICTION_STATUS_OK: PredictionStatus
PREDICTION_STATUS_EXTRAPOLATED: PredictionStatus
PREDICTION_STATUS_INSUFFICIENT_EPOCHS: PredictionStatus
PREDICTION_STATUS_UNSUPPORTED_GPU: PredictionStatus

class ListRunsRequest(_message.Message):
    __slots__ = ("gpu_uuid", "job_id", "page_size", "page_token", "start_time", "end_time", "host_name", "agent_id", "status")
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    gpu_uuid: str
    job_id: str
    page_size: int
    page_token: str
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    host_name: str
    agent_id: str
    status: RunStatus
    def __init__(self, gpu_uuid: _Optional[str] = ..., job_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., host_name: _Optional[str] = ..., agent_id: _Optional[str] = ..., status: _Optional[_Union[RunStatus, str]] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("run_id", "agent_id", "gpu_uuid", "product_name", "job_id", "scheduler", "status", "start_time", "end_time", "tick_count", "missed_ticks", "epoch_count", "verdict", "epoch_period", "epoch_period_lower", "epoch_period_upper", "confidence", "replayed", "host_name", "framebuffer_bytes")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    PRODUCT_NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    TICK_COUNT_FIELD_NUMBER: _ClassVar[int]
    MISSED_TICKS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_PERIOD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_PERIOD_LOWER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_PERIOD_UPPER_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    FRAMEBUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    agent_id: str
    gpu_uuid: str
    product_name: str
    job_id: str
    scheduler: _job_pb2.Scheduler
    status: RunStatus
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    tick_count: int
    missed_ticks: int
    epoch_count: int
    verdict: EpochVerdict
    epoch_period: _duration_pb2.Duration
    epoch_period_lower: _duration_pb2.Duration
    epoch_period_upper: _duration_pb2.Duration
    confidence: float
    replayed: bool
    host_name: str
    framebuffer_bytes: int
    def __init__(self, run_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., gpu_uuid: _Optional[str] = ..., product_name: _Optional[str] = ..., job_id: _Optional[str] = ..., scheduler: _Optional[_Union[_job_pb2.Scheduler, str]] = ..., status: _Optional[_Union[RunStatus, str]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., tick_count: _Optional[int] = ..., missed_ticks: _Optional[int] = ..., epoch_count: _Optional[int] = ..., verdict: _Optional[_Union[EpochVerdict, str]] = ..., epoch_period: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., epoch_period_lower: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., epoch_period_upper: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., confidence: _Optional[float] = ..., replayed: bool = ..., host_name: _Optional[str] = ..., framebuffer_bytes: _Optional[int] = ...) -> None: ...

class ListEpochsRequest(_message.Message):
    __slots__ = ("run_id", "page_size", "page_token", "include_withdrawn", "total_epochs", "include_provisional")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_PROVISIONAL_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    page_size: int
    page_token: str
    include_withdrawn: bool
    total_epochs: int
    include_provisional: bool
    def __init__(self, run_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., include_withdrawn: bool = ..., total_epochs: _Optional[int] = ..., include_provisional: bool = ...) -> None: ...

class ListEpochsResponse(_message.Message):
    __slots__ = ("epochs", "next_page_token", "verdict", "reason", "trend", "idle_share", "stalled_share", "estimate", "estimate_reason", "pending_summaries", "cycles", "level", "deviations", "provisional_epochs", "tree_agent_id", "disagreeing_agents", "run_state", "run_state_confidence", "host_deviations", "provisional_cycles", "role")
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TREND_FIELD_NUMBER: _ClassVar[int]
    IDLE_SHARE_FIELD_NUMBER: _ClassVar[int]
    STALLED_SHARE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_REASON_FIELD_NUMBER: _ClassVar[int]
    PENDING_SUMMARIES_FIELD_NUMBER: _ClassVar[int]
    CYCLES_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    DEVIATIONS_FIELD_NUMBER: _ClassVar[int]
    PROVISIONAL_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    TREE_AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    DISAGREEING_AGENTS_FIELD_NUMBER: _ClassVar[int]
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    RUN_STATE_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    HOST_DEVIATIONS_FIELD_NUMBER: _ClassVar[int]
    PROVISIONAL_CYCLES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    epochs: _containers.RepeatedCompositeFieldContainer[Epoch]
    next_page_token: str
    verdict: EpochVerdict
    reason: str
    trend: DurationTrend
    idle_share: float
    stalled_share: float
    estimate: EndEstimate
    estimate_reason: str
    pending_summaries: int
    cycles: _containers.RepeatedCompositeFieldContainer[Cycle]
    level: int
    deviations: _containers.RepeatedCompositeFieldContainer[GpuDeviation]
    provisional_epochs: int
    tree_agent_id: str
    disagreeing_agents: _containers.RepeatedScalarFieldContainer[str]
    run_state: str
    run_state_confidence: float
    host_deviations: _containers.RepeatedCompositeFieldContainer[HostDeviation]
    provisional_cycles: int
    role: CycleRole
    def __init__(self, epochs: _Optional[_Iterable[_Union[Epoch, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., verdict: _Optional[_Union[EpochVerdict, str]] = ..., reason: _Optional[str] = ..., trend: _Optional[_Union[DurationTrend, _Mapping]] = ..., idle_share: _Optional[float] = ..., stalled_share: _Optional[float] = ..., estimate: _Optional[_Union[EndEstimate, _Mapping]] = ..., estimate_reason: _Optional[str] = ..., pending_summaries: _Optional[int] = ..., cycles: _Optional[_Iterable[_Union[Cycle, _Mapping]]] = ..., level: _Optional[int] = ..., deviations: _Optional[_Iterable[_Union[GpuDeviation, _Mapping]]] = ..., provisional_epochs: _Optional[int] = ..., tree_agent_id: _Optional[str] = ..., disagreeing_agents: _Optional[_Iterable[str]] = ..., run_state: _Optional[str] = ..., run_state_confidence: _Optional[float] = ..., host_deviations: _Optional[_Iterable[_Union[HostDeviation, _Mapping]]] = ..., provisional_cycles: _Optional[int] = ..., role: _Optional[_Union[CycleRole, str]] = ...) -> None: ...

class Cycle(_message.Message):
    __slots__ = ("period", "period_lower", "period_upper", "count", "confidence", "role", "role_confidence", "parent", "latest_start_times", "provisional")
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    PERIOD_LOWER_FIELD_NUMBER: _ClassVar[int]
    PERIOD_UPPER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ROLE_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    LATEST_START_TIMES_FIELD_NUMBER: _ClassVar[int]
    PROVISIONAL_FIELD_NUMBER: _ClassVar[int]
    period: _duration_pb2.Duration
    period_lower: _duration_pb2.Duration
    period_upper: _duration_pb2.Duration
    count: int
    confidence: float
    role: CycleRole
    role_confidence: float
    parent: int
    latest_start_times: _containers.RepeatedCompositeFieldContainer[_timestamp_pb2.Timestamp]
    provisional: bool
    def __init__(self, period: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., period_lower: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., period_upper: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., count: _Optional[int] = ..., confidence: _Optional[float] = ..., role: _Optional[_Union[CycleRole, str]] = ..., role_confidence: _Optional[float] = ..., parent: _Optional[int] = ..., latest_start_times: _Optional[_Iterable[_Union[_timestamp_pb2.Timestamp, _Mapping]]] = ..., provisional: bool = ...) -> None: ...

class GpuDeviation(_message.Message):
    __slots__ = ("gpu_uuid", "kind", "amount")
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    gpu_uuid: str
    kind: str
    amount: float
    def __init__(self, gpu_uuid: _Optional[str] = ..., kind: _Optional[str] = ..., amount: _Optional[float] = ...) -> None: ...

class HostDeviation(_message.Message):
    __slots__ = ("agent_id", "kind", "amount")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    kind: str
    amount: float
    def __init__(self, agent_id: _Optional[str] = ..., kind: _Optional[str] = ..., amount: _Optional[float] = ...) -> None: ...

class Epoch(_message.Message):
    __slots__ = ("index", "start_time", "end_time", "confidence", "status", "revision", "summary")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    index: int
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    confidence: float
    status: EpochStatus
    revision: int
    summary: EpochSummary
    def __init__(self, index: _Optional[int] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., confidence: _Optional[float] = ..., status: _Optional[_Union[EpochStatus, str]] = ..., revision: _Optional[int] = ..., summary: _Optional[_Union[EpochSummary, _Mapping]] = ...) -> None: ...

class EpochSummary(_message.Message):
    __slots__ = ("seen_share", "energy_joules", "mean_metrics")
    SEEN_SHARE_FIELD_NUMBER: _ClassVar[int]
    ENERGY_JOULES_FIELD_NUMBER: _ClassVar[int]
    MEAN_METRICS_FIELD_NUMBER: _ClassVar[int]
    seen_share: float
    energy_joules: float
    mean_metrics: _containers.RepeatedCompositeFieldContainer[MetricMean]
    def __init__(self, seen_share: _Optional[float] = ..., energy_joules: _Optional[float] = ..., mean_metrics: _Optional[_Iterable[_Union[MetricMean, _Mapping]]] = ...) -> None: ...

class MetricMean(_message.Message):
    __slots__ = ("metric", "mean")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    metric: str
    mean: float
    def __init__(self, metric: _Optional[str] = ..., mean: _Optional[float] = ...) -> None: ...

class DurationTrend(_message.Message):
    __slots__ = ("changes", "recent", "change_per_epoch", "change_per_epoch_lower", "change_per_epoch_upper")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    CHANGE_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHANGE_PER_EPOCH_LOWER_FIELD_NUMBER: _ClassVar[int]
    CHANGE_PER_EPOCH_UPPER_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[DurationChange]
    recent: _duration_pb2.Duration
    change_per_epoch: float
    change_per_epoch_lower: float
    change_per_epoch_upper: float
    def __init__(self, changes: _Optional[_Iterable[_Union[DurationChange, _Mapping]]] = ..., recent: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., change_per_epoch: _Optional[float] = ..., change_per_epoch_lower: _Optional[float] = ..., change_per_epoch_upper: _Optional[float] = ...) -> None: ...

class DurationChange(_message.Message):
    __slots__ = ("epoch", "before", "after", "change")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    before: _duration_pb2.Duration
    after: _duration_pb2.Duration
    change: float
    def __init__(self, epoch: _Optional[int] = ..., before: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., change: _Optional[float] = ...) -> None: ...

class EndEstimate(_message.Message):
    __slots__ = ("epochs_done", "epochs_left", "end_time", "end_time_lower", "end_time_upper", "interval_coverage", "basis")
    EPOCHS_DONE_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_LEFT_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_LOWER_FIELD_NUMBER: _ClassVar[int]
    END_TIME_UPPER_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_COVERAGE_FIELD_NUMBER: _ClassVar[int]
    BASIS_FIELD_NUMBER: _ClassVar[int]
    epochs_done: int
    epochs_left: int
    end_time: _timestamp_pb2.Timestamp
    end_time_lower: _timestamp_pb2.Timestamp
    end_time_upper: _timestamp_pb2.Timestamp
    interval_coverage: float
    basis: str
    def __init__(self, epochs_done: _Optional[int] = ..., epochs_left: _Optional[int] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time_lower: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time_upper: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., interval_coverage: _Optional[float] = ..., basis: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("job_id", "active_only", "page_size", "page_token", "total_cycles", "total_role", "like_job_id", "process_window", "estimates", "start_time", "end_time", "host_name", "agent_id", "states")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_ONLY_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_CYCLES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_ROLE_FIELD_NUMBER: _ClassVar[int]
    LIKE_JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_WINDOW_FIELD_NUMBER: _ClassVar[int]
    ESTIMATES_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    active_only: bool
    page_size: int
    page_token: str
    total_cycles: int
    total_role: CycleRole
    like_job_id: str
    process_window: _duration_pb2.Duration
    estimates: bool
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    host_name: str
    agent_id: str
    states: _containers.RepeatedScalarFieldContainer[JobState]
    def __init__(self, job_id: _Optional[str] = ..., active_only: bool = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., total_cycles: _Optional[int] = ..., total_role: _Optional[_Union[CycleRole, str]] = ..., like_job_id: _Optional[str] = ..., process_window: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., estimates: bool = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., host_name: _Optional[str] = ..., agent_id: _Optional[str] = ..., states: _Optional[_Iterable[_Union[JobState, str]]] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id", "total_cycles", "total_role", "like_job_id", "process_window")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TOTAL_CYCLES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_ROLE_FIELD_NUMBER: _ClassVar[int]
    LIKE_JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_WINDOW_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    total_cycles: int
    total_role: CycleRole
    like_job_id: str
    process_window: _duration_pb2.Duration
    def __init__(self, job_id: _Optional[str] = ..., total_cycles: _Optional[int] = ..., total_role: _Optional[_Union[CycleRole, str]] = ..., like_job_id: _Optional[str] = ..., process_window: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("job_id", "scheduler", "active", "start_time", "end_time", "members", "state", "state_time", "reason", "confidence", "history", "level", "progress_ratio", "estimate", "estimate_reason", "goodput_ratio", "deviations", "alerts", "gpu_time", "longest_pause", "processes", "slow_devices")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_TIME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_RATIO_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_REASON_FIELD_NUMBER: _ClassVar[int]
    GOODPUT_RATIO_FIELD_NUMBER: _ClassVar[int]
    DEVIATIONS_FIELD_NUMBER: _ClassVar[int]
    ALERTS_FIELD_NUMBER: _ClassVar[int]
    GPU_TIME_FIELD_NUMBER: _ClassVar[int]
    LONGEST_PAUSE_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    SLOW_DEVICES_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    scheduler: _job_pb2.Scheduler
    active: bool
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    members: _containers.RepeatedCompositeFieldContainer[JobMember]
    state: JobState
    state_time: _timestamp_pb2.Timestamp
    reason: str
    confidence: float
    history: _containers.RepeatedCompositeFieldContainer[JobStateSpan]
    level: Cycle
    progress_ratio: float
    estimate: EndEstimate
    estimate_reason: str
    goodput_ratio: float
    deviations: _containers.RepeatedCompositeFieldContainer[GpuDeviation]
    alerts: _containers.RepeatedCompositeFieldContainer[JobAlert]
    gpu_time: _duration_pb2.Duration
    longest_pause: _duration_pb2.Duration
    processes: JobProcesses
    slow_devices: _containers.RepeatedCompositeFieldContainer[SlowDevice]
    def __init__(self, job_id: _Optional[str] = ..., scheduler: _Optional[_Union[_job_pb2.Scheduler, str]] = ..., active: bool = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., members: _Optional[_Iterable[_Union[JobMember, _Mapping]]] = ..., state: _Optional[_Union[JobState, str]] = ..., state_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ..., confidence: _Optional[float] = ..., history: _Optional[_Iterable[_Union[JobStateSpan, _Mapping]]] = ..., level: _Optional[_Union[Cycle, _Mapping]] = ..., progress_ratio: _Optional[float] = ..., estimate: _Optional[_Union[EndEstimate, _Mapping]] = ..., estimate_reason: _Optional[str] = ..., goodput_ratio: _Optional[float] = ..., deviations: _Optional[_Iterable[_Union[GpuDeviation, _Mapping]]] = ..., alerts: _Optional[_Iterable[_Union[JobAlert, _Mapping]]] = ..., gpu_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., longest_pause: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., processes: _Optional[_Union[JobProcesses, _Mapping]] = ..., slow_devices: _Optional[_Iterable[_Union[SlowDevice, _Mapping]]] = ...) -> None: ...

class JobProcesses(_message.Message):
    __slots__ = ("seen", "processors", "bytes_per_second", "on_gpus")
    SEEN_FIELD_NUMBER: _ClassVar[int]
    PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ON_GPUS_FIELD_NUMBER: _ClassVar[int]
    seen: _duration_pb2.Duration
    processors: float
    bytes_per_second: float
    on_gpus: bool
    def __init__(self, seen: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., processors: _Optional[float] = ..., bytes_per_second: _Optional[float] = ..., on_gpus: bool = ...) -> None: ...

class SlowDevice(_message.Message):
    __slots__ = ("agent_id", "host_name", "gpu_uuid", "probability", "evidence")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    host_name: str
    gpu_uuid: str
    probability: float
    evidence: str
    def __init__(self, agent_id: _Optional[str] = ..., host_name: _Optional[str] = ..., gpu_uuid: _Optional[str] = ..., probability: _Optional[float] = ..., evidence: _Optional[str] = ...) -> None: ...

class JobAlert(_message.Message):
    __slots__ = ("state", "start_time", "end_time", "reason", "job_id", "scheduler")
    STATE_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    state: JobState
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    reason: str
    job_id: str
    scheduler: _job_pb2.Scheduler
    def __init__(self, state: _Optional[_Union[JobState, str]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ..., job_id: _Optional[str] = ..., scheduler: _Optional[_Union[_job_pb2.Scheduler, str]] = ...) -> None: ...

class ListAlertsRequest(_message.Message):
    __slots__ = ("job_id", "open_only", "page_size", "page_token")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_ONLY_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    open_only: bool
    page_size: int
    page_token: str
    def __init__(self, job_id: _Optional[str] = ..., open_only: bool = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListAlertsResponse(_message.Message):
    __slots__ = ("alerts", "next_page_token")
    ALERTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    alerts: _containers.RepeatedCompositeFieldContainer[JobAlert]
    next_page_token: str
    def __init__(self, alerts: _Optional[_Iterable[_Union[JobAlert, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class JobMember(_message.Message):
    __slots__ = ("run_id", "agent_id", "host_name", "gpu_uuid", "product_name", "active")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    PRODUCT_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    agent_id: str
    host_name: str
    gpu_uuid: str
    product_name: str
    active: bool
    def __init__(self, run_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., host_name: _Optional[str] = ..., gpu_uuid: _Optional[str] = ..., product_name: _Optional[str] = ..., active: bool = ...) -> None: ...

class JobStateSpan(_message.Message):
    __slots__ = ("state", "start_time", "end_time")
    STATE_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    state: JobState
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    def __init__(self, state: _Optional[_Union[JobState, str]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class PredictEpochLatencyRequest(_message.Message):
    __slots__ = ("run_id", "measurement", "target_gpu_models", "precision", "source_placement", "target_placements")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    TARGET_GPU_MODELS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    TARGET_PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    measurement: SourceMeasurement
    target_gpu_models: _containers.RepeatedScalarFieldContainer[str]
    precision: str
    source_placement: Placement
    target_placements: _containers.RepeatedCompositeFieldContainer[Placement]
    def __init__(self, run_id: _Optional[str] = ..., measurement: _Optional[_Union[SourceMeasurement, _Mapping]] = ..., target_gpu_models: _Optional[_Iterable[str]] = ..., precision: _Optional[str] = ..., source_placement: _Optional[_Union[Placement, _Mapping]] = ..., target_placements: _Optional[_Iterable[_Union[Placement, _Mapping]]] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("gpu_count", "host_count", "link", "network_bytes_per_second", "batch_per_gpu")
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    HOST_COUNT_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    NETWORK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BATCH_PER_GPU_FIELD_NUMBER: _ClassVar[int]
    gpu_count: int
    host_count: int
    link: str
    network_bytes_per_second: float
    batch_per_gpu: float
    def __init__(self, gpu_count: _Optional[int] = ..., host_count: _Optional[int] = ..., link: _Optional[str] = ..., network_bytes_per_second: _Optional[float] = ..., batch_per_gpu: _Optional[float] = ...) -> None: ...

class SourceMeasurement(_message.Message):
    __slots__ = ("gpu_model", "epoch_latency", "metrics", "framebuffer_bytes", "epoch_latency_relative_error", "static_attributes", "precision")
    class StaticAttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_LATENCY_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    FRAMEBUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_LATENCY_RELATIVE_ERROR_FIELD_NUMBER: _ClassVar[int]
    STATIC_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    gpu_model: str
    epoch_latency: _duration_pb2.Duration
    metrics: _containers.RepeatedCompositeFieldContainer[MetricDistribution]
    framebuffer_bytes: int
    epoch_latency_relative_error: float
    static_attributes: _containers.ScalarMap[str, float]
    precision: str
    def __init__(self, gpu_model: _Optional[str] = ..., epoch_latency: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., metrics: _Optional[_Iterable[_Union[MetricDistribution, _Mapping]]] = ..., framebuffer_bytes: _Optional[int] = ..., epoch_latency_relative_error: _Optional[float] = ..., static_attributes: _Optional[_Mapping[str, float]] = ..., precision: _Optional[str] = ...) -> None: ...

class MetricDistribution(_message.Message):
    __slots__ = ("metric", "mean", "standard_deviation", "minimum", "quartile_1", "median", "quartile_3", "maximum")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STANDARD_DEVIATION_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    QUARTILE_1_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_FIELD_NUMBER: _ClassVar[int]
    QUARTILE_3_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    metric: str
    mean: float
    standard_deviation: float
    minimum: float
    quartile_1: float
    median: float
    quartile_3: float
    maximum: float
    def __init__(self, metric: _Optional[str] = ..., mean: _Optional[float] = ..., standard_deviation: _Optional[float] = ..., minimum: _Optional[float] = ..., quartile_1: _Optional[float] = ..., median: _Optional[float] = ..., quartile_3: _Optional[float] = ..., maximum: _Optional[float] = ...) -> None: ...

class PredictEpochLatencyResponse(_message.Message):
    __slots__ = ("predictions", "model_version", "source_gpu_model", "source_epoch_latency", "source_gpu_count", "source_host_count")
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_EPOCH_LATENCY_FIELD_NUMBER: _ClassVar[int]
    SOURCE_GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_HOST_COUNT_FIELD_NUMBER: _ClassVar[int]
    predictions: _containers.RepeatedCompositeFieldContainer[EpochLatencyPrediction]
    model_version: str
    source_gpu_model: str
    source_epoch_latency: _duration_pb2.Duration
    source_gpu_count: int
    source_host_count: int
    def __init__(self, predictions: _Optional[_Iterable[_Union[EpochLatencyPrediction, _Mapping]]] = ..., model_version: _Optional[str] = ..., source_gpu_model: _Optional[str] = ..., source_epoch_latency: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., source_gpu_count: _Optional[int] = ..., source_host_count: _Optional[int] = ...) -> None: ...

class EpochLatencyPrediction(_message.Message):
    __slots__ = ("gpu_model", "epoch_latency", "epoch_latency_lower", "epoch_latency_upper", "interval_coverage", "status", "extrapolated", "method", "reason", "gpu_count", "host_count", "communication_ratio", "fits", "link", "network_bytes_per_second", "usd_per_hour", "offer")
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_LATENCY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_LATENCY_LOWER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_LATENCY_UPPER_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_COVERAGE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EXTRAPOLATED_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    HOST_COUNT_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATION_RATIO_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    NETWORK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    USD_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    gpu_model: str
    epoch_latency: _duration_pb2.Duration
    epoch_latency_lower: _duration_pb2.Duration
    epoch_latency_upper: _duration_pb2.Duration
    interval_coverage: float
    status: PredictionStatus
    extrapolated: bool
    method: str
    reason: str
    gpu_count: int
    host_count: int
    communication_ratio: float
    fits: _gpu_pb2.Fits
    link: str
    network_bytes_per_second: float
    usd_per_hour: float
    offer: str
    def __init__(self, gpu_model: _Optional[str] = ..., epoch_latency: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., epoch_latency_lower: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., epoch_latency_upper: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., interval_coverage: _Optional[float] = ..., status: _Optional[_Union[PredictionStatus, str]] = ..., extrapolated: bool = ..., method: _Optional[str] = ..., reason: _Optional[str] = ..., gpu_count: _Optional[int] = ..., host_count: _Optional[int] = ..., communication_ratio: _Optional[float] = ..., fits: _Optional[_Union[_gpu_pb2.Fits, str]] = ..., link: _Optional[str] = ..., network_bytes_per_second: _Optional[float] = ..., usd_per_hour: _Optional[float] = ..., offer: _Optional[str] = ...) -> None: ...

class ReadSamplesRequest(_message.Message):
    __slots__ = ("gpu_uuid", "metrics", "start_time", "end_time")
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    gpu_uuid: str
    metrics: _containers.RepeatedScalarFieldContainer[str]
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    def __init__(self, gpu_uuid: _Optional[str] = ..., metrics: _Optional[_Iterable[str]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ReadSamplesResponse(_message.Message):
    __slots__ = ("arrow_ipc", "resolution")
    ARROW_IPC_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    arrow_ipc: bytes
    resolution: _duration_pb2.Duration
    def __init__(self, arrow_ipc: _Optional[bytes] = ..., resolution: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DecimateSamplesRequest(_message.Message):
    __slots__ = ("run_id", "gpu_uuid", "metrics", "start_time", "end_time", "bin_count")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    BIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    gpu_uuid: str
    metrics: _containers.RepeatedScalarFieldContainer[str]
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    bin_count: int
    def __init__(self, run_id: _Optional[str] = ..., gpu_uuid: _Optional[str] = ..., metrics: _Optional[_Iterable[str]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., bin_count: _Optional[int] = ...) -> None: ...

class DecimateSamplesResponse(_message.Message):
    __slots__ = ("gpu_uuid", "start_time", "end_time", "offset_seconds", "metrics", "resolution", "interval", "available_metrics")
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_SECONDS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_METRICS_FIELD_NUMBER: _ClassVar[int]
    gpu_uuid: str
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    offset_seconds: _containers.RepeatedScalarFieldContainer[float]
    metrics: _containers.RepeatedCompositeFieldContainer[MetricExtremes]
    resolution: _duration_pb2.Duration
    interval: _duration_pb2.Duration
    available_metrics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, gpu_uuid: _Optional[str] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., offset_seconds: _Optional[_Iterable[float]] = ..., metrics: _Optional[_Iterable[_Union[MetricExtremes, _Mapping]]] = ..., resolution: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., available_metrics: _Optional[_Iterable[str]] = ...) -> None: ...

class MetricExtremes(_message.Message):
    __slots__ = ("metric", "minimums", "maximums")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    MINIMUMS_FIELD_NUMBER: _ClassVar[int]
    MAXIMUMS_FIELD_NUMBER: _ClassVar[int]
    metric: str
    minimums: _containers.RepeatedScalarFieldContainer[float]
    maximums: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, metric: _Optional[str] = ..., minimums: _Optional[_Iterable[float]] = ..., maximums: _Optional[_Iterable[float]] = ...) -> None: ...

class WatchChangesRequest(_message.Message):
    __slots__ = ("interval",)
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    def __init__(self, interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchChangesResponse(_message.Message):
    __slots__ = ("runs", "jobs", "alerts")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    ALERTS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    alerts: _containers.RepeatedCompositeFieldContainer[JobAlert]
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., alerts: _Optional[_Iterable[_Union[JobAlert, _Mapping]]] = ...) -> None: ...
