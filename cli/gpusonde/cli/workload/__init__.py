"""What `gpusonde workload` does, one module per action."""
