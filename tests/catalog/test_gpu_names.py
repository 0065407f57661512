import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusonde.catalog import GpuCatalog, Resolution, UnknownGpuError, load_gpus
from gpusonde.catalog.gpus import normalise_name

GPUS = load_gpus()


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        # NVML and nvidia-smi
        ("Tesla T4", "T4"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA H200 NVL", "H200-NVL-141GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA GH200 120GB", "GH200-96GB"),
        ("NVIDIA H20", "H20-96GB"),
        ("NVIDIA H800 PCIe", "H800-PCIe-80GB"),
        ("NVIDIA A800-SXM4-80GB", "A800-SXM4-80GB"),
        ("NVIDIA A800 80GB PCIe", "A800-PCIe-80GB"),
        ("NVIDIA L20", "L20"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("NVIDIA GeForce RTX 5080", "RTX 5080"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Workstation"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Max-Q"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla V100-PCIE-32GB", "V100-PCIe-32GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("A100-SXM-80GB", "A100-SXM4-80GB"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 2080 Super with Max-Q Design", "RTX 2080 Super Max-Q"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA TITAN X (Pascal)", "TITAN X (Pascal)"),
        ("GeForce GTX TITAN X", "GTX TITAN X"),
        # tables that lost their spaces
        ("TeslaP100-PCIE-16GB", "P100-PCIe-16GB"),
        ("NVIDIAA10G", "A10G"),
        ("TeslaT4", "T4"),
        # lspci, counts
        ("NVIDIA Corporation TU104GL [Tesla T4] (rev a1)", "T4"),
        ("1x L4", "L4"),
        # instance types
        ("g4dn", "T4"),
        ("g4dn.xlarge", "T4"),
        ("G4DN.metal", "T4"),
        ("p3", "V100-SXM2-16GB"),
        ("p3.2xlarge", "V100-SXM2-16GB"),
        ("p3dn.24xlarge", "V100-SXM2-32GB"),
        ("p4d", "A100-SXM4-40GB"),
        ("p4de.24xlarge", "A100-SXM4-80GB"),
        ("g5", "A10G"),
        ("g5g.xlarge", "T4G"),
        ("g6e.48xlarge", "L40S"),
        ("a2-highgpu-1g", "A100-SXM4-40GB"),
        ("gpu-h200-sxm_1gpu-16vcpu-200gb", "H200-SXM-141GB"),
        ("Standard_NC6s_v3", "V100-PCIe-16GB"),
        ("gpu_1x_a6000", "RTX A6000"),
        ("p6-b300.48xlarge", "B300"),
        ("p6e-gb200.36xlarge", "GB200"),
        ("a4x-highgpu-4g", "GB200"),
        ("Standard_ND128isr_NDR_GB200_v6", "GB200"),
    ],
)
def test_a_name_that_means_one_gpu_resolves_without_a_note(gpus: GpuCatalog, spelling: str, name: str) -> None:
    resolution = gpus.resolve(spelling)
    assert (resolution.spec.name, resolution.note, resolution.requested) == (name, "", spelling)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("A10", "A100"),
        ("A10", "A10G"),
        ("T4", "T4G"),
        ("L4", "L40"),
        ("L40", "L40S"),
        ("P4", "P40"),
        ("H100", "GH200"),
        ("H20", "H200"),
        ("B200", "GB200"),
    ],
)
def test_names_that_contain_each_other_mean_different_gpus(gpus: GpuCatalog, first: str, second: str) -> None:
    assert gpus.resolve(first).spec.name != gpus.resolve(second).spec.name


@pytest.mark.parametrize(
    "name",
    [
        "T400",
        "A1",
        "A1000",
        "L",
        "L400",
        "P400",
        "H10",
        "H1000",
        "H20-3e",
        "L2",
        "RTX 5090 D",
        "RTX 5090 Laptop GPU",
        "V10",
        "RTX",
        "RTX 3",
        "T4é",
    ],
)
def test_part_of_a_name_is_never_taken_for_the_gpu(gpus: GpuCatalog, name: str) -> None:
    with pytest.raises(UnknownGpuError):
        gpus.resolve(name)


@pytest.mark.parametrize(
    ("name", "taken_for", "also"),
    [
        ("V100", "V100-SXM2-16GB", "V100-PCIe-16GB"),
        ("Tesla V100", "V100-SXM2-16GB", "V100-SXM2-32GB"),
        ("A100", "A100-SXM4-40GB", "A100-PCIe-80GB"),
        ("H100", "H100-SXM5-80GB", "H100-PCIe-80GB"),
        ("p100", "P100-PCIe-16GB", "P100-SXM2-16GB"),
        ("Titan X", "TITAN X (Pascal)", "GTX TITAN X"),
        ("RTX 6000", "Quadro RTX 6000", "RTX 6000 Ada"),
        ("RTX 5000", "Quadro RTX 5000", "RTX 5000 Ada (not in the catalogue)"),
    ],
)
def test_an_ambiguous_name_says_what_it_was_taken_for(gpus: GpuCatalog, name: str, taken_for: str, also: str) -> None:
    resolution = gpus.resolve(name)
    assert resolution.spec.name == taken_for == resolution.candidates[0]
    assert resolution.note.startswith(f"taken for {taken_for}; also possible: ")
    assert also in resolution.note


@pytest.mark.parametrize(
    ("name", "visible_mib", "expected", "note"),
    [
        ("V100", 16160, "V100-SXM2-16GB", "taken for V100-SXM2-16GB; also possible: V100-PCIe-16GB"),
        (
            "V100",
            32510,
            "V100-SXM2-32GB",
            "taken for V100-SXM2-32GB; also possible: V100-PCIe-32GB, V100S-PCIe-32GB",
        ),
        ("A100", 81920, "A100-SXM4-80GB", "taken for A100-SXM4-80GB; also possible: A100-PCIe-80GB"),
        ("H100", 95830, "H100-NVL-94GB", ""),
        ("P100", 12198, "P100-PCIe-12GB", ""),
        ("Tesla T4", 15109, "T4", ""),
        ("Tesla T4", 1024, "T4", "taken for T4, but 1.0 GiB of memory do not fit it"),
        ("RTX 5000", 16125, "Quadro RTX 5000", ""),
    ],
)
def test_the_framebuffer_tells_variants_apart(
    gpus: GpuCatalog, name: str, visible_mib: int, expected: str, note: str
) -> None:
    resolution = gpus.resolve(name, memory_bytes=visible_mib * 2**20)
    assert (resolution.spec.name, resolution.note) == (expected, note)


def test_memory_that_fits_no_candidate_is_said(gpus: GpuCatalog) -> None:
    resolution = gpus.resolve("V100", memory_bytes=5 * 2**30)
    assert resolution.spec.name == "V100-SXM2-16GB"
    assert resolution.note.endswith("; 5.0 GiB of memory fit none of them")


def test_a_count_is_left_out_and_said(gpus: GpuCatalog) -> None:
    resolution = gpus.resolve("8x NVIDIA B200")
    assert (resolution.spec.name, resolution.note) == ("B200", "one of the 8 GPUs")
    assert gpus.resolve("8xH100").note.startswith("one of the 8 GPUs; taken for H100-SXM5-80GB; also possible: ")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "a MIG slice"),
        ("GRID T4-16Q", "a virtual GPU (vGPU)"),
        ("NVIDIA A10-24Q", "a virtual GPU (vGPU)"),
        ("g6f.large", "a fraction of an L4"),
        ("g4ad.xlarge", "AMD Radeon Pro V520, not NVIDIA: nothing measured"),
        ("dl1.24xlarge", "Intel Gaudi, not NVIDIA: nothing measured"),
        ("inf2.xlarge", "AWS Inferentia2, not NVIDIA: nothing measured"),
        ("Standard_NV6ads_A10_v5", "a fraction of an A10"),
        ("MI300X", "AMD, not NVIDIA: nothing measured"),
        ("8x AMD Instinct MI325X", "AMD, not NVIDIA: nothing measured"),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct MI300X]", "AMD, not NVIDIA: nothing measured"),
        ("Radeon RX 7900 XTX", "AMD, not NVIDIA: nothing measured"),
        ("mi250x", "AMD, not NVIDIA: nothing measured"),
        ("Gaudi2", "Intel, not NVIDIA: nothing measured"),
        ("Intel Gaudi 3", "Intel, not NVIDIA: nothing measured"),
        ("HL-225", "Intel, not NVIDIA: nothing measured"),
        ("Data Center GPU Max 1550", "Intel, not NVIDIA: nothing measured"),
        ("TPU v5p", "Google, not NVIDIA: nothing measured"),
        ("Ascend 910B", "Huawei, not NVIDIA: nothing measured"),
        ("Apple M3 Max", "Apple, not NVIDIA: nothing measured"),
    ],
)
def test_what_is_no_whole_nvidia_gpu_is_refused_with_the_reason(gpus: GpuCatalog, name: str, reason: str) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        gpus.resolve(name)
    assert caught.value.reason == reason
    assert f"is {reason}; name a whole NVIDIA GPU" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected", "sm_count", "gibibytes"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100-SXM4-40GB MIG 1g.5gb", 14, 5),
        ("NVIDIA-A100-SXM4-80GB-MIG-2g.20gb", "A100-SXM4-80GB MIG 2g.20gb", 28, 20),
        ("A100 3g.40gb", "A100-SXM4-80GB MIG 3g.40gb", 42, 40),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "H100-SXM5-80GB MIG 1g.10gb", 16, 10),
        ("a30 mig 2G.12GB", "A30 MIG 2g.12gb", 28, 12),
    ],
)
def test_a_slice_has_its_share_of_the_gpu(
    gpus: GpuCatalog, name: str, expected: str, sm_count: int, gibibytes: int
) -> None:
    resolution = gpus.resolve(name, with_slices=True)
    spec, whole = resolution.spec, gpus.get(resolution.spec.name.partition(" MIG ")[0])
    assert (spec.name, spec.sm_count, spec.memory_bytes / 2**30) == (expected, sm_count, gibibytes)
    assert spec.is_slice
    assert not whole.is_slice
    assert spec.fp32_tflops / whole.fp32_tflops == pytest.approx(sm_count / whole.sm_count)
    share = spec.memory_bandwidth_bytes_per_second / whole.memory_bandwidth_bytes_per_second
    assert share == pytest.approx(spec.memory_bytes / whole.memory_bytes)
    assert (spec.nvlink_bytes_per_second, spec.power_limit_watts) == (0.0, None)
    assert f"{sm_count} of {whole.sm_count} SMs" in resolution.note
    assert gpus.get(spec.name) == spec
    for attribute in spec.figures():
        assert spec.source_of(attribute).title


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("T4 MIG 1g.5gb", "none of T4 is known"),
        ("B200 MIG 1g.23gb", "none of B200 is known"),
        ("A30 MIG 3g.18gb", "known are 1g.6gb, 2g.12gb, 4g.24gb"),
        ("A30 MIG 1c.2g.12gb", "known are 1g.6gb"),
        ("MIG 1g.5gb", "a GPU that is not named"),
        ("nvidia.com/mig-1g.5gb", "a GPU that is not named"),
        ("A100 MIG", "is a MIG slice;"),
    ],
)
def test_a_slice_whose_share_is_not_known_is_refused(gpus: GpuCatalog, name: str, reason: str) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        gpus.resolve(name, with_slices=True)
    assert reason in str(caught.value)


@pytest.mark.parametrize("name", ["RTX 5090 D", "MI", "Amdahl", "Quadro M6000", "GT 710"])
def test_an_unknown_name_of_no_other_vendor_is_simply_unknown(gpus: GpuCatalog, name: str) -> None:
    with pytest.raises(UnknownGpuError, match="unknown GPU") as caught:
        gpus.resolve(name)
    assert caught.value.reason == ""


def test_accelerators_of_other_vendors_can_be_read_with_sources(gpus: GpuCatalog) -> None:
    other = gpus.find_other("AMD Instinct mi300x")
    assert other is not None
    assert (other.name, other.vendor) == ("MI300X", "AMD")
    figures = other.figures()
    assert figures["memory_bytes"] == 192 * 2**30
    assert figures["memory_bandwidth_bytes_per_second"] == pytest.approx(5.3e12)
    assert figures["tensor_fp8_tflops"] == 2610
    for each in gpus.others:
        assert not {"sm_count", "compute_capability"} & set(each.figures())
        assert all(each.source_of(figure).retrieved for figure in each.figures())
        with pytest.raises(UnknownGpuError, match="not NVIDIA: nothing measured"):
            gpus.resolve(each.name)
    assert gpus.find_other("H100") is None


def test_an_unknown_name_gives_the_nearest_ones(gpus: GpuCatalog) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        gpus.resolve("NVIDIA GeForce RTX 3091")
    assert caught.value.nearest[0] == "RTX 3090"
    assert str(caught.value).startswith("unknown GPU 'NVIDIA GeForce RTX 3091'; nearest: RTX 3090")


def test_a_long_unknown_name_gives_a_short_message(gpus: GpuCatalog) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        gpus.resolve("x" * 1_000_000)
    assert len(str(caught.value)) < 500


def test_every_alias_and_canonical_name_leads_back_to_its_gpu(gpus: GpuCatalog) -> None:
    for spec in gpus.specs:
        for alias in (spec.name, *spec.aliases):
            for spelling in (alias, alias.upper(), f"NVIDIA {alias.lower()}", alias.replace("-", " ")):
                resolution = gpus.resolve(spelling)
                assert (resolution.spec.name, resolution.note) == (spec.name, ""), spelling


def test_get_takes_canonical_names_only(gpus: GpuCatalog) -> None:
    assert gpus.get("T4").name == "T4"
    with pytest.raises(UnknownGpuError, match="nearest: T4"):
        gpus.get("Tesla T4")


fragments = st.sampled_from(
    ["NVIDIA", "Tesla", "GeForce", "V100", "A10", "A100", "T4", "g4dn", ".", "-", " ", "[", "]", "8x", "MIG", "1g.5gb"]
)


@settings(max_examples=150, deadline=None)
@given(
    name=st.one_of(st.text(max_size=80), st.lists(fragments, max_size=6).map("".join)),
    memory=st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)),
)
def test_any_string_resolves_or_is_refused(name: str, memory: float | None) -> None:
    try:
        resolution = GPUS.resolve(name, memory_bytes=memory)
    except UnknownGpuError as error:
        assert str(error)  # noqa: PT017
    else:
        assert isinstance(resolution, Resolution)
        assert resolution.spec in GPUS.specs


def test_a_name_of_megabytes_is_unknown_at_once_and_in_few_words():
    gpus = load_gpus()
    for name in ("tesla" * 400_000, "A100 " * 400_000, "1" * 2_000_000):
        with pytest.raises(UnknownGpuError) as error:
            gpus.resolve(name)
        assert len(str(error.value)) < 1000
        assert normalise_name(name).startswith(("tesla", "a100", "1"))
    assert normalise_name("NVIDIA Tesla " * 1000 + "T4") == "t4"
