"""The process of trackers: ``python -m gpusonde.collector.tracking.worker DESCRIPTOR``.

It holds trackers and nothing else: everything that must outlive it is in the collector's store. It ends when the pipe
does, which is also what a collector that was killed leaves behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from multiprocessing.connection import Connection

from gpusonde.collector.tracking.remote import Drop, Failed, Finish, GiveState, Make, Request, Restore, Standing, Update
from gpusonde.epoch_detect import EpochDetection, EpochTracker

# Acknowledgements come first.
_NICENESS = 2


class Trackers:
    """Carries requests out."""

    def __init__(self) -> None:
        self._trackers: dict[int, EpochTracker] = {}
        self._told: dict[int, EpochDetection | None] = {}

    def handle(self, request: Request) -> Standing | Failed | None:
        """Carry one request out; a tracker that fails is gone, the others are not touched."""
        if isinstance(request, Drop):
            self._forget(request.tracker)
            return None
        try:
            return self._standing(request)
        except Exception as error:  # whatever it is, it is the caller's to judge
            self._forget(request.tracker)
            return Failed(repr(error))

    def _standing(self, request: Request) -> Standing:
        number = request.tracker
        if isinstance(request, Make):
            self._trackers[number], self._told[number] = EpochTracker(request.metrics), None
        elif isinstance(request, Restore):
            tracker = self._trackers[number] = EpochTracker.restore(request.state)
            self._told[number] = tracker.detection
            shares = tracker.shares() if tracker.epochs else None
            return Standing([], tracker.next_analysis_s, tracker.epochs, tracker.detection, shares)
        tracker = self._trackers[number]
        if isinstance(request, GiveState):
            return Standing([], tracker.next_analysis_s, state=tracker.state())
        events = []
        if isinstance(request, Update):
            events = tracker.update(request.time_s, request.values, exhaustive=request.exhaustive)
        elif isinstance(request, Finish):
            events = tracker.finish()
        found = tracker.detection
        if not events and found is self._told[number]:
            return Standing(events, tracker.next_analysis_s)
        self._told[number] = found
        return Standing(events, tracker.next_analysis_s, tracker.epochs, found, tracker.shares())

    def _forget(self, number: int) -> None:
        self._trackers.pop(number, None)
        self._told.pop(number, None)


def serve(pipe: Connection) -> None:
    """Answer requests in their order until the other end is closed."""
    trackers = Trackers()
    while True:
        try:
            request = pipe.recv()
            reply = trackers.handle(request)
            if reply is not None:
                pipe.send(reply)
        except (EOFError, OSError):
            return


def main() -> None:
    """Serve the descriptor that the collector passed on."""
    # The collector ends it by closing the pipe, after its last requests; Ctrl-C reaches the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        os.nice(_NICENESS)
    serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
