"""DcgmSource when a call of the engine does not return: the sampler goes on and the process can end."""

import subprocess
import sys
import threading
import time

import pytest
from support.wire_agent import wait_until

from gpusonde.agent.sources.base import GpuEventKind
from gpusonde.agent.sources.dcgm.calls import CallGuard
from gpusonde.errors import SourceUnavailableError

LIMIT_S = 0.5


@pytest.fixture
def host(dcgm_host):
    yield dcgm_host
    dcgm_host.engine.released.set()


def test_an_engine_that_hangs_is_given_up_in_time_and_connected_to_again(host, caplog):
    source = host.source(call_limit_s=LIMIT_S)
    host.open(source)
    host.run(source, 2.0)
    host.engine.hanging = {"dcgmEntitiesGetLatestValues"}
    began_s = time.monotonic()
    host.run(source, 1.0)
    assert time.monotonic() - began_s < 40 * LIMIT_S
    assert [(e.gpu, e.kind) for e in host.events] == [(0, GpuEventKind.LOST), (1, GpuEventKind.LOST)]
    assert source.statistics.hung_calls == 1
    assert "did not answer in time" in caplog.text
    host.engine.hanging = set()
    host.run(source, 8.0)
    assert [e.kind for e in host.events[2:]] == [GpuEventKind.RECOVERED] * 2
    assert host.column("sm_active")[-1] > 0
    assert source.statistics.reconnects == 1
    before = len(host.ticks[0])
    # The call comes back after all: what it brings belongs to a connection that is no more.
    host.engine.released.set()
    host.run(source, 2.0)
    source.close()
    assert len(host.ticks[0]) == pytest.approx(before + 20, abs=1)
    assert not any("Traceback" in record.getMessage() for record in caplog.records)


def test_a_dead_engine_is_not_asked_again_when_its_watches_are_closed(host):
    source = host.source(call_limit_s=LIMIT_S)
    host.open(source)
    host.engine.hanging = {"dcgmEntitiesGetLatestValues", "dcgmUnwatchFields", "dcgmGroupDestroy"}
    host.run(source, 0.2)
    began_s = time.monotonic()
    source.close()
    assert time.monotonic() - began_s < 40 * LIMIT_S
    assert host.engine.calls.count("dcgmUnwatchFields") == 0


def test_an_engine_that_hangs_at_the_start_is_no_source(host):
    host.engine.hanging = {"dcgmConnect_v2"}
    host.engine.embeddable = False
    with pytest.raises(SourceUnavailableError, match="did not answer in time"):
        host.source(call_limit_s=LIMIT_S).open()


def test_an_engine_that_hangs_at_the_start_does_not_get_a_second_one_beside_it(host):
    host.engine.hanging = {"dcgmConnect_v2"}
    with pytest.raises(SourceUnavailableError, match="did not answer in time"):
        host.source(call_limit_s=LIMIT_S).open()
    assert "dcgmStartEmbedded" not in host.engine.calls


def test_a_stalled_engine_never_ends_the_source_which_asks_at_growing_distances(host):
    source = host.source(call_limit_s=0.05)
    host.open(source)
    host.engine.hanging = {"dcgmEntitiesGetLatestValues", "dcgmConnect_v2"}
    calls = len(host.engine.calls)
    host.run(source, 900.0, step_s=1.0)
    assert host.engine.calls[calls:].count("dcgmConnect_v2") == pytest.approx(8, abs=1)
    assert [e.kind for e in host.events] == [GpuEventKind.LOST] * 2
    # It moves again: the calls return, and nobody waits for the next try.
    host.engine.hanging = set()
    host.engine.released.set()
    wait_until(lambda: not source._link._guard.hung, what="the return of the calls")
    host.run(source, 2.0)
    source.close()
    assert [e.kind for e in host.events[2:]] == [GpuEventKind.RECOVERED] * 2
    assert host.column("sm_active")[-1] > 0


def test_an_xid_of_a_time_without_connection_is_told_with_its_own_time(host):
    source = host.source(call_limit_s=LIMIT_S)
    host.open(source)
    host.engine.xids = [(1, host.engine.time_s - 60.0, 13)]
    host.run(source, 2.0)
    host.engine.hanging = {"dcgmEntitiesGetLatestValues", "dcgmGetValuesSince_v2"}
    host.run(source, 1.0)
    at_s = host.engine.time_s
    host.engine.xids += [(1, at_s, 79), (1, at_s + 0.5, 45)]
    host.engine.hanging = set()
    host.run(source, 8.0)
    source.close()
    xids = [(e.gpu, e.value, e.time_unix_nano) for e in host.events if e.kind is GpuEventKind.XID]
    assert xids == [
        (1, 79, pytest.approx(at_s * 1e9, abs=2000)), (1, 45, pytest.approx((at_s + 0.5) * 1e9, abs=2000))
    ]  # fmt: skip
    assert host.column("xid_count", 1)[-1] == 2


def test_a_process_with_a_hung_call_can_end():
    script = (
        "import threading\n"
        "from gpusonde.agent.sources.dcgm.calls import CallGuard\n"
        "try: CallGuard(0.1).call(threading.Event().wait)\n"
        "except TimeoutError: print('given up')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "given up\n"


def test_guarded_calls_return_raise_and_end_their_threads():
    before = set(threading.enumerate())
    guard = CallGuard(5.0)
    assert guard.call(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        guard.call(divmod, 1, 0)
    threads = {t for t in threading.enumerate() if t not in before and t.name == "gpusonde-dcgm"}
    assert len(threads) == 1
    guard.close()
    for thread in threads:
        thread.join(timeout=200.0)
    assert not any(thread.is_alive() for thread in threads)
    assert guard.call(max, 1, 2) == 2
    guard.close()


def test_a_call_that_comes_back_late_is_no_longer_counted_as_hung():
    guard, release = CallGuard(0.05), threading.Event()
    with pytest.raises(TimeoutError):
        guard.call(release.wait)
    assert guard.hung == 1
    release.set()
    wait_until(lambda: guard.hung == 0, what="the return of the call")


def test_what_a_call_costs_is_told_although_another_thread_spends_it():
    spent = []
    guard = CallGuard(5.0, spent.append)

    def work():
        end_s = time.thread_time() + 0.02
        while time.thread_time() < end_s:
            continue

    guard.call(work)
    guard.call(threading.Event)
    guard.close()
    assert spent[0] >= 0.02
    assert spent[1] < 0.02
