from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Scheduler(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEDULER_UNSPECIFIED: _ClassVar[Scheduler]
    SCHEDULER_SLURM: _ClassVar[Scheduler]
    SCHEDULER_KUBERNETES: _ClassVar[Scheduler]
    SCHEDULER_STATIC: _ClassVar[Scheduler]
    SCHEDULER_CONTAINER: _ClassVar[Scheduler]
    SCHEDULER_SYSTEMD: _ClassVar[Scheduler]
    SCHEDULER_USER: _ClassVar[Scheduler]
SCHEDULER_UNSPECIFIED: Scheduler
SCHEDULER_SLURM: Scheduler
SCHEDULER_KUBERNETES: Scheduler
SCHEDULER_STATIC: Scheduler
SCHEDULER_CONTAINER: Scheduler
SCHEDULER_SYSTEMD: Scheduler
SCHEDULER_USER: Scheduler

class JobBinding(_message.Message):
    __slots__ = ("gpu_uuid", "job_id", "scheduler", "start_time_unix_nano", "end_time_unix_nano", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    END_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    gpu_uuid: str
    job_id: str
    scheduler: Scheduler
    start_time_unix_nano: int
    end_time_unix_nano: int
    labels: _containers.ScalarMap[str, str]
    def __init__(self, gpu_uuid: _Optional[str] = ..., job_id: _Optional[str] = ..., scheduler: _Optional[_Union[Scheduler, str]] = ..., start_time_unix_nano: _Optional[int] = ..., end_time_unix_nano: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...
