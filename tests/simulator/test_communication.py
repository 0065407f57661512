"""The exchange of gradients: cases worked out by hand, and the vectorised twin against the event queue."""

from __future__ import annotations

import numpy as np
import pytest
from support.communication_queue import simulate_communication

from gpusonde.simulator.communication import BandwidthSharing, SharingRule, simulate_communications

EXACT = 1e-9


def finishes(ready_s, traffic_bytes, bus, sharing):
    """The finishes of both engines, which must not differ."""
    found = simulate_communication(ready_s, traffic_bytes, bus, sharing)
    twin = simulate_communications(
        [ready_s],
        [traffic_bytes],
        [bus],
        capacity_bytes_per_second=sharing.capacity_bytes_per_second,
        max_in_flight=sharing.max_in_flight,
        share=sharing.share,
    )[0]
    assert twin.tolist() == pytest.approx(found.finish_s.tolist(), rel=EXACT, abs=EXACT)
    return found


def test_transfers_on_a_link_that_never_binds_run_at_their_own_bandwidth():
    found = finishes([0.0, 0.5, 0.5], [10.0, 10.0, 1.0], [10.0, 5.0, 100.0], BandwidthSharing())
    assert found.start_s.tolist() == [0.0, 0.5, 0.5]
    assert found.finish_s.tolist() == pytest.approx([1.0, 2.5, 0.51], abs=EXACT)
    assert found.end_s == pytest.approx(2.5, abs=EXACT)


def test_one_transfer_at_a_time_waits_for_the_one_before():
    found = finishes([0.0, 0.1, 3.0], [100.0, 100.0, 50.0], [100.0] * 3, BandwidthSharing(max_in_flight=1))
    assert found.start_s.tolist() == pytest.approx([0.0, 1.0, 3.0], abs=EXACT)
    assert found.finish_s.tolist() == pytest.approx([1.0, 2.0, 3.5], abs=EXACT)


def test_with_two_in_flight_the_third_begins_when_the_first_has_finished():
    found = finishes([0.0, 0.0, 0.0], [10.0, 30.0, 10.0], [10.0] * 3, BandwidthSharing(max_in_flight=2))
    assert found.start_s.tolist() == pytest.approx([0.0, 0.0, 1.0], abs=EXACT)
    assert found.finish_s.tolist() == pytest.approx([1.0, 3.0, 2.0], abs=EXACT)


def test_small_transfers_gain_from_being_in_flight_together_where_each_alone_does_not_fill_the_link():
    alone = finishes([0.0] * 4, [1.0] * 4, [1.0] * 4, BandwidthSharing(capacity_bytes_per_second=4.0, max_in_flight=1))
    together = finishes([0.0] * 4, [1.0] * 4, [1.0] * 4, BandwidthSharing(capacity_bytes_per_second=4.0))
    assert (alone.end_s, together.end_s) == pytest.approx((4.0, 1.0), abs=EXACT)


@pytest.mark.parametrize("share", SharingRule)
def test_equal_transfers_share_a_full_link_equally(share):
    # Alone for 0.1 s, then half of the link each until the first is through.
    sharing = BandwidthSharing(share=share, capacity_bytes_per_second=100.0)
    found = finishes([0.0, 0.1], [100.0, 100.0], [100.0, 100.0], sharing)
    assert found.finish_s.tolist() == pytest.approx([1.9, 2.0], abs=EXACT)


def test_what_one_transfer_does_not_want_goes_to_the_other_under_maxmin_only():
    seed, fair = (
        finishes([0.0, 0.0], [6.0, 4.0], [0.7, 0.4], BandwidthSharing(share=share, capacity_bytes_per_second=1.0))
        for share in (SharingRule.SEED, SharingRule.MAXMIN)
    )
    # 0.6 and 0.4 of 1.0: nothing is idle.
    assert fair.finish_s.tolist() == pytest.approx([10.0, 10.0], abs=EXACT)
    # 0.5 and 0.4: a tenth of the link is idle, and the larger one is left with a byte at 0.7.
    assert seed.finish_s.tolist() == pytest.approx([10.0 + 1.0 / 0.7, 10.0], abs=EXACT)


def test_the_seeds_rule_cuts_transfers_that_just_fill_the_link():
    seed, fair = (
        finishes([0.0, 0.0], [6.0, 4.0], [0.6, 0.4], BandwidthSharing(share=share, capacity_bytes_per_second=1.0))
        for share in (SharingRule.SEED, SharingRule.MAXMIN)
    )
    assert fair.finish_s.tolist() == pytest.approx([10.0, 10.0], abs=EXACT)
    assert seed.finish_s.tolist() == pytest.approx([10.0 + 1.0 / 0.6, 10.0], abs=EXACT)


def test_a_transfer_of_nothing_is_over_at_once():
    found = finishes([0.25, 0.5], [0.0, 1.0], [1.0, 1.0], BandwidthSharing(max_in_flight=1))
    assert found.finish_s.tolist() == pytest.approx([0.25, 1.5], abs=EXACT)


def test_an_exchange_of_nothing_ends_at_zero():
    assert simulate_communication([], [], []).end_s == 0.0
    assert simulate_communications(np.zeros((3, 0)), np.zeros((3, 0)), np.zeros((3, 0))).shape == (3, 0)


def test_the_vectorised_twin_agrees_with_the_event_queue_on_random_cases():
    random = np.random.default_rng(6)
    worst, cases = 0.0, 0
    while cases < 1000:
        count, transfers = int(random.integers(1, 5)), int(random.integers(1, 14))
        # Half of the cases have coincidences, where two engines may order events differently.
        ready = random.random((count, transfers))
        if random.random() < 0.5:
            ready = random.choice([0.0, 0.1, 0.2, 0.25, 0.3, 0.9, 1.7], (count, transfers))
        traffic = random.lognormal(14, 2, (count, transfers))
        if random.random() < 0.5:
            traffic = random.choice([0.0, 1e6, 5e6, 2e7], (count, transfers))
        bus = random.lognormal(17, 1, (count, transfers))
        if random.random() < 0.3:
            bus = np.full((count, transfers), 5e7)
        capacity = np.inf if random.random() < 0.3 else float(random.lognormal(17, 1))
        limit = None if random.random() < 0.4 else int(random.integers(1, 4))
        share = [SharingRule.SEED, SharingRule.MAXMIN][int(random.integers(2))]
        many = simulate_communications(
            ready, traffic, bus, capacity_bytes_per_second=capacity, max_in_flight=limit, share=share
        )
        for case in range(count):
            sharing = BandwidthSharing(share, capacity, limit)
            one = simulate_communication(ready[case], traffic[case], bus[case], sharing).finish_s
            worst = max(worst, float(np.max(np.abs(many[case] - one) / np.maximum(one, 1e-9))))
        cases += count
    assert worst <= 1e-9


@pytest.mark.parametrize("share", SharingRule)
def test_neither_more_traffic_nor_a_slower_bus_ever_ends_an_exchange_earlier(share):
    random = np.random.default_rng(7)
    ready = np.sort(random.random((200, 6)), axis=1)
    traffic, bus = random.lognormal(14, 1, (200, 6)), np.full((200, 6), 2e7)

    def end(traffic, bus):
        return simulate_communications(
            ready, traffic, bus, capacity_bytes_per_second=3e7, max_in_flight=2, share=share
        ).max(axis=1)  # fmt: skip

    base = end(traffic, bus)
    assert (end(traffic * 1.2, bus) >= base * (1 - EXACT)).all()
    if share is SharingRule.MAXMIN:
        assert (end(traffic, bus / 1.2) >= base * (1 - EXACT)).all()


@pytest.mark.parametrize(
    ("ready", "traffic", "bus", "says"),
    [
        ([0.0], [1.0, 2.0], [1.0], "one shape"),
        ([-1.0], [1.0], [1.0], "ready_s"),
        ([np.nan], [1.0], [1.0], "ready_s"),
        ([0.0], [-1.0], [1.0], "traffic_bytes"),
        ([0.0], [1.0], [0.0], "above zero"),
        ([0.0], [1.0], [np.inf], "finite"),
    ],
)
def test_figures_that_are_no_exchange_are_refused(ready, traffic, bus, says):
    with pytest.raises(ValueError, match=says):
        simulate_communications([ready], [traffic], [bus])


def test_a_link_without_capacity_or_without_transfers_is_refused():
    with pytest.raises(ValueError, match="capacity"):
        BandwidthSharing(capacity_bytes_per_second=0.0)
    with pytest.raises(ValueError, match="max_in_flight"):
        BandwidthSharing(max_in_flight=0)
    with pytest.raises(ValueError, match="capacity"):
        simulate_communications([[0.0]], [[1.0]], [[1.0]], capacity_bytes_per_second=0.0)
    with pytest.raises(ValueError, match="max_in_flight"):
        simulate_communications([[0.0]], [[1.0]], [[1.0]], max_in_flight=0)
