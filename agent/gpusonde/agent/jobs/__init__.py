"""Which job owns which GPU: from the scheduler where it tells, else from the processes on the GPU.

``ownership`` has the words (``Owner``, ``GpuOwnership``); ``sources``, ``kubelet`` and ``processes`` are asked, and
``watcher`` records what changed.
"""

from gpusonde.agent.jobs.watcher import JobParts, JobWatcher, make_watcher

__all__ = ["JobParts", "JobWatcher", "make_watcher"]
