"""Classes of DCGM's ``pydcgm`` that an agent needs."""

import ctypes
import itertools

import dcgm_agent
import dcgm_structs
from support.fake_dcgm.engine import Connection, current

_ids = itertools.count(1)


class DcgmHandle:
    """A connection; without address and socket an engine in this process."""

    def __init__(
        self,
        handle=None,
        ipAddress=None,
        opMode=dcgm_structs.DCGM_OPERATION_MODE_AUTO,
        persistAfterDisconnect=False,
        unixSocketPath=None,
        timeoutMs=0,
    ):
        self._handleCreated = False
        engine = current()
        dcgm_structs._dcgmInit()
        address = ipAddress or unixSocketPath
        if address is None:
            dcgm_structs._dcgmCheckReturn(engine.fail("dcgmStartEmbedded") or (0 if engine.embeddable else -7))
        else:
            dcgm_structs._dcgmCheckReturn(engine.fail("dcgmConnect_v2") or (0 if engine.remote else -21))
        self.handle = Connection(engine, address or "embedded")
        self._handleCreated = True

    def __del__(self):
        if self._handleCreated:
            self.Shutdown()

    def GetSystem(self):
        return DcgmSystem(self)

    def Shutdown(self):
        if not self.handle.alive:
            raise dcgm_structs.DCGMError(dcgm_structs.DCGM_ST_CONNECTION_NOT_VALID)
        self.handle.alive = False
        self.handle.engine.connections.remove(self.handle)
        self._handleCreated = False
        self.handle = None


class DcgmSystem:
    """What belongs to the whole engine."""

    def __init__(self, handle):
        self._handle = handle
        self.discovery = DcgmSystemDiscovery(handle)

    def GetGroupWithGpuIds(self, name, gpuIds):
        return DcgmGroup(self._handle, name, gpuIds)


class DcgmSystemDiscovery:
    """Which GPUs there are."""

    def __init__(self, handle):
        self._handle = handle

    def GetAllGpuIds(self):
        return dcgm_agent.dcgmGetAllDevices(self._handle.handle)

    def GetGpuAttributes(self, gpuId):
        return dcgm_agent.dcgmGetDeviceAttributes(self._handle.handle, gpuId)


class DcgmFieldGroup:
    """A set of fields."""

    def __init__(self, dcgmHandle, name="", fieldIds=None, fieldGroupId=None):
        dcgm_agent._check(dcgmHandle.handle, "dcgmFieldGroupCreate")
        self._handle = dcgmHandle
        self.fieldGroupId = ctypes.c_void_p(next(_ids))
        dcgmHandle.handle.field_groups[self.fieldGroupId.value] = tuple(fieldIds)

    def Delete(self):
        dcgm_agent._check(self._handle.handle, "dcgmFieldGroupDestroy")
        del self._handle.handle.field_groups[self.fieldGroupId.value]


class DcgmGroup:
    """A set of GPUs."""

    def __init__(self, dcgmHandle, name, gpuIds):
        dcgm_agent._check(dcgmHandle.handle, "dcgmGroupCreate")
        self._handle = dcgmHandle
        self._id = ctypes.c_void_p(next(_ids))
        self.samples = DcgmGroupSamples(dcgmHandle, self._id)
        dcgmHandle.handle.groups[self._id.value] = tuple(gpuIds)

    def GetId(self):
        return self._id

    def Delete(self):
        dcgm_agent._check(self._handle.handle, "dcgmGroupDestroy")
        del self._handle.handle.groups[self._id.value]


class DcgmGroupSamples:
    """Recording for a group."""

    def __init__(self, dcgmHandle, groupId):
        self._handle = dcgmHandle
        self._id = groupId

    def WatchFields(self, fieldGroup, updateFreq, maxKeepAge, maxKeepSamples):
        dcgm_agent.dcgmWatchFields(
            self._handle.handle, self._id, fieldGroup.fieldGroupId, updateFreq, maxKeepAge, maxKeepSamples
        )

    def UnwatchFields(self, fieldGroup):
        dcgm_agent.dcgmUnwatchFields(self._handle.handle, self._id, fieldGroup.fieldGroupId)
