from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListAgentsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListAgentsResponse(_message.Message):
    __slots__ = ("agents", "next_page_token")
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    agents: _containers.RepeatedCompositeFieldContainer[ConnectedAgent]
    next_page_token: str
    def __init__(self, agents: _Optional[_Iterable[_Union[ConnectedAgent, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ConnectedAgent(_message.Message):
    __slots__ = ("agent_id", "host_name", "identity", "peer", "spool_id", "durable_sequence", "throttled")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    SPOOL_ID_FIELD_NUMBER: _ClassVar[int]
    DURABLE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    host_name: str
    identity: str
    peer: str
    spool_id: str
    durable_sequence: int
    throttled: bool
    def __init__(self, agent_id: _Optional[str] = ..., host_name: _Optional[str] = ..., identity: _Optional[str] = ..., peer: _Optional[str] = ..., spool_id: _Optional[str] = ..., durable_sequence: _Optional[int] = ..., throttled: bool = ...) -> None: ...

class DrainAgentsRequest(_message.Message):
    __slots__ = ("agent_ids", "all_agents", "preferred_target")
    AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_AGENTS_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_TARGET_FIELD_NUMBER: _ClassVar[int]
    agent_ids: _containers.RepeatedScalarFieldContainer[str]
    all_agents: bool
    preferred_target: str
    def __init__(self, agent_ids: _Optional[_Iterable[str]] = ..., all_agents: bool = ..., preferred_target: _Optional[str] = ...) -> None: ...

class DrainAgentsResponse(_message.Message):
    __slots__ = ("drained_agent_ids", "absent_agent_ids")
    DRAINED_AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    ABSENT_AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    drained_agent_ids: _containers.RepeatedScalarFieldContainer[str]
    absent_agent_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, drained_agent_ids: _Optional[_Iterable[str]] = ..., absent_agent_ids: _Optional[_Iterable[str]] = ...) -> None: ...
