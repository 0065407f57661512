"""The entries against the measurement files they were taken from, and against what real devices report."""

import csv
from pathlib import Path

import pytest

from gpusonde.catalog import GpuCatalog, OfferCatalog

DATA = Path(__file__).parents[3] / "shared" / "data"
pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not DATA.is_dir(), reason="needs the measurement files in ../shared/data"),
]


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# Column of gpu_specs.csv -> attribute, factor.
COLUMNS = {
    "compute_capability": ("compute_capability", 1.0),
    "sms": ("sm_count", 1.0),
    "cuda_cores": ("cuda_cores", 1.0),
    "tensor_cores": ("tensor_cores", 1.0),
    "base_mhz": ("base_clock_mhz", 1.0),
    "boost_mhz": ("boost_clock_mhz", 1.0),
    "mem_gb": ("memory_bytes", 2.0**30),
    "bus_bits": ("memory_bus_bits", 1.0),
    "mem_bw_gbs": ("memory_bandwidth_bytes_per_second", 1e9),
    "l2_mb": ("l2_cache_bytes", 2.0**20),
    "l1_kb_per_sm": ("l1_cache_bytes_per_sm", 2.0**10),
    "fp32_tflops": ("fp32_tflops", 1.0),
    "fp16_tflops_nontensor": ("fp16_tflops", 1.0),
    "fp64_tflops": ("fp64_tflops", 1.0),
    "tensor_fp16_tflops_dense": ("tensor_fp16_tflops", 1.0),
    "tensor_tf32_tflops_dense": ("tensor_tf32_tflops", 1.0),
    "power_limit_w": ("power_limit_watts", 1.0),
    "nvlink_gbs": ("nvlink_bytes_per_second", 1e9),
    "cores_per_sm": ("cores_per_sm", 1.0),
    "max_threads_per_sm": ("max_threads_per_sm", 1.0),
    "shared_mem_per_sm_kb": ("shared_memory_bytes_per_sm", 2.0**10),
}
# Where we depart from the table, each explained by the GPU's note or docs/catalog.md.
HOPPER_AND_LATER = ("H100-PCIe-80GB", "H100-SXM5-80GB", "H200-SXM-141GB", "H200-NVL-141GB", "GH200-96GB", "B200")
DEPARTURES = {
    ("T4", "fp16_tflops"),
    ("A10", "fp64_tflops"),
    ("TITAN V", "l1_cache_bytes_per_sm"),
    *((gpu, "fp16_tflops") for gpu in HOPPER_AND_LATER),
    *((gpu, "l1_cache_bytes_per_sm") for gpu in HOPPER_AND_LATER),
}


def test_every_figure_of_the_table_is_entered_and_departures_are_the_known_ones(gpus: GpuCatalog) -> None:
    departures = set()
    table = rows("cross_gpu/gpu_specs.csv")
    assert len(table) == 46
    for row in table:
        spec = gpus.get(row["gpu"])
        for column, (attribute, factor) in COLUMNS.items():
            ours = getattr(spec, attribute)
            if not row[column]:
                assert ours is None, (spec.name, attribute)
            elif ours != pytest.approx(float(row[column]) * factor, rel=1e-3):
                departures.add((spec.name, attribute))
        assert row["pcie"] == f"PCIe {spec.pcie_generation}.0 x{spec.pcie_lanes}"
        assert row["release"] == spec.released
    assert departures == DEPARTURES


def test_figures_agree_with_what_the_devices_of_the_paper_report(gpus: GpuCatalog) -> None:
    for row in rows("cross_gpu/hardware_metrics_runs.csv"):
        by_name = gpus.resolve(row["name"])
        by_instance = gpus.resolve(row["Instances"], memory_bytes=float(row["memory_totalMiB"]) * 2**20)
        assert by_name.spec == by_instance.spec
        assert by_name.note == ""
        spec = by_name.spec
        assert spec.sm_count == int(row["Multiprocessors"])
        assert spec.cuda_cores == int(row["CUDA Cores"])
        assert spec.boost_clock_mhz == pytest.approx(float(row["GPU Max Clock rate(MHz)"]), rel=1e-3)
        assert spec.memory_bus_bits == float(row["Memory Bus Width"])
        assert spec.l2_cache_bytes == float(row["L2 Cache Size"])
        assert spec.shared_memory_bytes_per_sm == float(row["Total shared memory per multiprocessor"])
        assert spec.max_threads_per_sm == float(row["Maximum number of threads per multiprocessor"])
        assert spec.power_limit_watts == float(row["power_default_limitW"])
        # The table's own bandwidth column is wrong for the P100: recomputed from clock and bus, double data rate.
        bandwidth = float(row["Memory Clock rate"]) * 1e6 * 2 * float(row["Memory Bus Width"]) / 8
        assert spec.memory_bandwidth_bytes_per_second == pytest.approx(bandwidth, rel=0.01)


def test_every_gpu_of_the_wide_table_is_known_by_that_name(gpus: GpuCatalog) -> None:
    for name in {row["gpu"] for row in rows("cross_gpu/cross_gpu_long.csv")}:
        resolution = gpus.resolve(name)
        assert (resolution.spec.name, resolution.note) == (name, "")


def test_every_price_of_the_table_is_entered_or_left_out_for_the_documented_reason(offers: OfferCatalog) -> None:
    entered = {(offer.provider, offer.region, offer.billing, offer.usd_per_hour) for offer in offers.all}
    left_out = []
    for row in rows("distributed/catalog.csv"):
        region = "all" if row["cloud"] == "lambda" else row["region"]
        for billing, column in (("on_demand", "on_demand_usd_h"), ("spot", "spot_usd_h")):
            if not row[column]:
                continue
            price = float(row[column])
            # On-demand prices of 2020 are entered per region, not per zone.
            regions = (region, region[:-1]) if billing == "on_demand" else (region,)
            if not any((row["cloud"], where, billing, price) in entered for where in regions):
                left_out.append((row["date"], region[:3], billing))
    # European list prices of 2020 are the US ones: spot prices above them tell.
    assert set(left_out) == {("2020-01..03", "eu-", "on_demand")}
