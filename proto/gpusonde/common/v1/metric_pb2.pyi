from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Unit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNIT_UNSPECIFIED: _ClassVar[Unit]
    UNIT_RATIO: _ClassVar[Unit]
    UNIT_BYTES: _ClassVar[Unit]
    UNIT_BYTES_PER_SECOND: _ClassVar[Unit]
    UNIT_WATTS: _ClassVar[Unit]
    UNIT_JOULES: _ClassVar[Unit]
    UNIT_CELSIUS: _ClassVar[Unit]
    UNIT_MEGAHERTZ: _ClassVar[Unit]
    UNIT_COUNT: _ClassVar[Unit]
    UNIT_BITS: _ClassVar[Unit]

class MetricKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    METRIC_KIND_UNSPECIFIED: _ClassVar[MetricKind]
    METRIC_KIND_GAUGE: _ClassVar[MetricKind]
    METRIC_KIND_COUNTER: _ClassVar[MetricKind]

class SamplingClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SAMPLING_CLASS_UNSPECIFIED: _ClassVar[SamplingClass]
    SAMPLING_CLASS_FAST: _ClassVar[SamplingClass]
    SAMPLING_CLASS_SLOW: _ClassVar[SamplingClass]
UNIT_UNSPECIFIED: Unit
UNIT_RATIO: Unit
UNIT_BYTES: Unit
UNIT_BYTES_PER_SECOND: Unit
UNIT_WATTS: Unit
UNIT_JOULES: Unit
UNIT_CELSIUS: Unit
UNIT_MEGAHERTZ: Unit
UNIT_COUNT: Unit
UNIT_BITS: Unit
METRIC_KIND_UNSPECIFIED: MetricKind
METRIC_KIND_GAUGE: MetricKind
METRIC_KIND_COUNTER: MetricKind
SAMPLING_CLASS_UNSPECIFIED: SamplingClass
SAMPLING_CLASS_FAST: SamplingClass
SAMPLING_CLASS_SLOW: SamplingClass

class MetricDescriptor(_message.Message):
    __slots__ = ("name", "unit", "kind", "dcgm_field_id", "multiplexed", "sampling_class")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DCGM_FIELD_ID_FIELD_NUMBER: _ClassVar[int]
    MULTIPLEXED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_CLASS_FIELD_NUMBER: _ClassVar[int]
    name: str
    unit: Unit
    kind: MetricKind
    dcgm_field_id: int
    multiplexed: bool
    sampling_class: SamplingClass
    def __init__(self, name: _Optional[str] = ..., unit: _Optional[_Union[Unit, str]] = ..., kind: _Optional[_Union[MetricKind, str]] = ..., dcgm_field_id: _Optional[int] = ..., multiplexed: bool = ..., sampling_class: _Optional[_Union[SamplingClass, str]] = ...) -> None: ...
