from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StaticSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATIC_SOURCE_UNSPECIFIED: _ClassVar[StaticSource]
    STATIC_SOURCE_NVML: _ClassVar[StaticSource]
    STATIC_SOURCE_CUDA_DRIVER: _ClassVar[StaticSource]
    STATIC_SOURCE_DCGM: _ClassVar[StaticSource]

class BlankReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLANK_REASON_UNSPECIFIED: _ClassVar[BlankReason]
    BLANK_REASON_NOT_SUPPORTED: _ClassVar[BlankReason]
    BLANK_REASON_NO_PERMISSION: _ClassVar[BlankReason]
    BLANK_REASON_NOT_FOUND: _ClassVar[BlankReason]
    BLANK_REASON_NO_DATA: _ClassVar[BlankReason]
    BLANK_REASON_READ_ERROR: _ClassVar[BlankReason]
    BLANK_REASON_GPU_LOST: _ClassVar[BlankReason]
    BLANK_REASON_OUT_OF_RANGE: _ClassVar[BlankReason]

class Fits(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FITS_UNSPECIFIED: _ClassVar[Fits]
    FITS_YES: _ClassVar[Fits]
    FITS_LIKELY: _ClassVar[Fits]
    FITS_UNKNOWN: _ClassVar[Fits]
    FITS_NO: _ClassVar[Fits]
STATIC_SOURCE_UNSPECIFIED: StaticSource
STATIC_SOURCE_NVML: StaticSource
STATIC_SOURCE_CUDA_DRIVER: StaticSource
STATIC_SOURCE_DCGM: StaticSource
BLANK_REASON_UNSPECIFIED: BlankReason
BLANK_REASON_NOT_SUPPORTED: BlankReason
BLANK_REASON_NO_PERMISSION: BlankReason
BLANK_REASON_NOT_FOUND: BlankReason
BLANK_REASON_NO_DATA: BlankReason
BLANK_REASON_READ_ERROR: BlankReason
BLANK_REASON_GPU_LOST: BlankReason
BLANK_REASON_OUT_OF_RANGE: BlankReason
FITS_UNSPECIFIED: Fits
FITS_YES: Fits
FITS_LIKELY: Fits
FITS_UNKNOWN: Fits
FITS_NO: Fits

class Gpu(_message.Message):
    __slots__ = ("gpu_uuid", "mig_uuid", "gpu_index", "pci_bus_id", "product_name", "framebuffer_bytes", "driver_version", "static_attributes", "missing_metrics", "replayed")
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    MIG_UUID_FIELD_NUMBER: _ClassVar[int]
    GPU_INDEX_FIELD_NUMBER: _ClassVar[int]
    PCI_BUS_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCT_NAME_FIELD_NUMBER: _ClassVar[int]
    FRAMEBUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATIC_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    MISSING_METRICS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    gpu_uuid: str
    mig_uuid: str
    gpu_index: int
    pci_bus_id: str
    product_name: str
    framebuffer_bytes: int
    driver_version: str
    static_attributes: _containers.RepeatedCompositeFieldContainer[StaticAttribute]
    missing_metrics: _containers.RepeatedCompositeFieldContainer[MissingMetric]
    replayed: bool
    def __init__(self, gpu_uuid: _Optional[str] = ..., mig_uuid: _Optional[str] = ..., gpu_index: _Optional[int] = ..., pci_bus_id: _Optional[str] = ..., product_name: _Optional[str] = ..., framebuffer_bytes: _Optional[int] = ..., driver_version: _Optional[str] = ..., static_attributes: _Optional[_Iterable[_Union[StaticAttribute, _Mapping]]] = ..., missing_metrics: _Optional[_Iterable[_Union[MissingMetric, _Mapping]]] = ..., replayed: bool = ...) -> None: ...

class StaticAttribute(_message.Message):
    __slots__ = ("name", "value", "source")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    source: StaticSource
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., source: _Optional[_Union[StaticSource, str]] = ...) -> None: ...

class MissingMetric(_message.Message):
    __slots__ = ("metric", "reason")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    metric: str
    reason: BlankReason
    def __init__(self, metric: _Optional[str] = ..., reason: _Optional[_Union[BlankReason, str]] = ...) -> None: ...

class Host(_message.Message):
    __slots__ = ("host_name", "cpu_count", "memory_bytes", "kernel_release", "cpu_model", "cpu_core_count", "cpu_flops", "disk_bytes")
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    CPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    KERNEL_RELEASE_FIELD_NUMBER: _ClassVar[int]
    CPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    CPU_CORE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CPU_FLOPS_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    host_name: str
    cpu_count: int
    memory_bytes: int
    kernel_release: str
    cpu_model: str
    cpu_core_count: int
    cpu_flops: float
    disk_bytes: int
    def __init__(self, host_name: _Optional[str] = ..., cpu_count: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., kernel_release: _Optional[str] = ..., cpu_model: _Optional[str] = ..., cpu_core_count: _Optional[int] = ..., cpu_flops: _Optional[float] = ..., disk_bytes: _Optional[int] = ...) -> None: ...

class HostLoad(_message.Message):
    __slots__ = ("cpu_busy_ratio", "available_memory_bytes", "free_disk_bytes", "disk_bytes_per_second", "disk_busy_ratio")
    CPU_BUSY_RATIO_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DISK_BUSY_RATIO_FIELD_NUMBER: _ClassVar[int]
    cpu_busy_ratio: float
    available_memory_bytes: int
    free_disk_bytes: int
    disk_bytes_per_second: float
    disk_busy_ratio: float
    def __init__(self, cpu_busy_ratio: _Optional[float] = ..., available_memory_bytes: _Optional[int] = ..., free_disk_bytes: _Optional[int] = ..., disk_bytes_per_second: _Optional[float] = ..., disk_busy_ratio: _Optional[float] = ...) -> None: ...
