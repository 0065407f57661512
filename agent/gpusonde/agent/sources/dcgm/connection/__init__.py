"""The way to a DCGM engine: bindings, calls that end in time, what the engine calls its GPUs."""
