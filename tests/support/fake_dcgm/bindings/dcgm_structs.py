"""Names, codes and layouts of DCGM's ``dcgm_structs`` that an agent needs, with ctypes structures of the same shape."""

import ctypes

from support.fake_dcgm.engine import current

DCGM_ST_OK = 0
DCGM_ST_CONNECTION_NOT_VALID = -21
DCGM_ST_LIBRARY_NOT_FOUND = -25
DCGM_GROUP_EMPTY = 1
DCGM_OPERATION_MODE_AUTO = 1
DCGM_OPERATION_MODE_MANUAL = 2

_TEXTS = {-6: "Feature not supported", -18: "GPU is unreachable", -25: "DCGM library could not be found"}


class DCGMError(Exception):
    """Carries the code as ``value``."""

    def __init__(self, value):
        super().__init__(value)
        self.value = value

    def __str__(self):
        return _TEXTS.get(self.value, f"DCGM Error with code {self.value}")


def _dcgmCheckReturn(code):
    if code != DCGM_ST_OK:
        raise DCGMError(code)
    return code


def _dcgmInit(libDcgmPath=None):
    if not current().library:
        raise DCGMError(DCGM_ST_LIBRARY_NOT_FOUND)


class _Structure(ctypes.Structure):
    """Version 4 hands texts out as str, version 3 as bytes."""

    def __getattribute__(self, key):
        value = super().__getattribute__(key)
        return value.decode() if isinstance(value, bytes) and current().version >= 4 else value


class c_dcgmFieldValue_v1_value(ctypes.Union):
    _fields_ = (
        ("i64", ctypes.c_int64),
        ("dbl", ctypes.c_double),
        ("str", ctypes.c_char * 256),
        ("blob", ctypes.c_byte * 4096),
    )


class c_dcgmFieldValue_v1(_Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("fieldId", ctypes.c_ushort),
        ("fieldType", ctypes.c_short),
        ("status", ctypes.c_int),
        ("ts", ctypes.c_int64),
        ("value", c_dcgmFieldValue_v1_value),
    )


class c_dcgmProfMetricGroupInfo_v2(_Structure):
    _fields_ = (
        ("majorId", ctypes.c_ushort),
        ("minorId", ctypes.c_ushort),
        ("numFieldIds", ctypes.c_uint32),
        ("fieldIds", ctypes.c_ushort * 64),
    )


class c_dcgmProfGetMetricGroups_v3(_Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("gpuId", ctypes.c_uint32),
        ("numMetricGroups", ctypes.c_uint32),
        ("metricGroups", c_dcgmProfMetricGroupInfo_v2 * 10),
    )


class c_dcgmGroupEntityPair_t(_Structure):
    _fields_ = (("entityGroupId", ctypes.c_uint32), ("entityId", ctypes.c_uint32))


class c_dcgmMigEntityInfo_t(_Structure):
    _fields_ = (
        ("gpuUuid", ctypes.c_char * 128),
        ("nvmlGpuIndex", ctypes.c_uint),
        ("nvmlInstanceId", ctypes.c_uint),
        ("nvmlComputeInstanceId", ctypes.c_uint),
        ("nvmlMigProfileId", ctypes.c_uint),
        ("nvmlProfileSlices", ctypes.c_uint),
    )


class c_dcgmMigHierarchyInfo_v2(_Structure):
    _fields_ = (
        ("entity", c_dcgmGroupEntityPair_t),
        ("parent", c_dcgmGroupEntityPair_t),
        ("info", c_dcgmMigEntityInfo_t),
    )


class c_dcgmMigHierarchy_v2(_Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("entityList", c_dcgmMigHierarchyInfo_v2 * (32 * 14)),
    )


class c_dcgmVersionInfo_v2(_Structure):
    _fields_ = (("version", ctypes.c_uint32), ("rawBuildInfoString", ctypes.c_char * 512))


def _numbers(*names):
    return (("version", ctypes.c_uint), *((name, ctypes.c_uint) for name in names))


class c_dcgmDeviceThermals_v1(_Structure):
    _fields_ = _numbers("slowdownTemp", "shutdownTemp")


class c_dcgmDevicePowerLimits_v1(_Structure):
    _fields_ = _numbers("curPowerLimit", "defaultPowerLimit", "enforcedPowerLimit", "minPowerLimit", "maxPowerLimit")


class c_dcgmDeviceMemoryUsage_v1(_Structure):
    _fields_ = _numbers("bar1Total", "fbTotal", "fbUsed", "fbFree")


class c_dcgmDeviceIdentifiers_v1(_Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        *((name, ctypes.c_char * 256) for name in ("deviceName", "pciBusId", "uuid", "driverVersion")),
    )


class c_dcgmDeviceAttributes_v3(_Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("thermalSettings", c_dcgmDeviceThermals_v1),
        ("powerLimits", c_dcgmDevicePowerLimits_v1),
        ("identifiers", c_dcgmDeviceIdentifiers_v1),
        ("memoryUsage", c_dcgmDeviceMemoryUsage_v1),
    )
