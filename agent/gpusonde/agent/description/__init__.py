"""What the agent says once: the host, its GPUs, their static attributes."""
