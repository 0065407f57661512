"""Epoch latency of a training job on GPUs that it has not run on."""
