"""Names, codes and layouts of DCGM's ``dcgm_structs`` that an agent needs, with ctypes structures of the same shape."""

import ctypes

import numpy as np
from support.fake_dcgm.engine import (
    CONNECTION_NOT_VALID,
    DOUBLE_FIELDS,
    FUNCTION_NOT_FOUND,
    current,
)

DCGM_ST_OK = 0
DCGM_ST_CONNECTION_NOT_VALID = -21
DCGM_ST_LIBRARY_NOT_FOUND = -25
DCGM_GROUP_EMPTY = 1
DCGM_OPERATION_MODE_AUTO = 1
DCGM_OPERATION_MODE_MANUAL = 2

_TEXTS = {
    -6: "Feature not supported",
    -18: "GPU is unreachable",
    -20: "Unable to find function",
    -25: "DCGM library could not be found",
}


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


class c_dcgmFieldValue_v2(_Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("entityGroupId", ctypes.c_uint),
        ("entityId", ctypes.c_uint),
        ("fieldId", ctypes.c_ushort),
        ("fieldType", ctypes.c_short),
        ("status", ctypes.c_int),
        ("unused", ctypes.c_uint),
        ("ts", ctypes.c_int64),
        ("value", c_dcgmFieldValue_v1_value),
    )


def field_type(field_id):
    return "d" if field_id in DOUBLE_FIELDS else "i"


_VALUE = np.dtype(
    {
        "names": ["version", "group", "entity", "field", "type", "status", "ts", "i64", "dbl"],
        "formats": ["u4", "u4", "u4", "u2", "i2", "i4", "i8", "i8", "f8"],
        "offsets": [0, 4, 8, 12, 14, 16, 24, 32, 32],
        "itemsize": ctypes.sizeof(c_dcgmFieldValue_v2),
    }
)


def _latest_values(handle, entities, entity_count, field_ids, field_count, flags, values):
    """What the C function of libdcgm does: one request, values by entity, then by field; returns a code."""
    if handle is None or not handle.alive:
        return CONNECTION_NOT_VALID
    engine = handle.engine
    code = engine.fail("dcgmEntitiesGetLatestValues")
    if code or not handle.alive:
        return code or CONNECTION_NOT_VALID
    fields = field_ids[: field_count.value]
    pairs = [(pair.entityGroupId, pair.entityId) for pair in entities[: entity_count.value]]
    times_s, numbers, statuses = engine.latest_rows(pairs, fields)
    target = np.frombuffer(values, _VALUE, len(statuses))
    target["group"] = np.repeat([pair[0] for pair in pairs], len(fields))
    target["entity"] = np.repeat([pair[1] for pair in pairs], len(fields))
    target["field"] = fields * len(pairs)
    target["ts"] = np.rint(np.asarray(times_s) * 1e6)
    target["status"] = statuses
    types = np.array([ord(field_type(field_id)) for field_id in fields] * len(pairs))
    target["type"] = types
    target["dbl"] = numbers
    whole = np.flatnonzero(types == ord("i"))
    # INT64_BLANK is more than a double can tell exactly.
    target["i64"][whole] = [int(numbers[i]) for i in whole.tolist()]
    engine.count_requests(1)
    return DCGM_ST_OK


_FUNCTIONS = {"dcgmEntitiesGetLatestValues": _latest_values}


def _dcgmGetFunctionPointer(name):
    functions = {**_FUNCTIONS, **current().functions}
    if name in current().library_lacks or name not in functions:
        raise DCGMError(FUNCTION_NOT_FOUND)
    return functions[name]


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
