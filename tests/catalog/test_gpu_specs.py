import math
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from gpusonde.catalog import CatalogError, GpuCatalog, UnknownGpuError, load_gpus

ENTRY = """
[sources.sheet]
title = "A data sheet"
url = "https://example.org/sheet"
retrieved = "2026-11-20"

[[gpu]]
name = "X1"
aliases = ["Example X1"]
source = "sheet"
architecture = "Example"
compute_capability = 9.0
sm_count = 10
cuda_cores = 1280
tensor_cores = 40
boost_clock_mhz = 1000
memory_gib = 16
memory_type = "HBM3"
memory_bus_bits = 1024
memory_bandwidth_gb_per_s = 800
fp32_tflops = 2.56
"""


OTHER = "[[other_accelerator]]\nname = 'Y1'\nvendor = 'Y'\narchitecture = 'Y'\nmemory_type = 'HBM3'\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "more.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_figures_are_in_the_units_of_their_names(gpus: GpuCatalog) -> None:
    t4 = gpus.get("T4")
    assert t4.memory_bytes == 16 * 2**30
    assert t4.l2_cache_bytes == 4 * 2**20
    assert t4.shared_memory_bytes_per_sm == 64 * 2**10
    assert t4.memory_bandwidth_bytes_per_second == pytest.approx(320e9)
    assert (t4.sm_count, t4.cuda_cores, t4.cores_per_sm, t4.compute_capability) == (40, 2560, 64, 7.5)
    assert (t4.pcie_generation, t4.pcie_lanes, t4.nvlink_bytes_per_second) == (3, 16, 0)


def test_figures_hold_every_known_number_and_nothing_else(gpus: GpuCatalog) -> None:
    for spec in gpus.specs:
        figures = spec.figures()
        assert all(isinstance(value, float) and math.isfinite(value) for value in figures.values())
        assert all(figures[name] == getattr(spec, name) for name in figures)
        assert {"fp32_tflops", "memory_bandwidth_bytes_per_second", "max_threads_per_sm", "cores_per_sm"} <= set(
            figures
        )
        assert not {"name", "aliases", "note", "sources", "memory_type"} & set(figures)


def test_every_figure_has_a_dated_source(gpus: GpuCatalog) -> None:
    for spec in gpus.specs:
        for attribute in (*spec.figures(), "architecture", "memory_type"):
            source = spec.source_of(attribute)
            assert source.title
            assert source.retrieved


def test_figures_from_memory_are_marked(gpus: GpuCatalog) -> None:
    t4 = gpus.get("T4")
    assert t4.source_of("tensor_fp16_tflops").from_memory
    assert not t4.source_of("fp32_tflops").from_memory
    assert t4.from_memory() == ("tensor_fp16_tflops",)
    assert "fp32_tflops" in gpus.get("V100-PCIe-32GB").from_memory()


def test_a_figure_without_value_has_no_source(gpus: GpuCatalog) -> None:
    gb200 = gpus.get("GB200")
    assert gb200.base_clock_mhz is None
    with pytest.raises(KeyError, match="no figure named 'base_clock_mhz'"):
        gb200.source_of("base_clock_mhz")


@pytest.mark.parametrize(
    ("name", "fp16", "bf16", "fp8"),
    [
        ("P100-PCIe-16GB", 0, 0, 0),
        ("V100-SXM2-16GB", 125, 0, 0),
        ("T4", 65, 0, 0),
        ("A100-SXM4-80GB", 312, 312, 0),
        ("RTX 3090", 71.2, 71.2, 0),
        ("L4", 121, 121, 242),
        ("RTX 4090", 165.2, 165.2, 330.3),
        ("H100-SXM5-80GB", 989, 989, 1979),
        ("H20-96GB", 148, 148, 296),
        ("RTX 5090", 209.5, 209.5, 419),
        ("GB200", 2500, 2500, 5000),
        ("B300", 2250, 2250, 4500),
    ],
)
def test_what_tensor_cores_multiply_and_how_fast(
    gpus: GpuCatalog, name: str, fp16: float, bf16: float, fp8: float
) -> None:
    spec = gpus.get(name)
    assert (spec.tensor_fp16_tflops, spec.tensor_bf16_tflops, spec.tensor_fp8_tflops) == (fp16, bf16, fp8)
    assert spec.source_of("tensor_bf16_tflops").title


def test_every_gpu_with_fp8_has_its_rate_and_no_other_has(gpus: GpuCatalog) -> None:
    for spec in gpus.specs:
        assert bool(spec.tensor_bf16_tflops) == (spec.compute_capability >= 8.0), spec.name
        assert bool(spec.tensor_fp8_tflops) == (spec.compute_capability >= 8.9), spec.name
        if spec.tensor_fp8_tflops:
            assert spec.tensor_fp8_tflops == pytest.approx(2 * (spec.tensor_bf16_tflops or 0), rel=0.02), spec.name


def test_peak_rates_are_consistent_between_precisions(gpus: GpuCatalog) -> None:
    for spec in gpus.specs:
        if spec.fp16_tflops is not None:
            # From 1/64 (Pascal GeForce) to 4 times (GA100) the FP32 rate; more is a tensor rate in the wrong column.
            assert 1 / 65 < spec.fp16_tflops / spec.fp32_tflops < 4.1, spec.name
        if spec.tensor_fp16_tflops and spec.tensor_tf32_tflops:
            assert spec.tensor_fp16_tflops == pytest.approx(2 * spec.tensor_tf32_tflops, rel=0.02), spec.name


def test_specs_survive_pickling_for_worker_processes(gpus: GpuCatalog) -> None:
    spec = gpus.get("A10G")
    copy = pickle.loads(pickle.dumps(spec))
    assert copy == spec
    assert hash(copy) == hash(spec)
    assert copy.source_of("sm_count") == spec.source_of("sm_count")


def test_a_further_file_adds_gpus(tmp_path: Path) -> None:
    catalog = load_gpus(write(tmp_path, ENTRY))
    spec = catalog.resolve("example-x1").spec
    assert spec.cores_per_sm == 128
    # Rates that the file does not give are not known, neither made up nor zero.
    assert (spec.tensor_fp16_tflops, spec.tensor_bf16_tflops, spec.tensor_fp8_tflops) == (None, None, None)
    # Compute capability 9.0 of the shipped file holds for it, with that file's source.
    assert spec.shared_memory_bytes_per_sm == 228 * 1024
    assert "CCCL" in spec.source_of("shared_memory_bytes_per_sm").title
    assert spec.l2_cache_bytes is None
    assert catalog.resolve("Tesla T4").spec.name == "T4"


def test_catalogues_share_no_state(tmp_path: Path) -> None:
    load_gpus(write(tmp_path, ENTRY))
    with pytest.raises(UnknownGpuError):
        load_gpus().resolve("X1")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("fp32_tflops = 2.56", "fp32_tflops = 2.7"), "cuda_cores x 2 x boost_clock_mhz gives 2.560"),
        (("_per_s = 800", "_per_s = 100"), "0.78 Gbit/s per pin; HBM3 runs at 4.7 to 6.8"),
        (("cuda_cores = 1280", "cuda_cores = 1285"), "no multiple of sm_count"),
        (("memory_gib = 16", "memory_gib = 17179869184"), "memory_gib = 17179869184 is outside 1..2000"),
        (("memory_gib = 16", "memory_gib = nan"), "memory_gib = nan is outside"),
        (("memory_gib = 16", 'memory_gib = "16"'), "memory_gib must be a number, not '16'"),
        (("sm_count = 10\n", ""), "lacks sm_count"),
        (("sm_count = 10", "sms = 10"), "unknown key 'sms'"),
        (('source = "sheet"', 'source = "shed"'), "source 'shed' is not defined; known: "),
        (('source = "sheet"', ""), "source None is not defined"),
        (
            ('source = "sheet"', 'source = "sheet"\nsource_of = { l2_cache_mib = "sheet" }'),
            "which the table does not hold",
        ),
        (("compute_capability = 9.0", "compute_capability = 9.9"), "lacks max_threads_per_sm"),
        (("tensor_cores = 40", "tensor_cores = 0\ntensor_fp16_tflops = 10"), "tensor_fp16_tflops needs tensor_cores"),
        (("boost_clock_mhz = 1000", "base_clock_mhz = 1200\nboost_clock_mhz = 1000"), "base_clock_mhz 1200 exceeds"),
        (('"Example X1"', '"Tesla T4"'), "'Tesla T4' names both 'T4' and 'X1'"),
        (('"Example X1"', '"V100"'), "'V100' is ambiguous and an alias of 'X1'"),
        (('name = "X1"', 'name = "T4"'), "gpu 'T4' is defined twice"),
        (('"Example X1"', '"é"'), "holds no plain letters or digits"),
        (("aliases = [", "aliases = [1, "), "aliases must be a list of strings"),
        (('name = "X1"', ""), "a [[gpu]] table has no name"),
        (("[[gpu]]", "[[gpus]]"), "unknown section 'gpus'"),
        (("[[gpu]]", "[families]\nz1 = 'Z'\n[[gpu]]"), "names 'Z', which is no canonical name"),
        (("[[gpu]]", "[families]\nz1 = 1\n[[gpu]]"), "families.z1 must be a string, not 1"),
        (("[[gpu]]", "[ambiguous]\nZ = ['X1']\n[[gpu]]"), "needs candidates"),
        (("[[gpu]]", "[ambiguous]\nZ = { candidates = [] }\n[[gpu]]"), "must be lists of names"),
        (('retrieved = "2026-11-20"', ""), "sources.sheet: lacks retrieved"),
        (('retrieved = "2026-11-20"', "retrieved = 2026"), "retrieved must be a str, not 2026"),
        (('retrieved = "2026-11-20"', 'retrieved = "2026"\nlicence = "MIT"'), "unknown key 'licence'"),
        (("[[gpu]]", "[[other_accelerator]]\nname = 'Y1'\n[[gpu]]"), "'Y1': vendor must be a string, not None"),
        (("[[gpu]]", OTHER + "sm_count = 3\n[[gpu]]"), "'Y1': unknown key 'sm_count'"),
        (("[[gpu]]", OTHER + "memory_gib = 1e9\n[[gpu]]"), "'Y1': memory_gib = 1000000000.0 is outside"),
        (("[[gpu]]", OTHER + "source = 'shed'\nfp32_tflops = 1\n[[gpu]]"), "fp32_tflops: source 'shed' is not defined"),
        (("[[gpu]]", OTHER + "aliases = ['Tesla T4']\n[[gpu]]"), "'Tesla T4' names both 'T4' and 'Y1'"),
        (("[[gpu]]", "[[gpu"), "is not TOML"),
    ],
)
def test_a_figure_that_cannot_be_true_is_refused_by_name(
    tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    assert change[0] in ENTRY
    with pytest.raises(CatalogError) as caught:
        load_gpus(write(tmp_path, ENTRY.replace(*change)))
    assert complaint in str(caught.value)


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="cannot be read: No such file"):
        load_gpus(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CatalogError, match="is not UTF-8 text"):
        load_gpus(tmp_path / "binary.toml")


def test_importing_the_catalogue_reads_no_file_and_needs_no_third_party_package() -> None:
    program = (
        "import builtins, io, sys; before = set(sys.modules)\n"
        "import gpusonde.catalog\n"
        "foreign = {name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        "print(sorted(foreign))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['gpusonde']"
