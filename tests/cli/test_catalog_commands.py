"""``gpusonde gpus``, ``offers`` and ``metrics``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpusonde.cli.main import main


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_a_gpu_is_found_by_any_spelling_with_the_source_of_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "gpus", "NVIDIA A10G")
    (gpu,) = answer["gpus"]
    assert gpu["name"] == "A10G"
    figures = {figure["name"]: figure for figure in gpu["figures"]}
    assert figures["sm_count"]["value"] == 80
    assert all(figure["source"] and figure["retrieved"] for figure in gpu["figures"])


def test_an_ambiguous_name_says_what_it_was_taken_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert "taken for V100-SXM2-16GB" in run_json(capsys, "gpus", "V100")["note"]
    assert main(["gpus", "V100"]) == 0
    assert "taken for V100-SXM2-16GB" in capsys.readouterr().out


def test_a_part_of_a_gpu_that_has_no_other_name_is_shown_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "A100-SXM4-40GB MIG 1g.5gb"]) == 0
    assert "also called" not in capsys.readouterr().out


def test_an_unknown_gpu_is_an_error_with_the_nearest_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "V1000"]) == 1
    assert "V100" in capsys.readouterr().err


def test_offers_are_whole_gpus_at_on_demand_prices_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    offers = run_json(capsys, "offers")["offers"]
    assert offers
    assert all(offer["whole_gpu"] and offer["billing"] == "on_demand" for offer in offers)
    assert all(offer["price_date"] for offer in offers)
    every = run_json(capsys, "offers", "--all")["offers"]
    assert {offer["whole_gpu"] for offer in every} == {True, False}
    assert len({offer["price_date"] for offer in every}) > len({offer["price_date"] for offer in offers})
    spot = run_json(capsys, "offers", "--spot")["offers"]
    assert {offer["billing"] for offer in spot} == {"spot"}


def test_offers_can_be_narrowed_to_gpus_and_providers(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "offers", "--gpu", "Tesla T4,A10G", "--provider", "aws")
    assert answer["gpus"] == ["T4", "A10G"]
    assert {offer["gpu_model"] for offer in answer["offers"]} == {"T4", "A10G"}
    assert {offer["provider"] for offer in answer["offers"]} == {"aws"}
    assert main(["offers", "--provider", "nobody"]) == 1
    assert "aws" in capsys.readouterr().err


def test_a_name_of_several_gpus_lists_the_offers_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "offers", "--gpu", "A100,A100 80GB")
    forms = ["A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIe-40GB", "A100-PCIe-80GB"]
    assert answer["gpus"] == forms
    assert answer["notes"] == [f"A100: any of {', '.join(forms)}", f"A100 80GB: any of {forms[1]}, {forms[3]}"]
    each = [offer for form in forms for offer in run_json(capsys, "offers", "--gpu", form)["offers"]]
    assert len(answer["offers"]) == len(each) > len(run_json(capsys, "offers", "--gpu", forms[0])["offers"])


def test_a_gpu_named_twice_lists_its_offers_once(capsys: pytest.CaptureFixture[str]) -> None:
    once = run_json(capsys, "offers", "--gpu", "T4")["offers"]
    assert run_json(capsys, "offers", "--gpu", "T4,Tesla T4")["offers"] == once


def test_tables_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["gpus"], ["offers"], ["offers", "--gpu", "GTX TITAN X"], ["metrics"]):
        assert main(arguments) == 0
        assert capsys.readouterr().out.strip()


def test_the_metric_catalogue_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    from gpusonde.telemetry import METRICS

    assert [entry["name"] for entry in run_json(capsys, "metrics")["metrics"]] == [m.name for m in METRICS]


def test_a_region_that_no_offer_names_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = run_json(capsys, "offers", "--region", "us-est-1")
    assert "no offer names the region 'us-est-1'" in " ".join(unknown["notes"])
    assert {offer["region"] for offer in unknown["offers"]} == {"all"}
    assert not run_json(capsys, "offers", "--region", "us-east-1")["notes"]
