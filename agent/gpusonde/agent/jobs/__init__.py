"""Which job holds which GPU: from the scheduler where it tells, else from the processes on the GPU."""

from gpusonde.agent.jobs.build import JobParts, make_watcher
from gpusonde.agent.jobs.watcher import JobWatcher

__all__ = ["JobParts", "JobWatcher", "make_watcher"]
