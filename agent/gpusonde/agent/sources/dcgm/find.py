"""Finds the GPUs and MIG instances behind an engine, and the names by which the fleet knows them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpusonde.agent.sources.base import SourceError, SourceUnavailableError
from gpusonde.agent.sources.dcgm.connection.engine import Engine
from gpusonde.agent.sources.dcgm.connection.entities import GPU, DcgmDevice, Entity, Part
from gpusonde.agent.sources.dcgm.connection.errors import DcgmCallError, EngineLostError
from gpusonde.agent.sources.dcgm.values import text_of
from gpusonde.agent.sources.nvml.library import Nvml
from gpusonde.agent.sources.nvml.mig import mig_instances

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """What an engine shows.

    Attributes:
        attributes: DCGM's id of a GPU -> its ``c_dcgmDeviceAttributes``.
        devices: What is to be sampled, each GPU before its instances.
    """

    attributes: Mapping[int, Any]
    devices: tuple[DcgmDevice, ...]


def find(engine: Engine, load_nvml: Callable[[], Nvml]) -> Found:
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
        except EngineLostError:
            raise
        except DcgmCallError as error:
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
    for gpu_id, uuid in uuids.items():
        devices.append(DcgmDevice(uuid, gpu_id, Entity(GPU, gpu_id)))
        devices += [
            DcgmDevice(_name_of(part, uuid, names), gpu_id, part.entity, part)
            for part in parts
            if part.gpu_id == gpu_id
        ]
    return Found(attributes, tuple(devices))


def gpu_uuid(attributes: Any) -> str:
    """Return the UUID in DCGM's attributes of a GPU."""
    return text_of(attributes.identifiers.uuid)


def _name_of(part: Part, uuid: str, names: Mapping[tuple[str, int, int], str]) -> str:
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
