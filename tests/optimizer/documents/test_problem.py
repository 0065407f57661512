"""Problem files: what they mean, and what is said about those that mean nothing."""

import json
import math
from copy import deepcopy
from datetime import datetime

import pytest
from support.problem_documents import probes, small_problem

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.errors import DocumentError, ProblemError
from gpusonde.optimizer.documents.problem import MOST_OFFERS, parse_plan, parse_problem
from gpusonde.optimizer.documents.watching import estimate_plan, pareto_plans, solve_problem, solve_problems
from gpusonde.optimizer.problem import Billing, Group, Objective, Plan
from gpusonde.optimizer.solution import check_plan
from gpusonde.optimizer.solve import solve
from gpusonde.simulator.compute import CurveOrigin

GPUS, OFFERS = load_gpus(), load_offers()


def parse(**changes):
    return parse_problem(small_problem(**changes), GPUS, OFFERS)


def changed(path, value):
    """The small problem with one value replaced; a path is keys and places."""
    document = deepcopy(small_problem())
    target = document
    for step in path[:-1]:
        target = target[step]
    if value is None:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return document


def refusal(document):
    with pytest.raises(DocumentError) as error:
        parse_problem(document, GPUS, OFFERS)
    return error.value.field, str(error.value)


def test_a_problem_file_becomes_a_problem_and_a_job():
    found = parse()
    assert (found.name, found.problem.global_batch, found.problem.iterations) == ("small", 256, 20_000)
    assert (found.problem.objective, found.problem.deadline_s) == (Objective.COST, 7200.0)
    t4, _ = found.problem.offers
    assert (t4.devices, t4.quota, t4.usd_per_hour, t4.billing) == (1, 16, 0.5, Billing.ON_DEMAND)
    assert float(found.job.curves["T4"].predict(16).total_s[0]) == pytest.approx(0.052, rel=0.02)
    assert len(found.job.allreduce) == 24
    assert found.rated_fabrics == {}
    # What was not measured is said.
    assert found.notes == ("when gradients are ready is assumed from their size; 'gpusonde profile' records it",)


def test_an_offer_without_memory_limit_gets_that_of_its_device():
    assert [offer.largest_batch for offer in parse().problem.offers] == [128, 256]


def test_epochs_and_samples_stand_for_iterations():
    found = parse(iterations=None, epochs=3, samples_per_epoch=2560)
    assert (found.problem.iterations, found.iterations_per_epoch) == (30, 10.0)
    assert parse(samples_per_epoch=2560).iterations_per_epoch == 10.0


def test_tokens_of_sequences_stand_for_iterations_and_a_plan_is_the_same():
    # The last iteration is a whole one.
    for tokens, iterations in ((256 * 2048 * 20_000, 20_000), (256 * 2048 * 20_000 + 1, 20_001), (1, 1)):
        assert parse(iterations=None, tokens=tokens, sequence_length=2048).problem.iterations == iterations
    in_tokens = parse(iterations=None, tokens=256 * 2048 * 2e4, sequence_length=2048)
    assert solve_problem(in_tokens) == solve_problem(parse(iterations=20_000))
    with_epochs = parse(iterations=None, tokens=10**9, sequence_length=2048, samples_per_epoch=2560)
    assert (with_epochs.problem.iterations, with_epochs.iterations_per_epoch) == (1908, 10.0)


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"epochs": 3, "samples_per_epoch": 2560}, "epochs", "iterations is a total already; leave out one of them"),
        ({"tokens": 10**9, "sequence_length": 2048}, "tokens", "iterations is a total already; leave out one of them"),
        (
            {"iterations": None, "epochs": 3, "samples_per_epoch": 9, "tokens": 9, "sequence_length": 9},
            "tokens",
            "epochs is a total already",
        ),
        ({"iterations": None, "tokens": 10**9}, "sequence_length", "is missing; tokens alone do not say how many"),
        ({"sequence_length": 2048}, "sequence_length", "says what tokens mean; give tokens, or leave it out"),
        ({"iterations": None, "sequence_length": 2048}, "iterations", "or tokens with sequence_length"),
        ({"iterations": None, "tokens": 0, "sequence_length": 2048}, "tokens", "must be a whole number from 1 to"),
        ({"iterations": None, "tokens": 1e16, "sequence_length": 2048}, "tokens", "must be a whole number from 1 to"),
        ({"iterations": None, "tokens": 9, "sequence_length": 0}, "sequence_length", "must be a whole number from 1"),
        ({"iterations": None, "tokens": 9, "sequence_length": 10**9}, "sequence_length", "from 1 to 100,000,000"),
    ],
)
def test_totals_that_mean_nothing_are_refused_with_what_to_write(changes, field, says):
    found, text = refusal(small_problem(**changes))
    assert found == field
    assert says in text


def test_devices_go_by_any_name_that_the_catalogue_knows():
    document = small_problem()
    document["job"]["curves"][1]["device"] = "Tesla V100-SXM2-16GB"
    document["offers"][0]["device"] = "Tesla T4"
    found = parse_problem(document, GPUS, OFFERS)
    assert set(found.job.curves) == {"T4", "V100-SXM2-16GB"}
    document["job"]["curves"].append({"device": "wafer", "probes": probes(1e-5)})
    assert "wafer" in parse_problem(document, GPUS, OFFERS).job.curves


def test_epoch_latencies_of_other_gpus_make_a_curve_that_says_where_it_comes_from():
    document = small_problem()
    document["job"]["curves"][0] = {
        "device": "T4",
        "epochs": [
            {"batch_size": size, "samples_per_epoch": 10_000, "epoch_latency_s": 10_000 / size * (0.004 + 0.003 * size)}
            for size in (16, 64)
        ],
    }
    found = parse_problem(document, GPUS, OFFERS)
    curve = found.job.curves["T4"]
    assert curve.origin is CurveOrigin.CROSS_GPU
    assert float(curve.predict(16).total_s[0]) == pytest.approx(0.052, rel=0.03)
    assert "the compute curve of T4 is predicted from epoch latencies; 'gpusonde profile' measures it" in found.notes


def test_measured_traffic_stands_for_the_gradients():
    document = small_problem()
    document["job"]["gradients"] = {"traffic_bytes_per_step": 1.5e8, "traffic_world_size": 4}
    assert parse_problem(document, GPUS, OFFERS).job.gradients.total_bytes == pytest.approx(1e8)


def test_networks_that_nobody_measured_are_assumed_from_their_rating_and_that_is_said():
    document = small_problem()
    del document["job"]["allreduce"]
    field, text = refusal(document)
    assert field == "job.allreduce"
    assert "gpusonde probe allreduce" in text
    for offer in document["offers"]:
        offer["network_bytes_per_second"] = 1.25e9
    found = parse_problem(document, GPUS, OFFERS)
    assert {network.between.bytes_per_second for network in found.rated_fabrics.values()} == {1.25e9}
    assert "the network of 2 offers is not measured" in found.notes[-1]


def test_gpus_of_one_machine_exchange_over_nvlink_whatever_its_network_is_rated():
    document = small_problem()
    del document["job"]["allreduce"]
    curve = document["job"]["curves"][0]
    document["job"]["curves"] = [{**curve, "device": "A100-SXM4-40GB"}]
    p4d = {"name": "aws/us-east-1/p4d", "device": "A100-SXM4-40GB", "devices": 8, "quota": 4, "usd_per_hour": 30.0}
    document["offers"] = [{**p4d, "network_bytes_per_second": 50e9}]
    (network,) = parse_problem(document, GPUS, OFFERS).rated_fabrics.values()
    one, two = (network.bus_bandwidth([256e6], world).bytes_per_second[0] for world in (8, 16))
    # Measured: 218 and 69 GB/s.
    assert 150e9 < one < 300e9
    assert 45e9 < two < 100e9


def test_a_quota_of_nothing_in_a_query_means_none_of_these_now() -> None:
    none = [{"gpus": ["T4"], "providers": ["aws"], "quota": 0}]
    found = parse(catalog=none)
    own = len(parse().problem.offers)
    others = found.problem.offers[own:]
    assert len(others) == len(parse(offers=None, catalog=[{**none[0], "quota": 4}]).problem.offers)
    assert {offer.quota for offer in others} == {0}
    assert solve_problem(found)["plan"] == solve_problem(parse())["plan"]
    assert solve_problem(parse(offers=None, catalog=none))["status"] == "infeasible"


def test_the_catalogue_answers_queries_under_the_jobs_curves():
    found = parse(offers=None, catalog=[{"gpus": ["T4"], "providers": ["aws"], "quota": 4}])
    offers = found.problem.offers
    assert offers
    assert {offer.device for offer in offers} == {"T4"}
    assert {(offer.quota, offer.largest_batch) for offer in offers} == {(4, 128)}
    assert found.rated_fabrics


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ({"regions": ["us-east1"]}, "none is on_demand with providers = aws and regions = us-east1 and gpus = T4"),
        ({"gpus": ["H100"]}, "left out: no batch limits for H100"),
    ],
)
def test_a_query_that_no_offer_answers_is_told_what_it_asked_or_what_the_offers_lack(query, why):
    """us-east1 is a region of another cloud."""
    asked = {"providers": ["aws"], "gpus": ["T4"], "quota": 4} | query
    field, problem = refusal(small_problem(catalog=[asked]))
    assert field == "catalog[0]"
    assert why in problem


def test_spot_machines_of_the_catalogue_need_a_rate_of_preemptions():
    field, _ = refusal(small_problem(catalog=[{"gpus": ["T4"], "quota": 4, "billing": "spot"}]))
    assert field == "catalog[0].preemptions_per_hour"


@pytest.mark.parametrize(
    ("path", "value", "field", "says"),
    [
        (["format"], None, "format", "begins with format"),
        (["format"], "gpusonde.problem/2", "format", "upgrade gpusonde"),
        (["format"], "gpusonde.plan/1", "format", "a problem file begins"),
        (["globalbatch"], 4, "globalbatch", "did you mean 'global_batch'"),
        (["global_batch"], 0, "global_batch", "whole number from 1"),
        (["global_batch"], 256.5, "global_batch", "whole number"),
        (["global_batch"], True, "global_batch", "whole number"),
        (["global_batch"], "256", "global_batch", "whole number"),
        (["iterations"], None, "iterations", "epochs with samples_per_epoch"),
        (["iterations"], 10**400, "iterations", "whole number"),
        (["objective"], "cheap", "objective", "time or cost"),
        (["deadline_s"], -5, "", "one in the past cannot be met"),
        (["deadline_s"], math.nan, "deadline_s", "must be a number"),
        (["deadline_s"], "24h", "deadline_s", "must be a number of seconds, not '24h'"),
        (["deadline_s"], datetime(2026, 11, 30, 18), "deadline_s", "of seconds, not 2026-11-30 18:00:00"),
        (["budget_usd"], 0, "", "budget_usd 0"),
        (["confidence"], 1.0, "", "confidence"),
        (["overhead_s"], 7200.0, "", "leaves no time to train"),
        (["batch_sizes"], [0], "batch_sizes[0]", "whole number"),
        (["batch_sizes"], "8", "batch_sizes", "must be a list"),
        (["offers"], None, "offers", "give what can be rented"),
        (["offers", 0, "usd_per_hour"], None, "offers[0].usd_per_hour", "is missing"),
        (["offers", 0, "usd_per_hour"], 0, "offers[0].usd_per_hour", "above 0"),
        (["offers", 0, "quota"], None, "offers[0].quota", "is missing"),
        (["offers", 0, "quota"], 10**9, "offers[0].quota", "whole number from 0 to"),
        (["offers", 0, "billing"], "free", "offers[0].billing", "on_demand or spot"),
        (["offers", 0, "device"], "A100", "job.curves", "there is no curve of"),
        (["offers", 1, "name"], "t4", "", "two offers named t4"),
        (["offers", 0, "name"], "a\nb", "offers[0].name", "must be a text"),
        (["offers", 0, "machine_fabric"], "nvlink", "job.allreduce", "machine_fabric of t4"),
        (["job"], None, "job", "must be an object"),
        (["job", "curves"], [], "job.curves", "at least 1"),
        (["job", "curves", 0, "probes"], probes(0.003)[:1], "job.curves[0].probes", "two batch sizes or more"),
        (["job", "curves", 0, "probes", 2, "total_s"], -1.0, "job.curves[0].probes[2].total_s", "must be a number"),
        (["job", "curves", 0, "gray_box"], [{"batch_size": 8, "total_s": 1}], "job.curves[0]", "exactly one of"),
        (["job", "curves", 1, "device"], "T4", "job.curves[1].device", "has a curve already"),
        (["job", "gradients"], None, "job.gradients", "parameter_bytes"),
        (["job", "gradients"], {"parameter_bytes": 1e8, "traffic_bytes_per_step": 1}, "job.gradients", "exactly one"),
        (["job", "gradients"], {"ready_fractions": [0.5, 0.2], "bucket_bytes": [1, 1]}, "job.gradients", "decrease"),
        (["job", "allreduce", 0, "world_size"], 1, "job.allreduce[0].world_size", "from 2"),
        (["job", "link"], {"max_in_flight": 0}, "job.link.max_in_flight", "from 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_naming_the_key(path, value, field, says):
    found, text = refusal(changed(path, value))
    assert found == field
    assert says in text
    assert "\n" not in text


def test_one_machine_needs_no_network_rate():
    document = small_problem()
    del document["job"]["allreduce"]
    for offer, devices in zip(document["offers"], (1, 8), strict=True):
        del offer["fabric"]
        offer["devices"] = devices
    document |= {"global_batch": 128, "deadline_s": 1e6}
    found = parse_problem(document, GPUS, OFFERS)
    assert [offer.quota for offer in found.problem.offers] == [1, 1]
    (note,) = [note for note in found.notes if "network_bytes_per_second" in note]
    assert "t4, v100" in note
    fastest = solve_problem(parse_problem({**document, "objective": "time"}, GPUS, OFFERS))
    cheapest = solve_problem(found)
    assert cheapest["status"] == "optimal"
    assert [each["machines"] for each in fastest["plan"]["groups"]] == [1]
    # The GPUs of one machine exchange gradients over what its data sheet says.
    assert fastest["plan"]["groups"][0]["offer"] == "v100"
    assert fastest["estimate"]["step"]["mean_s"] > 0.016


def test_a_machine_without_a_network_rate_stays_where_it_stands():
    """Its region was its own name: quotas of the region did not hold, and data that lie there were moved to it."""
    here = {"device": "T4", "quota": 1, "usd_per_hour": 0.5, "region": "aws/us-east-1"}
    changes = {"global_batch": 64, "batch_sizes": [64], "offers": [{**here, "name": "box"}]}
    data = {"gigabytes": 500, "region": "aws/us-east-1", "egress_usd_per_gb": 0.09}
    found = solve_problem(parse(**changes, data=data))
    assert (found["status"], found["estimate"]["data_usd"]) == ("optimal", 0.0)
    quotas = [{"gpus": 0, "region": "us-east-1"}]
    assert solve_problem(parse(**changes, quotas=quotas))["status"] == "infeasible"


@pytest.mark.parametrize("across", [False, True])
def test_a_machine_without_a_network_rate_works_alone_beside_others(across):
    """Across regions it was left out, and without other offers there were none."""
    here = {"device": "T4", "quota": 2, "usd_per_hour": 0.5, "region": "aws/us-east-1"}
    rated = {**here, "name": "rated", "usd_per_hour": 5.0, "network_bytes_per_second": 1e9}
    for offers in ([{**here, "name": "box"}], [{**here, "name": "box"}, rated]):
        changes = {"batch_sizes": [64], "deadline_s": None, "offers": offers, "across_regions": across}
        document = parse(**changes, global_batch=64)
        alone = solve_problem(document)["plan"]
        assert [group["offer"] for group in alone["groups"]] == ["box"]
        assert solve(document.problem, document.step_times(), method="brute_force").plan.machines == 1
        if len(offers) > 1:
            with pytest.raises(ProblemError, match="network_bytes_per_second"):
                check_plan(document.problem, Plan((Group("box", 1, 32), Group("rated", 1, 32))))
            together = solve_problem(parse(**changes, global_batch=128))["plan"]
            assert [group["offer"] for group in together["groups"]] == ["rated"]


@pytest.mark.parametrize(
    ("key", "names", "meant"),
    [
        ("regions", ["us-east-1", "us-esat-1"], "us-east-1"),
        ("providers", ["aws", "asw"], "aws"),
        ("instance_types", ["g4dn.xlarge", "g4dn.xlrage"], "g4dn.xlarge"),
        ("gpus", ["T4", "A1OG"], "A10G"),
    ],
)
def test_a_name_of_the_catalogue_that_is_misspelt_is_named_with_the_one_that_was_meant(key, names, meant):
    at, text = refusal(small_problem(catalog=[{key: names, "quota": 2}]))
    assert at == ("catalog[0].gpus" if key == "gpus" else f"catalog[0].{key}[1]")
    assert meant in text


@pytest.mark.parametrize(
    ("key", "names"), [("regions", ["us-east-1", "us-west-2"]), ("gpus", ["T4", "H200-SXM-141GB"])]
)
def test_a_name_that_the_catalogue_knows_but_that_adds_no_offer_is_noted(key, names):
    query = {"providers": ["aws"], "gpus": ["T4"], "instance_types": ["g4dn.xlarge"], "quota": 2, key: names}
    (said,) = [note for note in parse(catalog=[query]).notes if note.startswith("catalog[0]")]
    assert said.startswith(f"catalog[0].{key}: the catalogue has nothing of {names[1]} that fits")


def test_one_offer_is_counted_as_one():
    told = small_problem()["offers"][0]
    offer = {key: told[key] for key in told if key != "fabric"} | {"network_bytes_per_second": 1e9}
    assert any("the network of 1 offer is" in note for note in parse(offers=[offer]).notes)


def test_some_hundred_offers_are_taken():
    offers = [{**small_problem()["offers"][0], "name": f"t4-{i}", "quota": 2} for i in range(300)]
    assert len(parse(offers=offers).problem.offers) == 300


def test_gpus_without_a_curve_are_named_in_one_note():
    query = {"providers": ["aws"], "regions": ["us-east-1"], "quota": 2}
    (said,) = [note for note in parse(catalog=[query]).notes if "no batch limits" in note]
    assert "A10G" in said
    assert "H100-SXM" in said


@pytest.mark.parametrize(
    ("largest", "doubted"),
    [({}, "what its step takes and whether it fits is a guess"), ({"largest_batch": 600}, "what its step takes is")],
)
def test_a_batch_far_beyond_the_largest_known_one_is_said_to_be_a_guess(largest, doubted):
    job = small_problem()["job"] | {"curves": [{"device": "T4", **largest, "probes": probes(0.003)}]}
    for batch, is_far in ((513, True), (512, False)):
        document = parse(
            job=job, deadline_s=None, global_batch=batch, iterations=100,
            offers=[{"name": "t4", "device": "T4", "quota": 1, "usd_per_hour": 0.5}],
        )  # fmt: skip
        plan = Plan((Group("t4", 1, batch),))
        for answer in (
            solve_problem(document),
            estimate_plan(document, plan),
            pareto_plans(document),
            solve_problems([("one", document)]),
        ):
            said = [note for note in answer["notes"] if "the largest known one" in note]
            assert len(said) == is_far
            assert not said or (
                "a batch of 513 on T4 is 2 times the largest known one, 256" in said[0] and doubted in said[0]
            )


def test_a_confidence_is_written_as_it_was_given():
    document = parse(confidence=0.999)
    plan = parse_plan({"groups": [{"offer": "t4", "machines": 4, "batch_size": 64}]}, document.problem, "plan")
    assert "with 99.9 % confidence" in estimate_plan(document, plan)["why"]
    assert "with 99.9 %" in solve_problem(parse(confidence=0.999))["why"]


def test_thousands_of_offers_are_refused():
    offers = [{**small_problem()["offers"][0], "name": f"t4-{i}"} for i in range(MOST_OFFERS + 1)]
    assert refusal(small_problem(offers=offers))[0] == "offers"


def test_more_to_choose_from_than_can_be_searched_is_refused():
    found, text = refusal(
        small_problem(
            global_batch=1 << 20,
            offers=[
                {**offer, "name": f"{offer['name']}-{i}", "quota": 10_000}
                for i in range(20)
                for offer in small_problem()["offers"]
            ],
        )
    )
    assert found == "offers"
    assert "fewer batch_sizes" in text


@pytest.mark.parametrize(
    ("groups", "field"),
    [
        ([], "plan.groups"),
        ([{"offer": "k80", "machines": 1, "batch_size": 1}], "plan.groups[0].offer"),
        ([{"offer": "t4", "machines": 0, "batch_size": 1}], "plan.groups[0].machines"),
        ([{"offer": "t4", "machines": 1, "batch_size": 1}] * 2, "plan"),
        ([{"offer": "t4", "machines": 1}], "plan.groups[0].batch_size"),
        ([7], "plan.groups[0]"),
    ],
)
def test_plans_that_cannot_be_are_refused(groups, field):
    with pytest.raises(DocumentError) as error:
        parse_plan({"groups": groups}, parse().problem, "plan")
    assert error.value.field == field


def test_a_document_survives_json():
    document = small_problem()
    again = parse_problem(json.loads(json.dumps(document)), GPUS, OFFERS)
    assert again.problem == parse().problem
