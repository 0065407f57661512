"""Finds NVIDIA's Python bindings of DCGM where its packages put them, and names what an engine measures.

The bindings (``pydcgm``, ``dcgm_agent``, ``dcgm_structs`` ...) are flat modules in a folder of the DCGM package. They
are on no package index, and they are not vendored here because they must match the installed ``libdcgm``. An engine
measures GPUs, and the MIG instances of those that are split.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gpusonde.errors import SourceUnavailableError

# dcgm_fields.h: DCGM_FE_GPU, DCGM_FE_GPU_I, DCGM_FE_GPU_CI
GPU, GPU_INSTANCE, COMPUTE_INSTANCE = 1, 4, 5


class Entity(NamedTuple):
    """One thing that the engine measures.

    Attributes:
        group: Its kind, ``DCGM_FE_*``.
        id: DCGM's number of it.
    """

    group: int
    id: int


@dataclass(frozen=True)
class MigPart:
    """One MIG compute instance.

    Attributes:
        gpu_id: DCGM's id of the whole GPU.
        entity: The GPU instance, whose values are the compute instance's.
        gpu_instance_id: NVML's number of the GPU instance.
        compute_instance_id: NVML's number of the compute instance inside it.
        slices: Slices of the GPU that the instance has; 0 when unknown.
    """

    gpu_id: int
    entity: Entity
    gpu_instance_id: int
    compute_instance_id: int
    slices: int


def read_hierarchy(hierarchy: Any) -> tuple[MigPart, ...]:
    """Return the compute instances in a ``c_dcgmMigHierarchy_v2``.

    A GPU instance without compute instances runs nothing and is measured by nobody.
    """
    rows = [hierarchy.entityList[i] for i in range(hierarchy.count)]
    instances = {int(row.entity.entityId): row for row in rows if row.entity.entityGroupId == GPU_INSTANCE}
    parts = []
    for row in rows:
        whole = instances.get(int(row.parent.entityId))
        if row.entity.entityGroupId != COMPUTE_INSTANCE or whole is None:
            continue
        parts.append(
            MigPart(
                gpu_id=int(whole.parent.entityId),
                entity=Entity(GPU_INSTANCE, int(whole.entity.entityId)),
                gpu_instance_id=int(whole.info.nvmlInstanceId),
                compute_instance_id=int(row.info.nvmlComputeInstanceId),
                slices=int(whole.info.nvmlProfileSlices),
            )
        )
    return tuple(parts)


@dataclass(frozen=True)
class DcgmDevice:
    """A GPU or MIG instance to sample.

    Attributes:
        key: Its UUID in the fleet.
        gpu_id: DCGM's id of the whole GPU.
        entity: Whose values are its.
        part: The MIG instance; None for the whole GPU.
    """

    key: str
    gpu_id: int
    entity: Entity
    part: MigPart | None = None


# DCGM 4, DCGM 3.
INSTALLED_FOLDERS = (
    Path("/usr/share/datacenter-gpu-manager-4/bindings/python3"),
    Path("/usr/local/dcgm/bindings/python3"),
)
_LIBRARY_NOT_FOUND = -25
_NEEDED = ("dcgmGetValuesSince_v2", "dcgmFieldValueEntityEnumeration_f", "dcgmProfGetSupportedMetricGroups")


@dataclass(frozen=True)
class Bindings:
    """The modules of one installation.

    Attributes:
        pydcgm: Classes around the engine: ``DcgmHandle``, ``DcgmFieldGroup`` ...
        agent: The calls of ``dcgm_agent.h``.
        structs: Error codes, exceptions, ctypes structures.
        folder: Where they were found.
    """

    pydcgm: Any
    agent: Any
    structs: Any
    folder: str

    @property
    def library_version(self) -> str:
        """Version of ``libdcgm``, for example "4.4.2"; empty when it does not tell."""
        try:
            facts = self.agent.dcgmVersionInfo().rawBuildInfoString
        except (self.structs.DCGMError, AttributeError):
            return ""
        if isinstance(facts, bytes):
            facts = facts.decode(errors="replace")
        pairs = (fact.partition(":") for fact in facts.split(";"))
        return next((value for key, _, value in pairs if key == "version"), "")


def load_bindings(folder: str = "", installed: Sequence[Path] = INSTALLED_FOLDERS) -> Bindings:
    """Import the bindings and load ``libdcgm``.

    Args:
        folder: Where the bindings are; empty to look in the folders of the packages, then on Python's own path.
        installed: The folders of the packages, the preferred one first.

    Raises:
        SourceUnavailableError: No bindings, or none that goes with a library; the message tells each place and what
            is wrong there.
    """
    candidates: tuple[Path | None, ...] = (Path(folder),) if folder else (*installed, None)
    refusals = []
    for candidate in candidates:
        try:
            return _import(candidate)
        except SourceUnavailableError as error:
            refusals.append(f"{candidate or 'Python path'}: {error}")
    raise SourceUnavailableError(
        f"the Python bindings of DCGM were not found ({'; '.join(refusals)}): install DCGM's package "
        "(datacenter-gpu-manager-4-core, or datacenter-gpu-manager for version 3), or set source.dcgm_bindings to the "
        "folder that holds pydcgm.py"
    )


def _import(folder: Path | None) -> Bindings:
    added = False
    if folder is not None:
        if not (folder / "pydcgm.py").is_file():
            raise SourceUnavailableError("no pydcgm.py")
        if str(folder) not in sys.path:
            # At the end: developers' copies hold modules called "utils" and "logger".
            sys.path.append(str(folder))
            added = True
    try:
        return _import_modules(folder)
    except SourceUnavailableError:
        if added:
            sys.path.remove(str(folder))
            _forget_modules(str(folder))
        raise


def _import_modules(folder: Path | None) -> Bindings:
    try:
        structs = importlib.import_module("dcgm_structs")
    except ImportError as error:
        raise SourceUnavailableError("no module dcgm_structs" if folder is None else str(error)) from error
    try:
        # Before pydcgm: it loads the library, and an import of the rest cannot tell that there is none.
        structs._dcgmInit()
        pydcgm = importlib.import_module("pydcgm")
        agent = importlib.import_module("dcgm_agent")
    except ImportError as error:
        raise SourceUnavailableError(str(error)) from error
    except structs.DCGMError as error:
        if error.value == _LIBRARY_NOT_FOUND:
            raise SourceUnavailableError(
                "the libdcgm of the same major version is not installed: it is looked for in LD_LIBRARY_PATH and the "
                "system's library folders, not beside the bindings"
            ) from error
        raise SourceUnavailableError(f"libdcgm cannot be used: {error}") from error
    if not all(hasattr(agent, name) for name in _NEEDED):
        raise SourceUnavailableError("bindings older than DCGM 3")
    found = os.path.dirname(getattr(structs, "__file__", "") or "")
    if folder is not None and Path(found) != folder:
        raise SourceUnavailableError(f"bindings of {found} are loaded already")
    return Bindings(pydcgm, agent, structs, found)


def _forget_modules(folder: str) -> None:
    for name, module in list(sys.modules.items()):
        if os.path.dirname(getattr(module, "__file__", None) or "") == folder:
            del sys.modules[name]
