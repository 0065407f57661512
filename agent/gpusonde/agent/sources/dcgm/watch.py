"""``Watch``: fields that the engine records for some GPUs. ``LatestValues``: the newest of what it recorded.

Also finds the GPUs and MIG instances behind an engine, the names by which the fleet knows them, and what DCGM, and NVML
where it is there, tell of a GPU beside its metrics.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import logging
import math
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.agent.inventory import CudaAttributes
from gpusonde.agent.sources.base import GpuDescription, StaticAttribute, StaticOrigin
from gpusonde.agent.sources.dcgm.bindings import GPU, DcgmDevice, Entity, MigPart
from gpusonde.agent.sources.dcgm.connection import NO_DATA, Engine
from gpusonde.agent.sources.dcgm.fields import METRIC_OF_FIELD, XID_FIELD
from gpusonde.agent.sources.dcgm.gpu import (
    PLAIN,
    PROFILING,
    EngineValue,
    decode_numbers,
    is_blank_int32,
    limits_of,
    plain_layout,
    read_number,
    read_reason,
    refusal_of,
    text_of,
    value_layout,
)
from gpusonde.agent.sources.nvml.gpu import Device, describe_device, mig_instances
from gpusonde.agent.sources.nvml.library import Nvml
from gpusonde.errors import CallRefusedError, DriverCallError, EngineLostError, SourceError, SourceUnavailableError
from gpusonde.telemetry import MissingReason, Unit

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineDevices:
    """What an engine shows.

    Attributes:
        attributes: DCGM's id of a GPU -> its ``c_dcgmDeviceAttributes``.
        devices: What is to be sampled, each GPU before its instances.
        silent: DCGM's id of a GPU that does not answer -> what the engine says of it.
    """

    attributes: Mapping[int, Any]
    devices: tuple[DcgmDevice, ...]
    silent: Mapping[int, str]


def find_engine_devices(engine: Engine, load_nvml: Callable[[], Nvml]) -> EngineDevices:
    """Ask the engine for its GPUs and instances.

    Args:
        engine: An open engine.
        load_nvml: Makes NVML, which knows the UUIDs of instances; the engine does not.

    Raises:
        SourceUnavailableError: There is no GPU that answers.
        EngineLostError: The engine is gone.
    """
    attributes, silent = {}, {}
    for gpu_id in engine.gpu_ids():
        try:
            facts = engine.gpu_attributes(gpu_id)
        except CallRefusedError as error:
            silent[gpu_id] = str(error)
            continue
        # A lost GPU is listed on, and its attributes are an answer in which everything is blank.
        if gpu_uuid(facts):
            attributes[gpu_id] = facts
        else:
            silent[gpu_id] = "the engine has no UUID of it"
    if not attributes:
        raise SourceUnavailableError(
            f"the DCGM engine at {engine.address} shows no GPU that answers: see 'dcgmi discovery -l' and "
            "'nvidia-smi -L'"
        )
    parts = [part for part in engine.mig_parts() if part.gpu_id in attributes]
    uuids = {gpu_id: gpu_uuid(facts) for gpu_id, facts in attributes.items()}
    names = _names_of_parts({uuids[part.gpu_id] for part in parts}, load_nvml) if parts else {}
    devices = []
    for gpu_id, gpu in uuids.items():
        devices.append(DcgmDevice(gpu, gpu_id, Entity(GPU, gpu_id)))
        devices += [
            DcgmDevice(_name_of(part, gpu, names), gpu_id, part.entity, part) for part in parts if part.gpu_id == gpu_id
        ]
    return EngineDevices(attributes, tuple(devices), silent)


def gpu_uuid(attributes: Any) -> str:
    """Return the UUID in DCGM's attributes of a GPU."""
    return text_of(attributes.identifiers.uuid)


def _name_of(part: MigPart, uuid: str, names: Mapping[tuple[str, int, int], str]) -> str:
    where = (uuid, part.gpu_instance_id, part.compute_instance_id)
    # The form that drivers before 470 gave instances: unique on the host, though jobs see another.
    return names.get(where) or f"MIG-{uuid}/{part.gpu_instance_id}/{part.compute_instance_id}"


def _names_of_parts(uuids: set[str], load_nvml: Callable[[], Nvml]) -> dict[tuple[str, int, int], str]:
    """Return UUIDs of instances by UUID of the GPU, GPU instance and compute instance; empty without NVML."""
    try:
        nvml = load_nvml()
    except SourceError as error:
        log.info("MIG instances are named by their place: %s", error)
        return {}
    names = {}
    try:
        for uuid in uuids:
            for found in mig_instances(nvml, nvml.call("nvmlDeviceGetHandleByUUID", uuid.encode())):
                names[uuid, found.gpu_instance_id, found.compute_instance_id] = found.uuid
    except SourceError as error:
        log.info("MIG instances are named by their place: %s", error)
    finally:
        _close(nvml)
    return names


def _close(nvml: Nvml) -> None:
    try:
        nvml.close()
    except SourceError as error:
        log.debug("while closing NVML: %s", error)


_MEBIBYTE = 1 << 20


def describe_devices(
    found: EngineDevices,
    missing: Mapping[Entity, Mapping[str, MissingReason]],
    load_nvml: Callable[[], Nvml],
    cuda: CudaAttributes,
) -> dict[str, GpuDescription]:
    """Describe GPUs and instances by everything that is known of them.

    NVML knows more than DCGM's attributes (clocks, cores, bus width) and is asked first, by UUID: an engine on another
    host has GPUs that it does not find.

    Args:
        found: What the engine shows.
        missing: Metrics that an entity cannot give, and why.
        load_nvml: Makes the library.
        cuda: Attributes from the CUDA driver by UUID.

    Returns:
        Key -> description, in the order of the devices.
    """
    nvml: Nvml | None = None
    try:
        nvml = load_nvml()
    except SourceError as error:
        log.info("clocks, cores and bus width stay unknown: %s", error)
    try:
        described = {}
        for device in found.devices:
            facts = found.attributes[device.gpu_id]
            figures = cuda.get(gpu_uuid(facts), {})
            lacking = missing[device.entity]
            known = _by_nvml(nvml, device, gpu_uuid(facts), lacking, figures)
            described[device.key] = known or _by_dcgm(device, facts, lacking, figures)
        return described
    finally:
        if nvml is not None:
            try:
                nvml.close()
            except SourceError as error:
                log.debug("while closing NVML: %s", error)


def _by_nvml(
    nvml: Nvml | None, device: DcgmDevice, uuid: str, missing: Mapping[str, MissingReason], cuda: Mapping[str, float]
) -> GpuDescription | None:
    if nvml is None:
        return None
    try:
        handle = nvml.call("nvmlDeviceGetHandleByUUID", uuid.encode())
        driver = nvml.text("nvmlSystemGetDriverVersion")
        instance = None
        if device.part is not None:
            instance = next((i for i in mig_instances(nvml, handle) if i.uuid == device.key), None)
            if instance is None:
                return None
    except SourceError as error:
        log.debug("GPU %s: %s", uuid, error)
        return None
    return describe_device(nvml, Device(handle, uuid, device.gpu_id, instance), driver, cuda, missing)


def _by_dcgm(
    device: DcgmDevice, attributes: Any, missing: Mapping[str, MissingReason], cuda: Mapping[str, float]
) -> GpuDescription:
    known = attributes.identifiers
    figures = {
        "memory_bytes": (attributes.memoryUsage.fbTotal, _MEBIBYTE),
        "bar1_bytes": (attributes.memoryUsage.bar1Total, _MEBIBYTE),
        "power_limit_watts": (attributes.powerLimits.enforcedPowerLimit, 1),
        "default_power_limit_watts": (attributes.powerLimits.defaultPowerLimit, 1),
        "shutdown_temperature_celsius": (attributes.thermalSettings.shutdownTemp, 1),
    }
    static = [
        StaticAttribute(name, float(number * unit), StaticOrigin.DCGM)
        for name, (number, unit) in figures.items()
        if not is_blank_int32(number)
    ]
    static += [StaticAttribute(name, value, StaticOrigin.CUDA_DRIVER) for name, value in cuda.items()]
    memory = attributes.memoryUsage.fbTotal
    whole = GpuDescription(
        gpu_uuid=gpu_uuid(attributes),
        gpu_index=device.gpu_id,
        product_name=text_of(known.deviceName),
        pci_bus_id=text_of(known.pciBusId),
        framebuffer_bytes=0 if is_blank_int32(memory) else memory * _MEBIBYTE,
        driver_version=text_of(known.driverVersion),
        static_attributes=tuple(static),
        missing_metrics=missing,
    )
    if device.part is None:
        return whole
    part = {
        "mig_gpu_instance_id": device.part.gpu_instance_id,
        "mig_compute_instance_id": device.part.compute_instance_id,
        "mig_gpu_instance_slices": device.part.slices,
    }
    return dataclasses.replace(
        whole,
        mig_uuid=device.key,
        framebuffer_bytes=0,
        static_attributes=tuple(StaticAttribute(n, float(v), StaticOrigin.DCGM) for n, v in part.items()),
    )


# How long the engine keeps what was not fetched. Long enough for a stalled host, short because it is memory of the
# engine: 100 values per field at 10 Hz.
_KEEP_S = 10.0
_KEEP_INTERVALS = 3.0


class Watch:
    """A field group watched on a group of GPUs.

    Args:
        engine: An open engine.
        name: What the watch is for, part of its name in the engine.
        entities: GPUs or MIG instances.
        field_ids: Numbers of the fields.
        interval_s: Seconds between measurements.
        keep_s: Seconds for which the engine keeps values; 0 for what a stalled host needs.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        entities: Sequence[Entity],
        field_ids: Sequence[int],
        interval_s: float,
        keep_s: float = 0.0,
    ) -> None:
        self.name = name
        self.entities = tuple(entities)
        self.field_ids = tuple(field_ids)
        self._engine = engine
        self._interval_s = interval_s
        self._keep_s = keep_s or max(_KEEP_S, _KEEP_INTERVALS * interval_s)
        self._group: Any = None
        self._fields: Any = None
        # Of one entity and of one field, for history; made when first asked for.
        self._groups_of_one: dict[Entity, Any] = {}
        self._fields_of_one: dict[int, Any] = {}

    def open(self) -> None:
        """Make the groups and start recording.

        Raises:
            DriverCallError: The engine refuses; one field that a GPU lacks is enough when it is a profiling field.
        """
        name = self._new_name()
        try:
            self._group = self._engine.make_group(name, self.entities)
            self._fields = self._engine.make_field_group(name, self.field_ids)
            self._watch()
        except DriverCallError:
            self.close()
            raise

    def history(self, since_us: int) -> list[EngineValue]:
        """Return everything that was recorded since a time: one request for each entity and field.

        Raises:
            DriverCallError: The engine refuses; :class:`EngineLostError` when it is gone.
        """
        return self._values_since(self._group, self._fields, since_us)

    def history_of(self, entity: Entity, field_id: int, since_us: int) -> list[EngineValue]:
        """Return what was recorded of one field of one entity since a time: three requests.

        Raises:
            DriverCallError: The engine refuses; :class:`EngineLostError` when it is gone.
        """
        if entity not in self._groups_of_one:
            self._groups_of_one[entity] = self._engine.make_group(self._new_name(), [entity])
        if field_id not in self._fields_of_one:
            self._fields_of_one[field_id] = self._engine.make_field_group(self._new_name(), [field_id])
        return self._values_since(self._groups_of_one[entity], self._fields_of_one[field_id], since_us)

    def renew(self) -> None:
        """Stop and start recording, which brings stuck profiling fields back.

        Raises:
            DriverCallError: The engine refuses.
        """
        self._engine.unwatch(self.name, self._group, self._fields)
        self._watch()

    def close(self) -> None:
        """Stop recording and give the groups back."""
        fields, self._fields = self._fields, None
        group, self._group = self._group, None
        releases: list[Callable[[], None]] = []
        if fields is not None:
            releases.append(lambda: self._engine.unwatch(self.name, group, fields))
        releases += [
            functools.partial(self._engine.delete_field_group, one)
            for one in (fields, *self._fields_of_one.values())
            if one is not None
        ]
        releases += [
            functools.partial(self._engine.delete_group, one)
            for one in (group, *self._groups_of_one.values())
            if one is not None
        ]
        self._fields_of_one.clear()
        self._groups_of_one.clear()
        for release in releases:
            try:
                release()
            except EngineLostError:
                # The engine cleans up after a connection that ended.
                return
            except DriverCallError:
                continue

    def _new_name(self) -> str:
        # A name is taken until its owner disconnects, and another agent may watch the same engine.
        return f"gpusonde-{self.name}-{uuid.uuid4().hex[:12]}"

    def _watch(self) -> None:
        self._engine.watch(self.name, self._group, self._fields, self._interval_s, self._keep_s)

    def _values_since(self, group: Any, fields: Any, since_us: int) -> list[EngineValue]:
        """Fetch what was recorded since a time.

        The bindings' own collectors are not used: some return only the last of several values, repeat the last one
        when there is nothing new, or drop the rest of a batch behind a value they do not know. The raw callback does
        not.
        """
        agent = self._engine.bindings.agent
        layout = plain_layout(self._engine.bindings.structs.c_dcgmFieldValue_v1)
        entity_of = {tuple(entity): entity for entity in self.entities}
        values: list[EngineValue] = []
        failures: list[Exception] = []

        def take(entity_group: int, entity_id: int, rows: Any, count: int, _user_data: Any) -> int:
            """Copy values out of the engine's memory; called by ``dcgmGetValuesSince_v2``."""
            try:
                entity, start, stride = entity_of[entity_group, entity_id], 0, 0
                if layout is not None:
                    start, stride = ctypes.addressof(rows.contents), ctypes.sizeof(layout)
                for i in range(count):
                    value = rows[i] if layout is None else layout.from_address(start + i * stride)
                    # A field without news is answered too, with time 0.
                    if value.ts >= since_us and value.ts:
                        values.append(EngineValue(entity, value.fieldId, value.ts, read_number(value)))
            except Exception as error:
                # ctypes would print it and go on without the rest of the batch.
                failures.append(error)
            return 0

        callback = agent.dcgmFieldValueEntityEnumeration_f(take)
        try:
            self._engine.values_since(self.name, group, fields, since_us, callback)
        except DriverCallError as error:
            if error.code != NO_DATA:
                raise
        if failures:
            raise failures[0]
        return values


class LatestValues:
    """The newest values of the same fields of some entities, read by one request into a buffer that is kept.

    Reading history costs one request per entity and field, and each makes library and engine clear 4 MiB. This is one
    for all, and misses a value only where the engine measured twice between two looks.

    Args:
        engine: An open engine.
        entities: GPUs or MIG instances, not both.
        plain: Fields of plain metrics, read every time.
        profiling: Fields of profiling metrics, read every time.
        slow: Fields that are read when asked for; XIDs may be among them.
    """

    def __init__(
        self,
        engine: Engine,
        entities: Sequence[Entity],
        plain: Sequence[int],
        profiling: Sequence[int],
        slow: Sequence[int],
    ) -> None:
        self.entities = tuple(entities)
        self.field_ids = (*plain, *profiling, *slow)
        self.plain = slice(0, len(plain))
        self.profiling = slice(len(plain), len(plain) + len(profiling))
        self.fast = slice(0, self.profiling.stop)
        self._engine = engine
        structs = engine.bindings.structs
        buffer = (structs.c_dcgmFieldValue_v2 * (len(entities) * len(self.field_ids)))()
        pairs = (structs.c_dcgmGroupEntityPair_t * len(entities))()
        for pair, entity in zip(pairs, entities, strict=True):
            pair.entityGroupId, pair.entityId = entity
        layout = value_layout(structs.c_dcgmFieldValue_v2)
        self._requests = {}
        for everything, fields in ((False, self.field_ids[self.fast]), (True, self.field_ids)):
            shape = (len(entities), len(fields))
            values = np.frombuffer(buffer, layout, shape[0] * shape[1]).reshape(shape)
            numbers = (ctypes.c_uint16 * len(fields))(*fields)
            counts = ctypes.c_uint(shape[0]), ctypes.c_uint(shape[1])
            self._requests[everything] = (values, (pairs, counts[0], numbers, counts[1], ctypes.c_uint(0), buffer))
        limits = [None if f == XID_FIELD else limits_of(f) for f in self.field_ids]
        self._scale = np.array([1.0 if known is None else known.scale for known in limits])
        self._least = np.array([0.0 if known is None else known.least for known in limits])
        self._most = np.array([math.inf if known is None else known.most for known in limits])
        self._is_ratio = np.array([known is not None and known.is_ratio for known in limits])
        self._is_share = np.array([f != XID_FIELD and METRIC_OF_FIELD[f].unit is Unit.RATIO for f in self.field_ids])
        fast = self.field_ids[self.fast]
        self._ratio_places = np.flatnonzero(self._is_ratio[self.fast])
        names = [METRIC_OF_FIELD[f].name for f in fast]
        self._utilization_place = names.index("gpu_utilization") if "gpu_utilization" in names else None
        self._counts = np.ones((len(entities), len(fast)), dtype=bool)
        self._are_parts = bool(entities) and entities[0].group != GPU
        self.seen_us: npt.NDArray[np.int64] = np.zeros((len(entities), len(self.field_ids)), dtype=np.int64)
        self._take(self._requests[True][0])

    def read(self, everything: bool) -> None:
        """Ask for the newest values; the attributes then hold them, by entity and field.

        ``times_us`` is when they were measured, 0 where nothing was; ``before_us`` what that was at the reading before;
        ``fresh`` where the two differ; ``numbers`` are in the catalogue's units, NaN where there is none; ``statuses``
        the engine's codes; ``capped`` how many ratios of each MIG instance were above 1.

        Args:
            everything: The slow fields too.

        Raises:
            DriverCallError: The engine refuses; :class:`EngineLostError` when it is gone.
        """
        values, arguments = self._requests[everything]
        self._engine.latest_values("latest values", *arguments)
        self._take(values)

    def reason(self, row: int, place: int) -> MissingReason:
        """Return why a number is NaN."""
        value = self._values[row, place]
        known = read_reason(value)
        if known is not None:
            return known
        number = float(value["double"] if value["type"] == ord("d") else value["integer"])
        return refusal_of(self.field_ids[place], number)

    def reasons(self, row: int, places: Sequence[int] | npt.NDArray[np.intp]) -> Callable[[int], MissingReason]:
        """Return :meth:`reason` of the i-th of some places of a row; good until the next reading."""
        return lambda i: self.reason(row, int(places[i]))

    @property
    def holds_everything(self) -> bool:
        """Whether the reading was one of the slow fields too."""
        return bool(self.numbers.shape[1] == len(self.field_ids))

    def expect(self, missing: Mapping[int, Collection[int]]) -> None:
        """Note what is never measured: row -> fields of which a blank says nothing."""
        for row, fields in missing.items():
            self._counts[row] = [f not in fields for f in self.field_ids[self.fast]]

    def whole_rows(self) -> tuple[list[bool], list[list[tuple[str, int, int]]], list[tuple[float, float]]]:
        """Return by row whether all fast values are new numbers, when the parts were measured, and the activity."""
        numbers, times_us = self.numbers[:, self.fast], self.times_us[:, self.fast]
        counted = self._counts
        whole = ~((np.isnan(numbers) | ~self.fresh[:, self.fast]) & counted).any(axis=1)
        if not counted.all():
            # What is never measured has no time either.
            times_us = np.where(counted, times_us, times_us.max(axis=1, initial=0)[:, np.newaxis])
        spans = []
        for name, part in ((PLAIN, self.plain), (PROFILING, self.profiling)):
            if part.stop > part.start:
                first_us, last_us = times_us[:, part].min(axis=1).tolist(), times_us[:, part].max(axis=1).tolist()
                spans.append([(name, first, last) for first, last in zip(first_us, last_us, strict=True)])
        ratios = numbers[:, self._ratio_places]
        busiest = np.fmax.reduce(ratios, axis=1, initial=np.nan).tolist()
        place = self._utilization_place
        utilization = [math.nan] * len(busiest) if place is None else numbers[:, place].tolist()
        return (
            whole.tolist(),
            [list(row) for row in zip(*spans, strict=True)],
            list(zip(utilization, busiest, strict=True)),
        )

    @property
    def shows_work(self) -> bool:
        """Whether some GPU did something just now."""
        shares = self.numbers[:, self.fast][:, self._is_share[self.fast]]
        return bool((shares > 0).any())

    def continue_from(self, before: Mapping[tuple[Entity, int], int]) -> None:
        """Go on after what another one has seen, so that nothing comes twice."""
        for row, entity in enumerate(self.entities):
            for place, field_id in enumerate(self.field_ids):
                self.seen_us[row, place] = before.get((entity, field_id), 0)

    def seen(self) -> dict[tuple[Entity, int], int]:
        """Return the times of what was read, for :meth:`continue_from`."""
        return {
            (entity, field_id): int(self.seen_us[row, place])
            for row, entity in enumerate(self.entities)
            for place, field_id in enumerate(self.field_ids)
        }

    def _take(self, values: npt.NDArray[np.void]) -> None:
        count = values.shape[1]
        self._values = values
        self.statuses = values["status"].copy()
        self.times_us = values["time_us"].copy()
        self.before_us = self.seen_us[:, :count].copy()
        self.fresh = (self.times_us != self.before_us) & (self.times_us != 0)
        np.copyto(self.seen_us[:, :count], self.times_us, where=self.fresh)
        numbers = decode_numbers(values)
        numbers[~((numbers >= self._least[:count]) & (numbers <= self._most[:count]))] = np.nan
        self.capped: npt.NDArray[np.int64] | None = None
        if self._are_parts:
            # NVIDIA/DCGM issue 152: the engine relates some ratios of an instance to fewer SMs than it has.
            above = (numbers > 1.0) & self._is_ratio[:count]
            self.capped = (above & self.fresh).sum(axis=1)
            numbers[above] = 1.0
        numbers *= self._scale[:count]
        self.numbers = numbers
