"""Calls of DCGM's ``dcgm_agent`` that an agent needs; a real C callback type, so that a wrong signature fails."""

import ctypes
import itertools

import dcgm_fields
import dcgm_structs
from support.fake_dcgm.engine import (
    COMPUTE_INSTANCE,
    GPU,
    GPU_INSTANCE,
    GPU_IS_LOST,
    NO_DATA,
    NULL_TEXT,
    UNKNOWN_FIELD,
    WatchState,
    current,
)

_ids = itertools.count(1)

dcgmFieldValueEntityEnumeration_f = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_uint32,
    ctypes.c_uint32,
    ctypes.POINTER(dcgm_structs.c_dcgmFieldValue_v1),
    ctypes.c_int32,
    ctypes.c_void_p,
)


def _check(handle, function):
    if handle is None or not handle.alive:
        raise dcgm_structs.DCGMError(dcgm_structs.DCGM_ST_CONNECTION_NOT_VALID)
    dcgm_structs._dcgmCheckReturn(handle.engine.fail(function))


def dcgmVersionInfo():
    info = dcgm_structs.c_dcgmVersionInfo_v2()
    info.rawBuildInfoString = f"version:{ {3: '3.3.9', 4: '4.4.2'}[current().version] };arch:x86_64".encode()
    return info


def dcgmGetAllDevices(handle):
    _check(handle, "dcgmGetAllDevices")
    return list(range(handle.engine.gpus))


def dcgmGetDeviceAttributes(handle, gpu):
    _check(handle, "dcgmGetDeviceAttributes")
    facts = dcgm_structs.c_dcgmDeviceAttributes_v3()
    engine = handle.engine
    is_nameless = gpu in engine.lost and not engine.names_lost
    facts.identifiers.uuid = (NULL_TEXT if is_nameless else engine.uuid(gpu)).encode()
    facts.identifiers.deviceName = b"NVIDIA Fake 80GB HBM3"
    facts.identifiers.pciBusId = f"00000000:{0x10 + gpu:02X}:00.0".encode()
    facts.identifiers.driverVersion = NULL_TEXT.encode() if gpu == 1 else b"999.1"
    facts.memoryUsage.fbTotal = 81920
    facts.memoryUsage.bar1Total = 131072
    facts.powerLimits.enforcedPowerLimit = 700
    facts.powerLimits.defaultPowerLimit = 0x7FFFFFF2
    facts.thermalSettings.shutdownTemp = 95
    return facts


def dcgmGroupCreate(handle, kind, name):
    _check(handle, "dcgmGroupCreate")
    assert (kind, type(name)) == (dcgm_structs.DCGM_GROUP_EMPTY, bytes)
    group = ctypes.c_void_p(next(_ids))
    handle.groups[group.value] = ()
    return group


def dcgmGroupAddEntity(handle, group, kind, entity):
    _check(handle, "dcgmGroupAddEntity")
    engine = handle.engine
    if engine.refuses_lost_at == "group" and engine.gpu_of((kind, entity)) in engine.lost:
        raise dcgm_structs.DCGMError(GPU_IS_LOST)
    handle.groups[group.value] += ((kind, entity),)


def dcgmGroupDestroy(handle, group):
    _check(handle, "dcgmGroupDestroy")
    del handle.groups[group.value]


def dcgmFieldGroupCreate(handle, fields, name):
    _check(handle, "dcgmFieldGroupCreate")
    assert (type(fields), type(name)) == (list, bytes)
    if 157 in fields and not handle.engine.instant_power:
        raise dcgm_structs.DCGMError(UNKNOWN_FIELD)
    group = ctypes.c_void_p(next(_ids))
    handle.field_groups[group.value] = tuple(fields)
    return group


def dcgmFieldGroupDestroy(handle, group):
    _check(handle, "dcgmFieldGroupDestroy")
    del handle.field_groups[group.value]


def dcgmGetGpuInstanceHierarchy(handle):
    _check(handle, "dcgmGetGpuInstanceHierarchy")
    answer = dcgm_structs.c_dcgmMigHierarchy_v2()
    rows = []
    for entity, part in handle.engine.instances.items():
        rows.append((GPU_INSTANCE, entity, GPU, part.gpu, part, 0))
        rows += [(COMPUTE_INSTANCE, 8 * entity + number, GPU_INSTANCE, entity, part, number) for number in part.compute]
    answer.count = len(rows)
    for target, (kind, entity, parent_kind, parent, part, number) in zip(answer.entityList, rows, strict=False):
        target.entity.entityGroupId, target.entity.entityId = kind, entity
        target.parent.entityGroupId, target.parent.entityId = parent_kind, parent
        target.info.gpuUuid = handle.engine.uuid(part.gpu).encode()
        target.info.nvmlInstanceId, target.info.nvmlComputeInstanceId = part.instance, number
        target.info.nvmlProfileSlices = part.slices
    return answer


def dcgmWatchFields(handle, group, field_group, interval_us, keep_s, keep_samples):
    _check(handle, "dcgmWatchFields")
    engine = handle.engine
    entities, fields = handle.groups[group.value], handle.field_groups[field_group.value]
    if any(f >= 1001 for f in fields):
        dcgm_structs._dcgmCheckReturn(engine.fail("profiling watch"))
    dcgm_structs._dcgmCheckReturn(engine.watch_code(entities, fields))
    engine.stuck -= set(fields)
    engine.zeros -= set(fields)
    watch = handle.watches[group.value, field_group.value] = WatchState(entities, fields, interval_us / 1e6, keep_s)
    engine.record(watch)


def dcgmUnwatchFields(handle, group, field_group):
    _check(handle, "dcgmUnwatchFields")
    watch = handle.watches.pop((group.value, field_group.value), None)
    if watch is not None:
        handle.engine.end(watch)


def _fill(value, field_id, at_s, number, status):
    value.fieldId, value.status, value.ts = field_id, status, round(at_s * 1e6)
    kind = dcgm_structs.field_type(field_id)
    value.fieldType = ord(kind)
    if kind == dcgm_fields.DCGM_FT_DOUBLE:
        value.value.dbl = number
    else:
        value.value.i64 = int(number)


def dcgmGetValuesSince_v2(handle, group, field_group, since_us, callback, user_data):
    """One request for each entity and field, and one for either group."""
    _check(handle, "dcgmGetValuesSince_v2")
    entities, fields = handle.groups[group.value], handle.field_groups[field_group.value]
    following_us = since_us
    handle.engine.count_requests(2)
    for entity in entities:
        for field_id in fields:
            handle.engine.count_requests(1)
            # The engine goes on measuring while it answers.
            handle.engine.advance(handle.engine.answer_s)
            known = entity[0] == dcgm_fields.DCGM_FE_GPU or entity[1] in handle.engine.instances
            rows = handle.engine.measured(entity, field_id, since_us / 1e6) if known else []
            values = (dcgm_structs.c_dcgmFieldValue_v1 * max(1, len(rows)))()
            for value, row in zip(values, rows or [(0.0, 0.0, NO_DATA)], strict=True):
                _fill(value, field_id, *row)
                following_us = max(following_us, value.ts + 1)
            callback(*entity, values, len(values), user_data)
    return following_us


def dcgmEntitiesGetLatestValues(handle, entities, field_ids, flags):
    pairs = [dcgm_structs.c_dcgmGroupEntityPair_t(*entity) for entity in entities]
    values = (dcgm_structs.c_dcgmFieldValue_v2 * (len(entities) * len(field_ids)))()
    function = dcgm_structs._dcgmGetFunctionPointer("dcgmEntitiesGetLatestValues")
    code = function(
        handle,
        (dcgm_structs.c_dcgmGroupEntityPair_t * len(pairs))(*pairs),
        ctypes.c_uint(len(pairs)),
        (ctypes.c_uint16 * len(field_ids))(*field_ids),
        ctypes.c_uint(len(field_ids)),
        flags,
        values,
    )
    dcgm_structs._dcgmCheckReturn(code)
    return values


def dcgmProfGetSupportedMetricGroups(handle, gpu):
    _check(handle, "dcgmProfGetSupportedMetricGroups")
    if gpu in handle.engine.lost:
        raise dcgm_structs.DCGMError(GPU_IS_LOST)
    answer = dcgm_structs.c_dcgmProfGetMetricGroups_v3()
    groups = handle.engine.metric_groups(gpu)
    answer.numMetricGroups = len(groups)
    for target, (major, minor, fields) in zip(answer.metricGroups, groups, strict=False):
        target.majorId, target.minorId, target.numFieldIds = major, minor, len(fields)
        target.fieldIds[: len(fields)] = fields
    return answer


def dcgmProfPause(handle):
    _check(handle, "dcgmProfPause")
    handle.engine.paused = True


def dcgmProfResume(handle):
    _check(handle, "dcgmProfResume")
    handle.engine.paused = False
