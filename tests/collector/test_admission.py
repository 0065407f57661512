"""What the collector says and does while its store cannot be written."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from gpusonde.collector.ingest.admission import AdmissionControl
from gpusonde.errors import StoreFullError


class FullStore:
    """A store on a full disk, until so many probes were made."""

    def __init__(self, probes: int) -> None:
        self.probes = probes

    def check_writable(self) -> None:
        self.probes -= 1
        if self.probes > 0:
            raise StoreFullError("no space left for data; free some")


class Collecting(logging.Handler):
    """Keeps the lines of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def test_a_full_disk_is_said_once_and_its_end_once(request):
    changes = []
    log = logging.getLogger("gpusonde.collector.ingest.admission")
    handler = Collecting()
    # A handler of its own, whatever the command's tests have made of the loggers above it.
    log.addHandler(handler)
    request.addfinalizer(lambda: log.removeHandler(handler))
    request.addfinalizer(lambda: log.setLevel(logging.NOTSET))
    log.setLevel(logging.INFO)

    async def scenario():
        opened = asyncio.Event()

        def on_change(is_open):
            changes.append(is_open)
            if is_open:
                opened.set()

        with ThreadPoolExecutor(1) as executor:
            admission = AdmissionControl(FullStore(probes=200), executor, on_change, 0.0001)
            admission.store_failed(StoreFullError("no space left for data; free some"))
            running = asyncio.ensure_future(admission.run())
            await asyncio.wait_for(opened.wait(), 30)
            running.cancel()
        assert admission.rejection is None

    asyncio.run(scenario())
    assert changes == [False, True]
    said = handler.said
    assert said[0].startswith(
        "no records are taken: no space left for data; free some; the collector goes on by itself"
    )
    assert said[1:] == ["records are taken again"]
