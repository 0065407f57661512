"""``ListEpochs`` of a run with ten thousand epochs: pages that any client can take, figures about all of it."""

from dataclasses import replace

import pytest

from gpusonde.collector import LocalStore
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.query.runs import list_epochs
from gpusonde.collector.storage.model import EpochRow, RunRow, RunUpdate, SummaryRow
from gpusonde.errors import RequestError
from gpusonde.query.v1 import query_pb2
from gpusonde.telemetry import METRICS

SECOND = 10**9
START = 1_700_000_000 * SECOND
COUNT = 10_000


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    store = LocalStore(tmp_path_factory.mktemp("store"), StoreConfig(reserve_bytes=0))
    store.open()
    results = store.results
    run = RunRow("run", "agent", "GPU-a", "", 0, False, "", START, START + COUNT * 31 * SECOND, 1, 1, 1, 9, 9, 0)
    epochs, time = [], START
    for i in range(COUNT):
        length = (30 if i < COUNT - 200 else 36) * SECOND + (i % 7) * SECOND // 20
        epochs.append(EpochRow(i, time, time + length, 0.9, "confirmed", 0))
        time += length
    results.save([RunUpdate(replace(run, end_unix_nano=time), epochs)], {})
    means = {metric.name: 123.456789 for metric in METRICS}
    results.save_summaries("run", [(epoch, SummaryRow(1.0, 2500.0, means)) for epoch in epochs])
    slow = [
        EpochRow(i, START + 100 * i * SECOND, START + 100 * (i + 1) * SECOND, 0.9, "confirmed", 0) for i in range(9)
    ]
    results.save([RunUpdate(replace(run, run_id="slow"), slow)], {})
    yield results
    store.close()


def test_pages_stay_under_two_mebibytes_and_nothing_is_left_out(results):
    request = query_pb2.ListEpochsRequest(run_id="run", page_size=10_000)
    indices = []
    while True:
        page = list_epochs(results, request)
        assert page.ByteSize() < (2 << 20) + 1024
        assert all(len(epoch.summary.mean_metrics) == len(METRICS) for epoch in page.epochs)
        indices += [epoch.index for epoch in page.epochs]
        request.page_token = page.next_page_token
        if not page.next_page_token:
            break
    assert indices == list(range(COUNT))


def test_the_change_of_duration_is_told_by_its_place_in_the_whole_run(results):
    page = list_epochs(results, query_pb2.ListEpochsRequest(run_id="run", page_size=5, total_epochs=COUNT + 10))
    (change,) = page.trend.changes
    assert change.epoch == COUNT - 200 + 1
    assert change.change == pytest.approx(0.2, abs=0.01)
    assert page.estimate.epochs_left == 10
    left_s = (page.estimate.end_time.ToNanoseconds() - page.epochs[0].start_time.ToNanoseconds()) / 1e9
    assert left_s == pytest.approx((COUNT - 200) * 30.15 + 210 * 36.15, rel=1e-3)


def test_an_end_that_no_calendar_holds_is_refused_with_its_field(results):
    with pytest.raises(RequestError, match=r"field 'total_epochs': .* after the year 9999; give the number"):
        list_epochs(results, query_pb2.ListEpochsRequest(run_id="slow", total_epochs=2**32 - 1))


def test_epochs_that_the_tracker_is_not_sure_of_are_left_out_unless_asked_for(results):
    run = replace(results.run("run"), run_id="young")
    status = ["confirmed"] * 3 + ["withdrawn"] + ["provisional"] * 2
    epochs = [
        EpochRow(i, START + 10 * i * SECOND, START + 10 * (i + 1) * SECOND, 0.9, each, 0)
        for i, each in enumerate(status)
    ]
    results.save([RunUpdate(run, epochs)], {})
    by_default = list_epochs(results, query_pb2.ListEpochsRequest(run_id="young", total_epochs=9))
    assert [epoch.index for epoch in by_default.epochs] == [0, 1, 2]
    assert by_default.provisional_epochs == 2
    # What was withdrawn was trained, too: a gap as long as an epoch counts as one.
    assert by_default.estimate.epochs_done == 6
    asked = list_epochs(results, query_pb2.ListEpochsRequest(run_id="young", include_provisional=True))
    assert [epoch.index for epoch in asked.epochs] == [0, 1, 2, 4, 5]
    results.save([RunUpdate(run, [replace(epoch, status="provisional") for epoch in epochs])], {})
    unsure = list_epochs(results, query_pb2.ListEpochsRequest(run_id="young", total_epochs=9))
    assert not unsure.epochs
    assert not unsure.HasField("estimate")
    assert unsure.estimate_reason


def test_epochs_that_did_not_change_are_not_written_again(results):
    run = results.run("run")
    epochs = results.epochs("run")
    connection = results._database._connection
    before = connection.total_changes
    results.save([RunUpdate(run, epochs)], {})
    assert connection.total_changes - before <= 2  # the run's own row
    assert results.count_to_summarise("run") == 0
    results.save([RunUpdate(run, epochs[:-1])], {})
    assert len(results.epochs("run")) == COUNT - 1
    results.save([RunUpdate(run, epochs)], {})
    assert results.count_to_summarise("run") == 1
