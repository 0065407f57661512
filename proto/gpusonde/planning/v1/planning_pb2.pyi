from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Objective(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECTIVE_UNSPECIFIED: _ClassVar[Objective]
    OBJECTIVE_TIME: _ClassVar[Objective]
    OBJECTIVE_COST: _ClassVar[Objective]

class Billing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BILLING_UNSPECIFIED: _ClassVar[Billing]
    BILLING_ON_DEMAND: _ClassVar[Billing]
    BILLING_SPOT: _ClassVar[Billing]

class Method(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    METHOD_UNSPECIFIED: _ClassVar[Method]
    METHOD_EXACT: _ClassVar[Method]
    METHOD_PAPER: _ClassVar[Method]

class SolutionStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOLUTION_STATUS_UNSPECIFIED: _ClassVar[SolutionStatus]
    SOLUTION_STATUS_OPTIMAL: _ClassVar[SolutionStatus]
    SOLUTION_STATUS_FEASIBLE: _ClassVar[SolutionStatus]
    SOLUTION_STATUS_INFEASIBLE: _ClassVar[SolutionStatus]
    SOLUTION_STATUS_UNKNOWN: _ClassVar[SolutionStatus]

class RecommendationKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECOMMENDATION_KIND_UNSPECIFIED: _ClassVar[RecommendationKind]
    RECOMMENDATION_KIND_LAUNCH: _ClassVar[RecommendationKind]
    RECOMMENDATION_KIND_WAIT: _ClassVar[RecommendationKind]
    RECOMMENDATION_KIND_RUN: _ClassVar[RecommendationKind]
    RECOMMENDATION_KIND_KEEP: _ClassVar[RecommendationKind]
    RECOMMENDATION_KIND_IDLE: _ClassVar[RecommendationKind]
    RECOMMENDATION_KIND_NO_PLAN: _ClassVar[RecommendationKind]
    RECOMMENDATION_KIND_DONE: _ClassVar[RecommendationKind]
OBJECTIVE_UNSPECIFIED: Objective
OBJECTIVE_TIME: Objective
OBJECTIVE_COST: Objective
BILLING_UNSPECIFIED: Billing
BILLING_ON_DEMAND: Billing
BILLING_SPOT: Billing
METHOD_UNSPECIFIED: Method
METHOD_EXACT: Method
METHOD_PAPER: Method
SOLUTION_STATUS_UNSPECIFIED: SolutionStatus
SOLUTION_STATUS_OPTIMAL: SolutionStatus
SOLUTION_STATUS_FEASIBLE: SolutionStatus
SOLUTION_STATUS_INFEASIBLE: SolutionStatus
SOLUTION_STATUS_UNKNOWN: SolutionStatus
RECOMMENDATION_KIND_UNSPECIFIED: RecommendationKind
RECOMMENDATION_KIND_LAUNCH: RecommendationKind
RECOMMENDATION_KIND_WAIT: RecommendationKind
RECOMMENDATION_KIND_RUN: RecommendationKind
RECOMMENDATION_KIND_KEEP: RecommendationKind
RECOMMENDATION_KIND_IDLE: RecommendationKind
RECOMMENDATION_KIND_NO_PLAN: RecommendationKind
RECOMMENDATION_KIND_DONE: RecommendationKind

class Problem(_message.Message):
    __slots__ = ("name", "objective", "global_batch", "iterations", "epochs", "samples_per_epoch", "deadline_s", "budget_usd", "confidence", "overhead_s", "batch_sizes", "job", "offers", "catalog", "continual", "across_regions", "quotas", "data", "tokens", "sequence_length")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    BUDGET_USD_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_S_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZES_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    CATALOG_FIELD_NUMBER: _ClassVar[int]
    CONTINUAL_FIELD_NUMBER: _ClassVar[int]
    ACROSS_REGIONS_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    name: str
    objective: Objective
    global_batch: int
    iterations: int
    epochs: float
    samples_per_epoch: float
    deadline_s: float
    budget_usd: float
    confidence: float
    overhead_s: float
    batch_sizes: _containers.RepeatedScalarFieldContainer[int]
    job: Job
    offers: _containers.RepeatedCompositeFieldContainer[Offer]
    catalog: _containers.RepeatedCompositeFieldContainer[CatalogQuery]
    continual: Continual
    across_regions: bool
    quotas: _containers.RepeatedCompositeFieldContainer[SharedQuota]
    data: DataCosts
    tokens: int
    sequence_length: int
    def __init__(self, name: _Optional[str] = ..., objective: _Optional[_Union[Objective, str]] = ..., global_batch: _Optional[int] = ..., iterations: _Optional[int] = ..., epochs: _Optional[float] = ..., samples_per_epoch: _Optional[float] = ..., deadline_s: _Optional[float] = ..., budget_usd: _Optional[float] = ..., confidence: _Optional[float] = ..., overhead_s: _Optional[float] = ..., batch_sizes: _Optional[_Iterable[int]] = ..., job: _Optional[_Union[Job, _Mapping]] = ..., offers: _Optional[_Iterable[_Union[Offer, _Mapping]]] = ..., catalog: _Optional[_Iterable[_Union[CatalogQuery, _Mapping]]] = ..., continual: _Optional[_Union[Continual, _Mapping]] = ..., across_regions: bool = ..., quotas: _Optional[_Iterable[_Union[SharedQuota, _Mapping]]] = ..., data: _Optional[_Union[DataCosts, _Mapping]] = ..., tokens: _Optional[int] = ..., sequence_length: _Optional[int] = ...) -> None: ...

class Continual(_message.Message):
    __slots__ = ("launch_s", "restore_s", "save_s", "window_s", "improvement")
    LAUNCH_S_FIELD_NUMBER: _ClassVar[int]
    RESTORE_S_FIELD_NUMBER: _ClassVar[int]
    SAVE_S_FIELD_NUMBER: _ClassVar[int]
    WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    IMPROVEMENT_FIELD_NUMBER: _ClassVar[int]
    launch_s: float
    restore_s: float
    save_s: float
    window_s: float
    improvement: float
    def __init__(self, launch_s: _Optional[float] = ..., restore_s: _Optional[float] = ..., save_s: _Optional[float] = ..., window_s: _Optional[float] = ..., improvement: _Optional[float] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("curves", "gradients", "optimizer_s", "allreduce", "allreduce_model", "link", "accumulation_steps", "sharding", "checkpointing", "memory")
    CURVES_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_S_FIELD_NUMBER: _ClassVar[int]
    ALLREDUCE_FIELD_NUMBER: _ClassVar[int]
    ALLREDUCE_MODEL_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATION_STEPS_FIELD_NUMBER: _ClassVar[int]
    SHARDING_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTING_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    curves: _containers.RepeatedCompositeFieldContainer[Curve]
    gradients: Gradients
    optimizer_s: float
    allreduce: _containers.RepeatedCompositeFieldContainer[AllreduceMeasurement]
    allreduce_model: str
    link: Link
    accumulation_steps: int
    sharding: _containers.RepeatedScalarFieldContainer[str]
    checkpointing: bool
    memory: JobMemory
    def __init__(self, curves: _Optional[_Iterable[_Union[Curve, _Mapping]]] = ..., gradients: _Optional[_Union[Gradients, _Mapping]] = ..., optimizer_s: _Optional[float] = ..., allreduce: _Optional[_Iterable[_Union[AllreduceMeasurement, _Mapping]]] = ..., allreduce_model: _Optional[str] = ..., link: _Optional[_Union[Link, _Mapping]] = ..., accumulation_steps: _Optional[int] = ..., sharding: _Optional[_Iterable[str]] = ..., checkpointing: bool = ..., memory: _Optional[_Union[JobMemory, _Mapping]] = ...) -> None: ...

class SharedQuota(_message.Message):
    __slots__ = ("gpus", "gpu", "region", "billing")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    BILLING_FIELD_NUMBER: _ClassVar[int]
    gpus: int
    gpu: str
    region: str
    billing: Billing
    def __init__(self, gpus: _Optional[int] = ..., gpu: _Optional[str] = ..., region: _Optional[str] = ..., billing: _Optional[_Union[Billing, str]] = ...) -> None: ...

class DataCosts(_message.Message):
    __slots__ = ("gigabytes", "region", "egress_usd_per_gb", "transfer_usd_per_gb", "storage_usd_per_gb_month")
    GIGABYTES_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    EGRESS_USD_PER_GB_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_USD_PER_GB_FIELD_NUMBER: _ClassVar[int]
    STORAGE_USD_PER_GB_MONTH_FIELD_NUMBER: _ClassVar[int]
    gigabytes: float
    region: str
    egress_usd_per_gb: float
    transfer_usd_per_gb: float
    storage_usd_per_gb_month: float
    def __init__(self, gigabytes: _Optional[float] = ..., region: _Optional[str] = ..., egress_usd_per_gb: _Optional[float] = ..., transfer_usd_per_gb: _Optional[float] = ..., storage_usd_per_gb_month: _Optional[float] = ...) -> None: ...

class JobMemory(_message.Message):
    __slots__ = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "activation_bytes", "checkpointed_bytes", "unit_bytes")
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    checkpointed_bytes: float
    unit_bytes: float
    def __init__(self, weights_bytes: _Optional[float] = ..., gradients_bytes: _Optional[float] = ..., optimizer_bytes: _Optional[float] = ..., activation_bytes: _Optional[float] = ..., checkpointed_bytes: _Optional[float] = ..., unit_bytes: _Optional[float] = ...) -> None: ...

class Curve(_message.Message):
    __slots__ = ("device", "probes", "epochs", "gray_box", "kind", "largest_batch", "shape", "note", "iterations")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    GRAY_BOX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LARGEST_BATCH_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    device: str
    probes: _containers.RepeatedCompositeFieldContainer[Probe]
    epochs: _containers.RepeatedCompositeFieldContainer[EpochLatency]
    gray_box: _containers.RepeatedCompositeFieldContainer[GrayBoxPoint]
    kind: str
    largest_batch: int
    shape: str
    note: str
    iterations: _containers.RepeatedCompositeFieldContainer[TimedIteration]
    def __init__(self, device: _Optional[str] = ..., probes: _Optional[_Iterable[_Union[Probe, _Mapping]]] = ..., epochs: _Optional[_Iterable[_Union[EpochLatency, _Mapping]]] = ..., gray_box: _Optional[_Iterable[_Union[GrayBoxPoint, _Mapping]]] = ..., kind: _Optional[str] = ..., largest_batch: _Optional[int] = ..., shape: _Optional[str] = ..., note: _Optional[str] = ..., iterations: _Optional[_Iterable[_Union[TimedIteration, _Mapping]]] = ...) -> None: ...

class TimedIteration(_message.Message):
    __slots__ = ("batch_size", "seconds", "gpus", "machines", "network_bytes_per_second", "accumulation_steps")
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    NETWORK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATION_STEPS_FIELD_NUMBER: _ClassVar[int]
    batch_size: float
    seconds: float
    gpus: int
    machines: int
    network_bytes_per_second: float
    accumulation_steps: int
    def __init__(self, batch_size: _Optional[float] = ..., seconds: _Optional[float] = ..., gpus: _Optional[int] = ..., machines: _Optional[int] = ..., network_bytes_per_second: _Optional[float] = ..., accumulation_steps: _Optional[int] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("batch_size", "total_s", "forward_s", "spread")
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    FORWARD_S_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    batch_size: float
    total_s: float
    forward_s: float
    spread: float
    def __init__(self, batch_size: _Optional[float] = ..., total_s: _Optional[float] = ..., forward_s: _Optional[float] = ..., spread: _Optional[float] = ...) -> None: ...

class EpochLatency(_message.Message):
    __slots__ = ("batch_size", "samples_per_epoch", "epoch_latency_s", "epoch_latency_low_s", "epoch_latency_high_s", "interval_coverage")
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    EPOCH_LATENCY_LOW_S_FIELD_NUMBER: _ClassVar[int]
    EPOCH_LATENCY_HIGH_S_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_COVERAGE_FIELD_NUMBER: _ClassVar[int]
    batch_size: float
    samples_per_epoch: float
    epoch_latency_s: float
    epoch_latency_low_s: float
    epoch_latency_high_s: float
    interval_coverage: float
    def __init__(self, batch_size: _Optional[float] = ..., samples_per_epoch: _Optional[float] = ..., epoch_latency_s: _Optional[float] = ..., epoch_latency_low_s: _Optional[float] = ..., epoch_latency_high_s: _Optional[float] = ..., interval_coverage: _Optional[float] = ...) -> None: ...

class GrayBoxPoint(_message.Message):
    __slots__ = ("batch_size", "total_s", "total_low_s", "total_high_s", "interval_coverage")
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_LOW_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_HIGH_S_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_COVERAGE_FIELD_NUMBER: _ClassVar[int]
    batch_size: float
    total_s: float
    total_low_s: float
    total_high_s: float
    interval_coverage: float
    def __init__(self, batch_size: _Optional[float] = ..., total_s: _Optional[float] = ..., total_low_s: _Optional[float] = ..., total_high_s: _Optional[float] = ..., interval_coverage: _Optional[float] = ...) -> None: ...

class Gradients(_message.Message):
    __slots__ = ("ready_fractions", "bucket_bytes", "assumed", "parameter_bytes", "traffic_bytes_per_step", "traffic_world_size")
    READY_FRACTIONS_FIELD_NUMBER: _ClassVar[int]
    BUCKET_BYTES_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_BYTES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ready_fractions: _containers.RepeatedScalarFieldContainer[float]
    bucket_bytes: _containers.RepeatedScalarFieldContainer[float]
    assumed: bool
    parameter_bytes: float
    traffic_bytes_per_step: float
    traffic_world_size: int
    def __init__(self, ready_fractions: _Optional[_Iterable[float]] = ..., bucket_bytes: _Optional[_Iterable[float]] = ..., assumed: bool = ..., parameter_bytes: _Optional[float] = ..., traffic_bytes_per_step: _Optional[float] = ..., traffic_world_size: _Optional[int] = ...) -> None: ...

class AllreduceMeasurement(_message.Message):
    __slots__ = ("fabric", "transfer_bytes", "world_size", "seconds", "concurrent", "weight", "location", "device", "devices_per_machine", "repeats", "log_spread", "measured_at_s")
    FABRIC_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_PER_MACHINE_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    LOG_SPREAD_FIELD_NUMBER: _ClassVar[int]
    MEASURED_AT_S_FIELD_NUMBER: _ClassVar[int]
    fabric: str
    transfer_bytes: float
    world_size: int
    seconds: float
    concurrent: int
    weight: float
    location: str
    device: str
    devices_per_machine: int
    repeats: int
    log_spread: float
    measured_at_s: float
    def __init__(self, fabric: _Optional[str] = ..., transfer_bytes: _Optional[float] = ..., world_size: _Optional[int] = ..., seconds: _Optional[float] = ..., concurrent: _Optional[int] = ..., weight: _Optional[float] = ..., location: _Optional[str] = ..., device: _Optional[str] = ..., devices_per_machine: _Optional[int] = ..., repeats: _Optional[int] = ..., log_spread: _Optional[float] = ..., measured_at_s: _Optional[float] = ...) -> None: ...

class Link(_message.Message):
    __slots__ = ("share", "capacity_bytes_per_second", "max_in_flight")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    share: str
    capacity_bytes_per_second: float
    max_in_flight: int
    def __init__(self, share: _Optional[str] = ..., capacity_bytes_per_second: _Optional[float] = ..., max_in_flight: _Optional[int] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("name", "device", "devices", "quota", "usd_per_hour", "billing", "network_bytes_per_second", "fabric", "smallest_batch", "largest_batch", "preemptions_per_hour", "region", "zone", "machine_fabric", "memory_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    USD_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    BILLING_FIELD_NUMBER: _ClassVar[int]
    NETWORK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FABRIC_FIELD_NUMBER: _ClassVar[int]
    SMALLEST_BATCH_FIELD_NUMBER: _ClassVar[int]
    LARGEST_BATCH_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FABRIC_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    device: str
    devices: int
    quota: int
    usd_per_hour: float
    billing: Billing
    network_bytes_per_second: float
    fabric: str
    smallest_batch: int
    largest_batch: int
    preemptions_per_hour: float
    region: str
    zone: str
    machine_fabric: str
    memory_bytes: float
    def __init__(self, name: _Optional[str] = ..., device: _Optional[str] = ..., devices: _Optional[int] = ..., quota: _Optional[int] = ..., usd_per_hour: _Optional[float] = ..., billing: _Optional[_Union[Billing, str]] = ..., network_bytes_per_second: _Optional[float] = ..., fabric: _Optional[str] = ..., smallest_batch: _Optional[int] = ..., largest_batch: _Optional[int] = ..., preemptions_per_hour: _Optional[float] = ..., region: _Optional[str] = ..., zone: _Optional[str] = ..., machine_fabric: _Optional[str] = ..., memory_bytes: _Optional[float] = ...) -> None: ...

class CatalogQuery(_message.Message):
    __slots__ = ("gpus", "providers", "regions", "instance_types", "billing", "quota", "fabric", "machine_fabric", "smallest_batch", "largest_batch", "preemptions_per_hour")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    PROVIDERS_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_TYPES_FIELD_NUMBER: _ClassVar[int]
    BILLING_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    FABRIC_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FABRIC_FIELD_NUMBER: _ClassVar[int]
    SMALLEST_BATCH_FIELD_NUMBER: _ClassVar[int]
    LARGEST_BATCH_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedScalarFieldContainer[str]
    providers: _containers.RepeatedScalarFieldContainer[str]
    regions: _containers.RepeatedScalarFieldContainer[str]
    instance_types: _containers.RepeatedScalarFieldContainer[str]
    billing: Billing
    quota: int
    fabric: str
    machine_fabric: str
    smallest_batch: int
    largest_batch: int
    preemptions_per_hour: float
    def __init__(self, gpus: _Optional[_Iterable[str]] = ..., providers: _Optional[_Iterable[str]] = ..., regions: _Optional[_Iterable[str]] = ..., instance_types: _Optional[_Iterable[str]] = ..., billing: _Optional[_Union[Billing, str]] = ..., quota: _Optional[int] = ..., fabric: _Optional[str] = ..., machine_fabric: _Optional[str] = ..., smallest_batch: _Optional[int] = ..., largest_batch: _Optional[int] = ..., preemptions_per_hour: _Optional[float] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("groups", "mode")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    mode: StepMode
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., mode: _Optional[_Union[StepMode, _Mapping]] = ...) -> None: ...

class StepMode(_message.Message):
    __slots__ = ("accumulation_steps", "sharding", "checkpointing")
    ACCUMULATION_STEPS_FIELD_NUMBER: _ClassVar[int]
    SHARDING_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTING_FIELD_NUMBER: _ClassVar[int]
    accumulation_steps: int
    sharding: str
    checkpointing: bool
    def __init__(self, accumulation_steps: _Optional[int] = ..., sharding: _Optional[str] = ..., checkpointing: bool = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("offer", "machines", "batch_size")
    OFFER_FIELD_NUMBER: _ClassVar[int]
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    offer: str
    machines: int
    batch_size: int
    def __init__(self, offer: _Optional[str] = ..., machines: _Optional[int] = ..., batch_size: _Optional[int] = ...) -> None: ...

class PoseProblemRequest(_message.Message):
    __slots__ = ("run_id", "epochs", "batch_size", "steps_per_epoch", "quota", "providers", "precision", "deadline_s", "budget_usd", "objective", "gpus")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    PROVIDERS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    BUDGET_USD_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epochs: int
    batch_size: int
    steps_per_epoch: int
    quota: int
    providers: _containers.RepeatedScalarFieldContainer[str]
    precision: str
    deadline_s: float
    budget_usd: float
    objective: Objective
    gpus: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run_id: _Optional[str] = ..., epochs: _Optional[int] = ..., batch_size: _Optional[int] = ..., steps_per_epoch: _Optional[int] = ..., quota: _Optional[int] = ..., providers: _Optional[_Iterable[str]] = ..., precision: _Optional[str] = ..., deadline_s: _Optional[float] = ..., budget_usd: _Optional[float] = ..., objective: _Optional[_Union[Objective, str]] = ..., gpus: _Optional[_Iterable[str]] = ...) -> None: ...

class PoseProblemResponse(_message.Message):
    __slots__ = ("problem", "assumed", "measured", "key_notes", "extrapolated")
    class KeyNotesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ExtrapolatedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    KEY_NOTES_FIELD_NUMBER: _ClassVar[int]
    EXTRAPOLATED_FIELD_NUMBER: _ClassVar[int]
    problem: Problem
    assumed: _containers.RepeatedScalarFieldContainer[str]
    measured: str
    key_notes: _containers.ScalarMap[str, str]
    extrapolated: _containers.ScalarMap[str, str]
    def __init__(self, problem: _Optional[_Union[Problem, _Mapping]] = ..., assumed: _Optional[_Iterable[str]] = ..., measured: _Optional[str] = ..., key_notes: _Optional[_Mapping[str, str]] = ..., extrapolated: _Optional[_Mapping[str, str]] = ...) -> None: ...

class EstimatePlanRequest(_message.Message):
    __slots__ = ("problem", "plan")
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    problem: Problem
    plan: Plan
    def __init__(self, problem: _Optional[_Union[Problem, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class EstimatePlanResponse(_message.Message):
    __slots__ = ("solution",)
    SOLUTION_FIELD_NUMBER: _ClassVar[int]
    solution: Solution
    def __init__(self, solution: _Optional[_Union[Solution, _Mapping]] = ...) -> None: ...

class SolveProblemRequest(_message.Message):
    __slots__ = ("problem", "method")
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    problem: Problem
    method: Method
    def __init__(self, problem: _Optional[_Union[Problem, _Mapping]] = ..., method: _Optional[_Union[Method, str]] = ...) -> None: ...

class SolveProblemResponse(_message.Message):
    __slots__ = ("solution",)
    SOLUTION_FIELD_NUMBER: _ClassVar[int]
    solution: Solution
    def __init__(self, solution: _Optional[_Union[Solution, _Mapping]] = ...) -> None: ...

class SolveProblemsRequest(_message.Message):
    __slots__ = ("problems", "objective", "budget_usd")
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_USD_FIELD_NUMBER: _ClassVar[int]
    problems: _containers.RepeatedCompositeFieldContainer[Problem]
    objective: Objective
    budget_usd: float
    def __init__(self, problems: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ..., objective: _Optional[_Union[Objective, str]] = ..., budget_usd: _Optional[float] = ...) -> None: ...

class SolveProblemsResponse(_message.Message):
    __slots__ = ("solution",)
    SOLUTION_FIELD_NUMBER: _ClassVar[int]
    solution: JointSolution
    def __init__(self, solution: _Optional[_Union[JointSolution, _Mapping]] = ...) -> None: ...

class ListParetoPlansRequest(_message.Message):
    __slots__ = ("problem",)
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    problem: Problem
    def __init__(self, problem: _Optional[_Union[Problem, _Mapping]] = ...) -> None: ...

class ListParetoPlansResponse(_message.Message):
    __slots__ = ("points", "complete", "resolution", "notes")
    POINTS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    points: _containers.RepeatedCompositeFieldContainer[ParetoPoint]
    complete: bool
    resolution: float
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, points: _Optional[_Iterable[_Union[ParetoPoint, _Mapping]]] = ..., complete: bool = ..., resolution: _Optional[float] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class ParetoPoint(_message.Message):
    __slots__ = ("plan", "estimate")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    estimate: PlanEstimate
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ..., estimate: _Optional[_Union[PlanEstimate, _Mapping]] = ...) -> None: ...

class Solution(_message.Message):
    __slots__ = ("status", "plan", "estimate", "proof", "why", "binding", "relaxations", "nearest", "explored", "notes")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    RELAXATIONS_FIELD_NUMBER: _ClassVar[int]
    NEAREST_FIELD_NUMBER: _ClassVar[int]
    EXPLORED_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    status: SolutionStatus
    plan: Plan
    estimate: PlanEstimate
    proof: Proof
    why: str
    binding: _containers.RepeatedScalarFieldContainer[str]
    relaxations: _containers.RepeatedCompositeFieldContainer[Relaxation]
    nearest: Nearest
    explored: int
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[SolutionStatus, str]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., estimate: _Optional[_Union[PlanEstimate, _Mapping]] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ..., why: _Optional[str] = ..., binding: _Optional[_Iterable[str]] = ..., relaxations: _Optional[_Iterable[_Union[Relaxation, _Mapping]]] = ..., nearest: _Optional[_Union[Nearest, _Mapping]] = ..., explored: _Optional[int] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class JointSolution(_message.Message):
    __slots__ = ("status", "jobs", "cost_usd", "end_s", "proof", "why", "binding", "relaxations", "nearest_jobs", "notes")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    COST_USD_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    RELAXATIONS_FIELD_NUMBER: _ClassVar[int]
    NEAREST_JOBS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    status: SolutionStatus
    jobs: _containers.RepeatedCompositeFieldContainer[JobPlan]
    cost_usd: float
    end_s: float
    proof: Proof
    why: str
    binding: _containers.RepeatedScalarFieldContainer[str]
    relaxations: _containers.RepeatedScalarFieldContainer[str]
    nearest_jobs: _containers.RepeatedCompositeFieldContainer[JobPlan]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[SolutionStatus, str]] = ..., jobs: _Optional[_Iterable[_Union[JobPlan, _Mapping]]] = ..., cost_usd: _Optional[float] = ..., end_s: _Optional[float] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ..., why: _Optional[str] = ..., binding: _Optional[_Iterable[str]] = ..., relaxations: _Optional[_Iterable[str]] = ..., nearest_jobs: _Optional[_Iterable[_Union[JobPlan, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class JobPlan(_message.Message):
    __slots__ = ("name", "plan", "estimate")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    plan: Plan
    estimate: PlanEstimate
    def __init__(self, name: _Optional[str] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., estimate: _Optional[_Union[PlanEstimate, _Mapping]] = ...) -> None: ...

class PlanEstimate(_message.Message):
    __slots__ = ("time_s", "time_at_confidence_s", "cost_usd", "cost_at_confidence_usd", "usd_per_hour", "step", "preemptions", "checkpoint_interval_s", "data_usd")
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    TIME_AT_CONFIDENCE_S_FIELD_NUMBER: _ClassVar[int]
    COST_USD_FIELD_NUMBER: _ClassVar[int]
    COST_AT_CONFIDENCE_USD_FIELD_NUMBER: _ClassVar[int]
    USD_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    DATA_USD_FIELD_NUMBER: _ClassVar[int]
    time_s: float
    time_at_confidence_s: float
    cost_usd: float
    cost_at_confidence_usd: float
    usd_per_hour: float
    step: StepEstimate
    preemptions: float
    checkpoint_interval_s: float
    data_usd: float
    def __init__(self, time_s: _Optional[float] = ..., time_at_confidence_s: _Optional[float] = ..., cost_usd: _Optional[float] = ..., cost_at_confidence_usd: _Optional[float] = ..., usd_per_hour: _Optional[float] = ..., step: _Optional[_Union[StepEstimate, _Mapping]] = ..., preemptions: _Optional[float] = ..., checkpoint_interval_s: _Optional[float] = ..., data_usd: _Optional[float] = ...) -> None: ...

class StepEstimate(_message.Message):
    __slots__ = ("mean_s", "sd_s", "p95_s", "shared_sd_s", "doubt")
    MEAN_S_FIELD_NUMBER: _ClassVar[int]
    SD_S_FIELD_NUMBER: _ClassVar[int]
    P95_S_FIELD_NUMBER: _ClassVar[int]
    SHARED_SD_S_FIELD_NUMBER: _ClassVar[int]
    DOUBT_FIELD_NUMBER: _ClassVar[int]
    mean_s: float
    sd_s: float
    p95_s: float
    shared_sd_s: float
    doubt: float
    def __init__(self, mean_s: _Optional[float] = ..., sd_s: _Optional[float] = ..., p95_s: _Optional[float] = ..., shared_sd_s: _Optional[float] = ..., doubt: _Optional[float] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("method", "complete", "bound", "gap", "words")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    method: str
    complete: bool
    bound: float
    gap: float
    words: str
    def __init__(self, method: _Optional[str] = ..., complete: bool = ..., bound: _Optional[float] = ..., gap: _Optional[float] = ..., words: _Optional[str] = ...) -> None: ...

class Relaxation(_message.Message):
    __slots__ = ("limit", "change", "plan", "time_s", "cost_usd", "words")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    COST_USD_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    limit: str
    change: str
    plan: Plan
    time_s: float
    cost_usd: float
    words: str
    def __init__(self, limit: _Optional[str] = ..., change: _Optional[str] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., time_s: _Optional[float] = ..., cost_usd: _Optional[float] = ..., words: _Optional[str] = ...) -> None: ...

class Nearest(_message.Message):
    __slots__ = ("plan", "estimate", "global_batch", "words")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    estimate: PlanEstimate
    global_batch: int
    words: str
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ..., estimate: _Optional[_Union[PlanEstimate, _Mapping]] = ..., global_batch: _Optional[int] = ..., words: _Optional[str] = ...) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ("start", "progress", "machines")
    START_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    start: WatchStart
    progress: ReportedProgress
    machines: ReportedMachines
    def __init__(self, start: _Optional[_Union[WatchStart, _Mapping]] = ..., progress: _Optional[_Union[ReportedProgress, _Mapping]] = ..., machines: _Optional[_Union[ReportedMachines, _Mapping]] = ...) -> None: ...

class WatchStart(_message.Message):
    __slots__ = ("problem", "plan", "elapsed_s", "run_id", "spent_usd", "completed_iterations")
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SPENT_USD_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    problem: Problem
    plan: Plan
    elapsed_s: float
    run_id: str
    spent_usd: float
    completed_iterations: float
    def __init__(self, problem: _Optional[_Union[Problem, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., elapsed_s: _Optional[float] = ..., run_id: _Optional[str] = ..., spent_usd: _Optional[float] = ..., completed_iterations: _Optional[float] = ...) -> None: ...

class ReportedProgress(_message.Message):
    __slots__ = ("elapsed_s", "completed_iterations")
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    elapsed_s: float
    completed_iterations: float
    def __init__(self, elapsed_s: _Optional[float] = ..., completed_iterations: _Optional[float] = ...) -> None: ...

class ReportedMachines(_message.Message):
    __slots__ = ("elapsed_s", "plan", "preempted", "refused", "machines")
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    elapsed_s: float
    plan: Plan
    preempted: _containers.RepeatedCompositeFieldContainer[MachineCount]
    refused: _containers.RepeatedCompositeFieldContainer[MachineCount]
    machines: _containers.RepeatedCompositeFieldContainer[MachineCount]
    def __init__(self, elapsed_s: _Optional[float] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., preempted: _Optional[_Iterable[_Union[MachineCount, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[MachineCount, _Mapping]]] = ..., machines: _Optional[_Iterable[_Union[MachineCount, _Mapping]]] = ...) -> None: ...

class MachineCount(_message.Message):
    __slots__ = ("offer", "machines")
    OFFER_FIELD_NUMBER: _ClassVar[int]
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    offer: str
    machines: int
    def __init__(self, offer: _Optional[str] = ..., machines: _Optional[int] = ...) -> None: ...

class WatchJobResponse(_message.Message):
    __slots__ = ("recommendation",)
    RECOMMENDATION_FIELD_NUMBER: _ClassVar[int]
    recommendation: Recommendation
    def __init__(self, recommendation: _Optional[_Union[Recommendation, _Mapping]] = ...) -> None: ...

class Recommendation(_message.Message):
    __slots__ = ("kind", "at_s", "plan", "launch", "end", "projection", "completed_iterations", "remaining_iterations", "throughput", "spent_usd", "expected_usd", "checkpoint_interval_s", "at_risk", "fallback", "fallback_before_s", "why")
    KIND_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    SPENT_USD_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_USD_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    AT_RISK_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_BEFORE_S_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    kind: RecommendationKind
    at_s: float
    plan: Plan
    launch: _containers.RepeatedCompositeFieldContainer[MachineCount]
    end: _containers.RepeatedCompositeFieldContainer[MachineCount]
    projection: Projection
    completed_iterations: float
    remaining_iterations: float
    throughput: Throughput
    spent_usd: float
    expected_usd: float
    checkpoint_interval_s: float
    at_risk: bool
    fallback: Plan
    fallback_before_s: float
    why: str
    def __init__(self, kind: _Optional[_Union[RecommendationKind, str]] = ..., at_s: _Optional[float] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., launch: _Optional[_Iterable[_Union[MachineCount, _Mapping]]] = ..., end: _Optional[_Iterable[_Union[MachineCount, _Mapping]]] = ..., projection: _Optional[_Union[Projection, _Mapping]] = ..., completed_iterations: _Optional[float] = ..., remaining_iterations: _Optional[float] = ..., throughput: _Optional[_Union[Throughput, _Mapping]] = ..., spent_usd: _Optional[float] = ..., expected_usd: _Optional[float] = ..., checkpoint_interval_s: _Optional[float] = ..., at_risk: bool = ..., fallback: _Optional[_Union[Plan, _Mapping]] = ..., fallback_before_s: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...

class Projection(_message.Message):
    __slots__ = ("end_s", "low_s", "high_s")
    END_S_FIELD_NUMBER: _ClassVar[int]
    LOW_S_FIELD_NUMBER: _ClassVar[int]
    HIGH_S_FIELD_NUMBER: _ClassVar[int]
    end_s: float
    low_s: float
    high_s: float
    def __init__(self, end_s: _Optional[float] = ..., low_s: _Optional[float] = ..., high_s: _Optional[float] = ...) -> None: ...

class Throughput(_message.Message):
    __slots__ = ("mean", "low", "high", "span_s", "intervals")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    SPAN_S_FIELD_NUMBER: _ClassVar[int]
    INTERVALS_FIELD_NUMBER: _ClassVar[int]
    mean: float
    low: float
    high: float
    span_s: float
    intervals: int
    def __init__(self, mean: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., span_s: _Optional[float] = ..., intervals: _Optional[int] = ...) -> None: ...
