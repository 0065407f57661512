from pathlib import Path

from gpusonde.catalog import GpuCatalog, OfferCatalog

PAGE = (Path(__file__).parents[2] / "docs" / "catalog.md").read_text(encoding="utf-8")


def test_the_page_says_what_every_ambiguous_name_is_taken_for(gpus: GpuCatalog) -> None:
    for entry in gpus.ambiguous:
        others = [f"{other} (not in the catalogue)" for other in entry.others]
        assert f"| {entry.name} | {entry.candidates[0]} | {', '.join([*entry.candidates[1:], *others])} |" in PAGE


def test_the_page_lists_the_gpus_written_down_from_memory(gpus: GpuCatalog) -> None:
    from_memory = [spec.name for spec in gpus.specs if "fp32_tflops" in spec.from_memory()]
    assert f"need them: {', '.join(from_memory)}." in PAGE
    assert f"knows {len(gpus)} GPUs" in PAGE


def test_the_page_names_the_gpus_that_are_priced_but_unknown(offers: OfferCatalog) -> None:
    assert sorted({offer.gpu_model for offer in offers.all if not offer.gpu_known}) == ["AMD Radeon Pro V520", "B300"]
    assert "B300, and AMD's V520" in PAGE
