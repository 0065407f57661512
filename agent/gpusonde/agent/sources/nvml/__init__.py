"""NVIDIA's management library as a source: GPM metrics where the device has them, plain NVML elsewhere."""
