"""``Watch``: fields that the engine records for some GPUs, and what it recorded since the last look.

Also finds the GPUs and MIG instances behind an engine, the names by which the fleet knows them, and what DCGM, and NVML
where it is there, tell of a GPU beside its metrics.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpusonde.agent.inventory import CudaAttributes
from gpusonde.agent.sources.base import GpuDescription, StaticAttribute, StaticOrigin
from gpusonde.agent.sources.dcgm.bindings import GPU, DcgmDevice, Entity, MigPart
from gpusonde.agent.sources.dcgm.connection import NO_DATA, Engine
from gpusonde.agent.sources.dcgm.gpu import EngineValue, is_blank_int32, plain_layout, read_number, text_of
from gpusonde.agent.sources.nvml.gpu import Device, describe_device, mig_instances
from gpusonde.agent.sources.nvml.library import Nvml
from gpusonde.errors import CallRefusedError, DriverCallError, EngineLostError, SourceError, SourceUnavailableError
from gpusonde.telemetry import MissingReason

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineDevices:
    """What an engine shows.

    Attributes:
        attributes: DCGM's id of a GPU -> its ``c_dcgmDeviceAttributes``.
        devices: What is to be sampled, each GPU before its instances.
    """

    attributes: Mapping[int, Any]
    devices: tuple[DcgmDevice, ...]


def find_engine_devices(engine: Engine, load_nvml: Callable[[], Nvml]) -> EngineDevices:
    """Ask the engine for its GPUs and instances.

    Args:
        engine: An open engine.
        load_nvml: Makes NVML, which knows the UUIDs of instances; the engine does not.

    Raises:
        SourceUnavailableError: There is no GPU that answers.
        EngineLostError: The engine is gone.
    """
    attributes = {}
    for gpu_id in engine.gpu_ids():
        try:
            attributes[gpu_id] = engine.gpu_attributes(gpu_id)
        except CallRefusedError as error:
            log.warning("GPU %d cannot be sampled (%s); going on with the others", gpu_id, error)
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
    return EngineDevices(attributes, tuple(devices))


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
_OVERLAP_INTERVALS = 2.0


class Watch:
    """A field group watched on a group of GPUs.

    The bindings' own collectors are not used: some return only the last of several values, repeat the last one when
    there is nothing new, or drop the rest of a batch behind a value they do not know. The raw callback does not.

    Args:
        engine: An open engine.
        name: What the watch is for, part of its name in the engine.
        entities: GPUs or MIG instances.
        field_ids: Numbers of the fields.
        interval_s: Seconds between measurements.
        wall_ns: Unix time in nanoseconds.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        entities: Sequence[Entity],
        field_ids: Sequence[int],
        interval_s: float,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.name = name
        self.entities = tuple(entities)
        self.field_ids = tuple(field_ids)
        self._engine = engine
        self._interval_s = interval_s
        self._wall_ns = wall_ns
        self._group: Any = None
        self._fields: Any = None
        self._since_us = 0
        self._seen_us: dict[tuple[int, int, int], int] = {}
        self._values: list[EngineValue] = []
        self._failure: Exception | None = None
        # Kept for as long as the engine may call it: ctypes does not hold it.
        self._layout = plain_layout(engine.bindings.structs.c_dcgmFieldValue_v1)
        self._entity_of = {tuple(entity): entity for entity in entities}
        self._callback = engine.bindings.agent.dcgmFieldValueEntityEnumeration_f(self._take)

    def open(self) -> None:
        """Make the groups and start recording.

        Raises:
            DriverCallError: The engine refuses; one field that a GPU lacks is enough when it is a profiling field.
        """
        # A name is taken until its owner disconnects, and another agent may watch the same engine.
        name = f"gpusonde-{self.name}-{uuid.uuid4().hex[:12]}"
        self._since_us = self._wall_ns() // 1000
        try:
            self._group = self._engine.make_group(name, self.entities)
            self._fields = self._engine.make_field_group(name, self.field_ids)
            self._watch()
        except DriverCallError:
            self.close()
            raise

    def read(self) -> list[EngineValue]:
        """Return what was recorded since the previous call, in the engine's order.

        Raises:
            DriverCallError: The engine refuses; :class:`EngineLostError` when it is gone.
        """
        now_us = self._wall_ns() // 1000
        if self._since_us > now_us + 1_000_000:
            # The clock was set back: nothing would be newer than before for as long as the step was.
            self._since_us = now_us
            self._seen_us.clear()
        # A list of its own for each call: one that hangs may yet come back and go on filling its.
        values: list[EngineValue] = []
        self._values, self._failure = values, None
        try:
            following_us = self._engine.values_since(
                self.name, self._group, self._fields, self._since_us, self._callback
            )
        except DriverCallError as error:
            if error.code != NO_DATA:
                raise
        else:
            self._since_us = self._resume_from(following_us)
        if self._failure is not None:
            raise self._failure
        return values

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
            releases += [
                lambda: self._engine.unwatch(self.name, group, fields),
                lambda: self._engine.delete_field_group(fields),
            ]
        if group is not None:
            releases.append(lambda: self._engine.delete_group(group))
        for release in releases:
            try:
                release()
            except EngineLostError:
                # The engine cleans up after a connection that ended.
                return
            except DriverCallError:
                continue

    def _watch(self) -> None:
        keep_s = max(_KEEP_S, _KEEP_INTERVALS * self._interval_s)
        self._engine.watch(self.name, self._group, self._fields, self._interval_s, keep_s)

    def _resume_from(self, following_us: int) -> int:
        """Return the time to ask from next.

        The engine measures while it answers, one field after the other, and tells the time after the newest value it
        gave. A field that it answered for just before measuring it would lose that value, so the oldest of the fields'
        newest times counts, for at most two intervals.
        """
        oldest_us = min(self._seen_us.values(), default=following_us) + 1
        overlap_us = round(_OVERLAP_INTERVALS * self._interval_s * 1e6)
        return max(min(following_us, oldest_us), following_us - overlap_us)

    def _take(self, entity_group: int, entity_id: int, values: Any, count: int, _user_data: Any) -> int:
        """Copy values out of the engine's memory; called by ``dcgmGetValuesSince_v2``."""
        try:
            entity = self._entity_of[entity_group, entity_id]
            append = self._values.append
            plain, start = self._layout, 0
            if plain is not None:
                start, stride = ctypes.addressof(values.contents), ctypes.sizeof(plain)
            for i in range(count):
                value = values[i] if plain is None else plain.from_address(start + i * stride)
                # A value may come twice: see _resume_from, and some versions repeat the last one. 0 is no time.
                key, time_us = (entity_group, entity_id, value.fieldId), value.ts
                if time_us:
                    if time_us <= self._seen_us.get(key, 0):
                        continue
                    self._seen_us[key] = time_us
                append(EngineValue(entity, value.fieldId, time_us, read_number(value)))
        except Exception as error:
            # ctypes would print it and go on without the rest of the batch.
            self._failure = self._failure or error
        return 0
