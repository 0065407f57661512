"""What SkyPilot's own skylet does with an idle cluster on which a job runs for ever: ``HOME`` is an empty folder.

Prints JSON: whether its autostop event would stop the cluster, with the setting that waits for jobs and with the one
that ``gpusonde idle --host`` is followed by.
"""

import json
from unittest import mock

from sky.skylet import autostop_lib, events, job_lib


def would_stop(minutes, wait_for):
    """Whether the event that comes each minute stops the cluster."""
    autostop_lib.set_autostop(minutes, "cloudvmraybackend", wait_for, down=False)
    with (
        mock.patch.object(events.StopEvent, "_stop_cluster") as stop,
        mock.patch.object(autostop_lib, "set_last_active_time_to_now"),
        mock.patch.object(events.managed_job_state, "get_num_alive_jobs", return_value=0),
    ):
        events.StopEvent()._run()
    return stop.called


def main():
    """Print what happens."""
    job, _ = job_lib.add_job("training", "user", "run-1", "1x", "")
    job_lib.set_job_started(job)
    waits = autostop_lib.AutostopWaitFor
    found = {"jobs": would_stop(0, waits.JOBS), "none": would_stop(0, waits.NONE), "off": would_stop(-1, waits.NONE)}
    print("STOPS " + json.dumps(found))


if __name__ == "__main__":
    main()
