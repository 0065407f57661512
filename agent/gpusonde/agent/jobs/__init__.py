"""Which job holds which GPU: from the scheduler where it tells, else from the processes on the GPU."""

from gpusonde.agent.jobs.watcher import JobParts, JobWatcher, make_watcher

__all__ = ["JobParts", "JobWatcher", "make_watcher"]
