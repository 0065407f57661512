import math
import random

import pytest

from gpusonde.catalog import Offer, OfferCatalog, Source, cheapest, fastest, rank_offers

SOURCE = Source("list", "", "2026-01-01")


def offer(instance_type: str, gpu: str, usd_per_hour: float, gpu_count: int = 1) -> Offer:
    return Offer(
        "c", "r", instance_type, gpu, gpu_count, None, None, None, usd_per_hour, "on_demand", "2026-01-01", SOURCE
    )


def test_an_epoch_costs_the_instance_for_as_long_as_it_lasts() -> None:
    (costed,) = rank_offers({"T4": 120.0}, [offer("a", "T4", 0.6)])
    assert costed.usd_per_epoch == pytest.approx(0.02)
    assert costed.epoch_latency_s == 120.0
    assert costed.offer.price_date == "2026-01-01"


def test_offers_come_cheapest_first_and_ties_do_not_depend_on_the_input_order() -> None:
    candidates = [
        offer("slow", "T4", 0.5),
        offer("fast", "L4", 1.0),
        offer("twin-b", "L4", 2.0),
        offer("twin-a", "L4", 2.0),
    ]
    latency = {"T4": 20.0, "L4": 10.0}
    names = []
    for seed in range(5):
        shuffled = random.Random(seed).sample(candidates, len(candidates))
        names.append([item.offer.instance_type for item in rank_offers(latency, shuffled)])
    # slow and fast cost the same: the faster one first.
    assert names == [["fast", "slow", "twin-a", "twin-b"]] * 5


def test_cheapest_and_fastest_are_found_in_any_order() -> None:
    costed = rank_offers(
        {"T4": 20.0, "H100": 1.0}, [offer("a", "T4", 0.5), offer("b", "H100", 20.0), offer("c", "H100", 19.0)]
    )
    best = cheapest(reversed(costed))
    quickest = fastest(costed)
    assert best is not None
    assert quickest is not None
    assert (best.offer.instance_type, quickest.offer.instance_type) == ("a", "c")
    assert cheapest([]) is None
    assert fastest([]) is None


def test_instances_with_several_gpus_are_ranked_on_request_only_and_cost_their_whole_price() -> None:
    candidates = [offer("one", "T4", 0.5), offer("eight", "T4", 8.0, 8)]
    assert [item.offer.gpu_count for item in rank_offers({"T4": 3600.0}, candidates)] == [1]
    assert [item.usd_per_epoch for item in rank_offers({"T4": 3600.0}, candidates, gpu_count=None)] == [0.5, 8.0]
    assert [item.offer.gpu_count for item in rank_offers({"T4": 3600.0}, candidates, gpu_count=8)] == [8]


def test_gpus_without_a_prediction_are_left_out() -> None:
    assert rank_offers({"T4": math.nan}, [offer("a", "T4", 0.5), offer("b", "L4", 1.0)]) == []


@pytest.mark.parametrize("latency", [0.0, -1.0, math.inf])
def test_an_impossible_latency_is_refused(latency: float) -> None:
    with pytest.raises(ValueError, match="epoch latency of T4"):
        rank_offers({"T4": latency}, [])


def test_the_shipped_offers_rank_for_the_gpus_of_the_paper(offers: OfferCatalog) -> None:
    ranked = rank_offers({"T4": 60.0, "A10G": 30.0, "V100-SXM2-16GB": 25.0}, offers.offers())
    assert ranked[0].offer.instance_type == "g5.xlarge"
    assert ranked[0].usd_per_epoch == pytest.approx(1.006 / 3600 * 30)
    assert {item.offer.gpu_count for item in ranked} == {1}
    quickest = fastest(ranked)
    assert quickest is not None
    assert quickest.offer.gpu_model == "V100-SXM2-16GB"
