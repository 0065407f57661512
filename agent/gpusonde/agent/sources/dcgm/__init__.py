"""DCGM: NVIDIA's data centre GPU manager, read through the Python bindings that come with it."""
