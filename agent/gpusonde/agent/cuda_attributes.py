"""Print the CUDA driver's attributes of every GPU as JSON: ``python -m gpusonde.agent.cuda_attributes``.

NVML does not know the number of SMs, the L2 cache or the shared memory; the CUDA driver does. Asking it means
``cuInit``, which opens device files and obeys CUDA_VISIBLE_DEVICES for the life of the process. So this runs in a
process of its own that ends at once; it makes no context and takes no device memory. Standard library only.

Source of the attribute numbers: ``CUdevice_attribute`` in ``cuda.h``.
"""

from __future__ import annotations

import ctypes
import json
import sys
import uuid

_ATTRIBUTES = {
    "sm_count": (16, 1.0),
    "l2_cache_bytes": (38, 1.0),
    "shared_memory_bytes_per_sm": (81, 1.0),
    "shared_memory_bytes_per_block": (8, 1.0),
    "shared_memory_bytes_per_block_optin": (97, 1.0),
    "max_threads_per_sm": (39, 1.0),
    "max_blocks_per_sm": (106, 1.0),
    "registers_per_sm": (82, 1.0),
    "warp_size": (10, 1.0),
    "async_engine_count": (40, 1.0),
    "concurrent_kernels": (31, 1.0),
}


def read_attributes(cuda: ctypes.CDLL) -> dict[str, dict[str, float]]:
    """Return GPU UUID -> attribute -> value, as far as the driver answers."""
    if cuda.cuInit(0) != 0:
        return {}
    count = ctypes.c_int()
    if cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return {}
    found = {}
    for ordinal in range(count.value):
        device = ctypes.c_int()
        raw = (ctypes.c_ubyte * 16)()
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) != 0:
            continue
        if cuda.cuDeviceGetUuid_v2(ctypes.byref(raw), device) != 0:
            continue
        found[f"GPU-{uuid.UUID(bytes=bytes(raw))}"] = _attributes(cuda, device)
    return found


def _attributes(cuda: ctypes.CDLL, device: ctypes.c_int) -> dict[str, float]:
    values = {}
    value = ctypes.c_int()
    for name, (attribute, scale) in _ATTRIBUTES.items():
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) == 0:
            values[name] = value.value * scale
    return values


def main() -> int:
    """Print the JSON object; empty when there is no CUDA driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        print("{}")
        return 0
    print(json.dumps(read_attributes(cuda)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
