"""A stand-in for DCGM: an engine with a clock of its own, and modules named like NVIDIA's bindings in front of it."""
