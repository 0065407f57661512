"""Readers of metrics through NVML: every tick, every few seconds, and GPM."""
