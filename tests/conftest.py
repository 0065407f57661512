"""What all tests share: one thread of arithmetic, files in memory, logs that one does not leave to the next, and the
one ClickHouse.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before numpy is loaded, and for the processes that tests start: several tests run at once, and libraries that each
# take all cores for small matrices then spend most of their time waiting for each other's threads.
for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
# Tables fit where it is set, and pytest-xdist sets it.
os.environ.pop("COLUMNS", None)
# Every process compiles all modules where none may keep what it compiled, and tests start hundreds of processes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# In memory where there is plenty of it that may hold programs: tests sync thousands of files and lose no power.
_memory = Path("/dev/shm")
if os.access(_memory, os.W_OK):
    _found = os.statvfs(_memory)
    if not _found.f_flag & os.ST_NOEXEC and _found.f_bavail * _found.f_frsize > 4 << 30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_memory))
# Nobody's own prices are in what is tested.
os.environ["GPUSONDE_OFFERS"] = ""


@pytest.fixture(autouse=True)
def _logs_as_a_process_begins() -> Iterator[None]:
    """Commands run in process set levels and put their own handlers in the place of all others.

    Also those run by fixtures of a whole session, which come before this one.
    """
    _reset_logs()
    yield
    _reset_logs()


@pytest.fixture(autouse=True)
def _signals_as_a_process_begins() -> None:
    """Ignore no signal that a child would then ignore too, in which case tests that interrupt it would wait in vain.

    A script's background job is started with SIGINT ignored, under nohup with SIGHUP too, and a daemon's command that
    was run in process leaves SIGHUP so.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def _reset_logs() -> None:
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("gpusonde").setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def chdb_directory() -> Iterator[Path]:
    """The one directory of this process's engine, kept open: opening it anew takes longer than most tests."""
    from support.store_engines import quick_directory

    from gpusonde.collector.config import ClickHouseConfig
    from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql

    with quick_directory() as directory:
        keeper = ClickHouseSql(ClickHouseConfig(f"chdb://{directory}", "keeper"))
        yield directory
        keeper.close()
