"""``GpuCatalog``: GPUs by any of their names, however drivers, frameworks and clouds spell them.

``MigProfiles`` are the slices that Multi-Instance GPU cuts a GPU into, each a ``GpuSpec`` of its share. A slice has
SMs, L2 and memory of its own. Compute rates scale with its SMs, memory bandwidth with its memory. Power limit and PCI
Express belong to the board; peers and NVLink a slice does not have.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from gpusonde.catalog.loading import parse_gpu
from gpusonde.catalog.others import OtherAccelerator, find_vendor, parse_other
from gpusonde.catalog.spec import DATA_DIRECTORY, GpuSpec, Source, parse_sources, read_toml
from gpusonde.errors import CatalogError, UnknownGpuError

# As NVML ("NVIDIA A100-SXM4-40GB MIG 3g.20gb"), Kubernetes ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", its resource
# "nvidia.com/mig-1g.5gb") and users write it; "+me" adds media engines, "2c." takes a part of the slice's SMs only.
_NAME = re.compile(
    r"(?:nvidia\.com/)?(?P<gpu>.*?)[\s-]*(?:\bMIG\b)?[\s-]*(?:(?P<part>\d+c)\.)?(?P<profile>\d+g\.\d+gb)(?:\+[\w.]+)?",
    re.IGNORECASE,
)
_PER_SM = (
    "cuda_cores", "tensor_cores", "fp32_tflops", "fp16_tflops", "fp64_tflops", "tensor_fp16_tflops",
    "tensor_tf32_tflops", "tensor_bf16_tflops", "tensor_fp8_tflops",
)  # fmt: skip
_PER_MEMORY = ("memory_bytes", "memory_bus_bits", "memory_bandwidth_bytes_per_second", "l2_cache_bytes")
_KEYS = {"gpus", "source", "memory_slices", "profiles"}


def split_slice(name: str) -> tuple[str, str] | None:
    """Split the name of a slice into the GPU's and the profile's (``3g.20gb``); None where it names no profile.

    Of a compute instance, which has a part of a slice's SMs, the profile is empty.
    """
    found = _NAME.fullmatch(name.strip())
    return None if found is None else (found["gpu"].strip(" -"), "" if found["part"] else found["profile"].lower())


@dataclass(frozen=True)
class MigProfiles:
    """Profiles of GPUs that are cut alike.

    Attributes:
        gpus: Canonical names.
        memory_slices: Parts that the memory is cut into.
        profiles: Profile -> its SMs, and how many parts of the memory it has.
        source: Where they were read.
    """

    gpus: tuple[str, ...]
    memory_slices: int
    profiles: Mapping[str, tuple[int, int]] = field(compare=False)
    source: Source = field(repr=False, compare=False)

    def cut(self, spec: GpuSpec, profile: str) -> GpuSpec:
        """Return a slice of a GPU.

        Raises:
            KeyError: The GPU is not cut so.
        """
        sm_count, memory = self.profiles[profile]
        figures: dict[str, Any] = {"sm_count": sm_count, "nvlink_bytes_per_second": 0.0, "power_limit_watts": None}
        for names, share in ((_PER_SM, sm_count / spec.sm_count), (_PER_MEMORY, memory / self.memory_slices)):
            for name in names:
                whole = getattr(spec, name)
                counted = not name.endswith(("_tflops", "_per_second"))
                figures[name] = None if whole is None else round(whole * share) if counted else whole * share
        sources = {name: self.source if name in figures else source for name, source in spec.sources.items()}
        sources.pop("power_limit_watts", None)
        return replace(
            spec,
            name=f"{spec.name} MIG {profile}",
            aliases=(),
            note=f"{sm_count} of {spec.sm_count} SMs, {memory} of {self.memory_slices} parts of the memory",
            sources=sources,
            **figures,
        )


def parse_mig(table: object, sources: Mapping[str, Source], path: Path) -> MigProfiles:
    """Read one ``[[mig]]`` table of a data file.

    Raises:
        CatalogError: It is none.
    """
    if not isinstance(table, Mapping) or set(table) != _KEYS:
        raise CatalogError(f"{path}: a [[mig]] table has the keys {', '.join(sorted(_KEYS))}")
    gpus, slices, profiles = table["gpus"], table["memory_slices"], table["profiles"]
    where = f"{path}: mig of {gpus!r}"
    if table["source"] not in sources:
        raise CatalogError(f"{where}: source {table['source']!r} is not defined")
    if not isinstance(gpus, list) or not all(isinstance(name, str) for name in gpus):
        raise CatalogError(f"{where}: gpus must be a list of names")
    if not isinstance(slices, int) or not isinstance(profiles, Mapping):
        raise CatalogError(f"{where}: memory_slices must be a whole number, profiles a table")
    for profile, parts in profiles.items():
        whole = isinstance(parts, list) and len(parts) == 2 and all(isinstance(part, int) for part in parts)
        if split_slice(f"x MIG {profile}") != ("x", profile) or not whole or not 0 < parts[1] <= slices or parts[0] < 1:
            raise CatalogError(f'{where}: {profile!r} must be SMs and parts of the memory, as "1g.5gb" = [14, 1]')
    parts_of = {profile: (parts[0], parts[1]) for profile, parts in profiles.items()}
    return MigProfiles(tuple(gpus), slices, parts_of, sources[table["source"]])


# NVML says "Tesla T4", torch "NVIDIA A10G", a spreadsheet "TeslaP100-PCIE-16GB" without the space.
_VENDOR_WORDS = ("nvidia", "corporation", "tesla", "geforce")
_COUNT = re.compile(r"\s*(\d{1,3})\s*[x×]\s*(?=\S)", re.IGNORECASE)
_LSPCI = re.compile(r"\[([^\[\]]+)\]")
_SLICES = (
    (re.compile(r"\bMIG\b", re.IGNORECASE), "a MIG slice"),
    (re.compile(r"\b\d+g\.\d+gb\b", re.IGNORECASE), "a MIG slice"),
    (re.compile(r"\bGRID\b", re.IGNORECASE), "a virtual GPU (vGPU)"),
    # "NVIDIA A10-24Q", "A100-40C", "T4-16B": profile size in GB and the licence's letter.
    (re.compile(r"[A-Za-z]\d+[A-Za-z]?-\d{1,3}[QCBA]$"), "a virtual GPU (vGPU)"),
)


def normalise_name(name: str) -> str:
    """Spelling-insensitive key: lower case letters and digits, without vendor and brand prefixes.

    Brands that tell products apart (Quadro, TITAN, RTX, GTX) stay.
    """
    text = unicodedata.normalize("NFKC", name).casefold()
    key = "".join(character for character in text if character.isascii() and character.isalnum())
    # A letter that the key cannot hold must not vanish: "T4é" is not a T4.
    if any(character.isalnum() and not character.isascii() for character in text):
        return ""
    begin = 0
    while word := next((word for word in _VENDOR_WORDS if key.startswith(word, begin)), ""):
        if begin + len(word) == len(key):
            break
        begin += len(word)
    return key[begin:]


def split_count(name: str) -> tuple[str, int]:
    """Split "8x H100" into the name and the count; the count is 1 where none is written."""
    match = _COUNT.match(name)
    return (name[match.end() :], int(match.group(1))) if match else (name, 1)


def find_bracketed(name: str) -> str | None:
    """Return the product inside the brackets of an lspci line ("TU104GL [Tesla T4]"), or None."""
    match = _LSPCI.search(name)
    return match.group(1) if match else None


def find_slice_kind(name: str) -> str | None:
    """Return what part of a GPU the name stands for ("a MIG slice"), or None for a whole one."""
    return next((kind for pattern, kind in _SLICES if pattern.search(name)), None)


# Visible over nominal memory: 0.92 on a T4 with ECC, 1.0 on a P100.
_VISIBLE_MEMORY_LOW = 0.87
_VISIBLE_MEMORY_HIGH = 1.02
# Longer names are cut before the nearest known one is looked for.
_LONGEST_NAME = 120
# Of lspci, for example, which has the name in brackets.
_LONGEST_LINE = 1000
_NOT_NVIDIA = "not NVIDIA: nothing measured"
_SECTIONS = (
    "sources",
    "compute_capability",
    "ambiguous",
    "families",
    "not_whole_nvidia_gpus",
    "gpu",
    "mig",
    "other_accelerator",
)


@dataclass(frozen=True)
class Resolution:
    """What a name was taken for.

    Attributes:
        spec: The GPU.
        requested: The name as given.
        note: Empty when the name means this GPU and no other; else what was assumed, for the user to see.
        candidates: Canonical names that the name could mean, the taken one first.
        is_machine: Whether the name is an instance type's or a family's of these.
    """

    spec: GpuSpec
    requested: str
    note: str = ""
    candidates: tuple[str, ...] = ()
    is_machine: bool = False


@dataclass(frozen=True)
class AmbiguousName:
    """A name that stands for several GPUs.

    Attributes:
        name: The name.
        candidates: Canonical names, the one to take first.
        others: GPUs that the name could also mean and that the catalogue does not hold.
    """

    name: str
    candidates: tuple[str, ...]
    others: tuple[str, ...] = ()


class GpuCatalog:
    """The GPUs, their names and what each name means.

    Args:
        specs: The GPUs, in listing order.
        ambiguous: Names that stand for several of them.
        families: Instance family -> canonical name.
        not_whole_gpus: Instance family -> what it rents instead of a whole NVIDIA GPU.
        others: Accelerators of other vendors, for reading: ``resolve`` refuses them.
        mig: What GPUs are cut into.

    Raises:
        CatalogError: Two GPUs share a name, or a name points to a GPU that is not there.
    """

    def __init__(
        self,
        specs: Iterable[GpuSpec],
        *,
        ambiguous: Iterable[AmbiguousName] = (),
        families: Mapping[str, str] | None = None,
        not_whole_gpus: Mapping[str, str] | None = None,
        others: Iterable[OtherAccelerator] = (),
        mig: Iterable[MigProfiles] = (),
    ) -> None:
        self.specs: tuple[GpuSpec, ...] = tuple(specs)
        self.others: tuple[OtherAccelerator, ...] = tuple(others)
        self.ambiguous: tuple[AmbiguousName, ...] = tuple(ambiguous)
        self._families = dict(families or {})
        self._not_whole_gpus = dict(not_whole_gpus or {})
        self._mig = {name: profiles for profiles in mig for name in profiles.gpus}

    @classmethod
    def load(cls, *extra: Path | str) -> GpuCatalog:
        """Read the shipped data file, then further ones of the same form, which may add GPUs but replace none.

        Raises:
            CatalogError: A file cannot be read, or holds something that cannot be true.
        """
        sources: dict[str, Source] = {}
        capabilities: dict[str, Any] = {}
        specs: list[GpuSpec] = []
        ambiguous: list[AmbiguousName] = []
        families: dict[str, str] = {}
        not_whole: dict[str, str] = {}
        others: list[OtherAccelerator] = []
        mig: list[MigProfiles] = []
        for path in (DATA_DIRECTORY / "gpus.toml", *map(Path, extra)):
            document = read_toml(path)
            unknown = [section for section in document if section not in _SECTIONS]
            if unknown:
                raise CatalogError(f"{path}: unknown section {unknown[0]!r}; known: {', '.join(_SECTIONS)}")
            sources.update(parse_sources(document.get("sources", {}), path))
            capabilities.update(_table(document, "compute_capability", path))
            specs.extend(parse_gpu(table, capabilities, sources, path) for table in document.get("gpu", []))
            ambiguous.extend(_parse_ambiguous(_table(document, "ambiguous", path), path))
            families.update(_strings(document, "families", path))
            not_whole.update(_strings(document, "not_whole_nvidia_gpus", path))
            others.extend(parse_other(table, sources, path) for table in document.get("other_accelerator", []))
            mig.extend(parse_mig(table, sources, path) for table in document.get("mig", []))
        catalog = cls(specs, ambiguous=ambiguous, families=families, not_whole_gpus=not_whole, others=others, mig=mig)
        catalog.check()
        return catalog

    def check(self) -> None:
        """Verify that every name means one thing and leads to a GPU.

        Raises:
            CatalogError: It does not.
        """
        owners: dict[str, str] = {}
        known: tuple[GpuSpec | OtherAccelerator, ...] = (*self.specs, *self.others)
        for spec in known:
            if len([other for other in known if other.name == spec.name]) > 1:
                raise CatalogError(f"gpu {spec.name!r} is defined twice; give each variant its own name")
            for alias in (spec.name, *spec.aliases):
                key = normalise_name(alias)
                if not key:
                    raise CatalogError(f"gpu {spec.name!r}: alias {alias!r} holds no plain letters or digits")
                if owners.setdefault(key, spec.name) != spec.name:
                    raise CatalogError(f"{alias!r} names both {owners[key]!r} and {spec.name!r}")
        for entry in self.ambiguous:
            if owners.setdefault(normalise_name(entry.name), "[ambiguous]") != "[ambiguous]":
                raise CatalogError(
                    f"{entry.name!r} is ambiguous and an alias of {owners[normalise_name(entry.name)]!r}"
                )
            for name in entry.candidates:
                self._require(name, f"ambiguous name {entry.name!r}")
        for family, name in self._families.items():
            self._require(name, f"instance family {family!r}")
        for name, cut in self._mig.items():
            self._require(name, "a [[mig]] table")
            if (most := max(sm_count for sm_count, _ in cut.profiles.values())) > self._by_name[name].sm_count:
                raise CatalogError(f"mig of {name!r}: a profile has {most} SMs, more than the GPU")

    def _require(self, name: str, where: str) -> None:
        if name not in self._by_name:
            raise CatalogError(f"{where} names {name!r}, which is no canonical name of the catalogue")

    @cached_property
    def _by_name(self) -> dict[str, GpuSpec]:
        return {spec.name: spec for spec in self.specs}

    @cached_property
    def _by_key(self) -> dict[str, GpuSpec]:
        return {normalise_name(alias): spec for spec in self.specs for alias in (spec.name, *spec.aliases)}

    @cached_property
    def _ambiguous_by_key(self) -> dict[str, AmbiguousName]:
        return {normalise_name(entry.name): entry for entry in self.ambiguous}

    @cached_property
    def _family_pattern(self) -> re.Pattern[str]:
        # Longest first, so that p4de is not read as p4d; a size must follow a separator, so that g5g is not g5.
        families = sorted((*self._families, *self._not_whole_gpus), key=len, reverse=True)
        return re.compile(rf"(?P<family>{'|'.join(map(re.escape, families))})(?:[._-][\w.-]+)?", re.IGNORECASE)

    def __len__(self) -> int:
        return len(self.specs)

    def get(self, name: str) -> GpuSpec:
        """Return the GPU of this canonical name, or the MIG slice (``A100-SXM4-40GB MIG 1g.5gb``).

        Raises:
            UnknownGpuError: No GPU has it; aliases are not tried.
        """
        try:
            return self._by_name[name]
        except KeyError:
            gpu, _, profile = name.partition(" MIG ")
            if gpu in self._mig and profile in self._mig[gpu].profiles:
                return self._mig[gpu].cut(self._by_name[gpu], profile)
            raise UnknownGpuError(name, self.nearest(name)) from None

    def resolve(self, name: str, *, memory_bytes: float | None = None, with_slices: bool = False) -> Resolution:
        """Find the GPU that a name means.

        Case, spaces, dashes and the words NVIDIA, Tesla and GeForce do not matter. Instance types and families
        ("g4dn.xlarge", "p3") and names with a count ("8xH100") or inside an lspci line resolve, too. Nothing is
        guessed from part of a name: "A10" is not an A100.

        Args:
            name: Any spelling.
            memory_bytes: Device memory as the driver shows it (framebuffer total), to tell variants apart.
            with_slices: Take MIG slices whose share of the GPU is known, too.

        Raises:
            UnknownGpuError: The catalogue holds no such GPU, the name stands for a part of one, or it is not NVIDIA's.
        """
        if len(name) > _LONGEST_LINE:
            raise UnknownGpuError(name)
        if with_slices and (parts := split_slice(name)) is not None:
            return self._cut(name, *parts)
        if (kind := find_slice_kind(name)) is not None:
            raise UnknownGpuError(name, self.nearest(name), kind)
        plain, count = split_count(name.strip())
        spellings = [plain] if (product := find_bracketed(plain)) is None else [plain, product]
        for spelling in spellings:
            resolution = self._resolve_spelling(name, spelling, memory_bytes)
            if resolution is not None:
                if count == 1:
                    return resolution
                note = f"one of the {count} GPUs"
                note = f"{note}; {resolution.note}" if resolution.note else note
                return Resolution(resolution.spec, name, note, resolution.candidates)
        if (vendor := find_vendor(name)) is not None:
            raise UnknownGpuError(name, reason=f"{vendor}, {_NOT_NVIDIA}")
        raise UnknownGpuError(name, self.nearest(name))

    def resolve_one(self, name: str) -> Resolution:
        """Find the GPU that a name means where a number before it, "8xH100", would be passed over.

        Raises:
            UnknownGpuError: As of ``resolve``, or there is such a number.
        """
        if split_count(name.strip())[1] != 1:
            raise UnknownGpuError(name, reason="several GPUs, and how many is no part of a name here")
        return self.resolve(name)

    def _cut(self, requested: str, gpu: str, profile: str) -> Resolution:
        """Find the slice that a name means: of the first GPU it could stand for that is cut so."""
        if not gpu:
            raise UnknownGpuError(requested, reason="a MIG slice of a GPU that is not named")
        whole = self.resolve(gpu)
        possible = [name for name in whole.candidates if profile in self._profiles(name)]
        if not possible:
            known = sorted({each for name in whole.candidates for each in self._profiles(name)})
            told = f"known are {', '.join(known)}" if known else f"none of {whole.spec.name} is known"
            raise UnknownGpuError(requested, reason=f"a MIG slice whose share of SMs and memory is not known, {told}")
        spec = self.get(f"{possible[0]} MIG {profile}")
        also = f"; also possible: of {', '.join(possible[1:])}" if possible[1:] else ""
        return Resolution(spec, requested, f"taken for {spec.note} of {possible[0]}{also}", (spec.name,))

    def _profiles(self, name: str) -> tuple[str, ...]:
        return tuple(self._mig[name].profiles) if name in self._mig else ()

    def find_other(self, name: str) -> OtherAccelerator | None:
        """Return the accelerator of another vendor that a name means, or None."""
        key = normalise_name(name[:_LONGEST_NAME])
        return next((other for other in self.others if key in map(normalise_name, (other.name, *other.aliases))), None)

    def _resolve_spelling(self, requested: str, spelling: str, memory_bytes: float | None) -> Resolution | None:
        key = normalise_name(spelling)
        if (entry := self._ambiguous_by_key.get(key)) is not None:
            return self._choose(requested, entry, memory_bytes)
        spec = self._by_key.get(key)
        is_machine = spec is None
        if spec is None:
            spec = self._by_family(requested, spelling)
        if spec is None:
            return None
        note = ""
        if memory_bytes is not None and not _memory_fits(spec, memory_bytes):
            note = f"taken for {spec.name}, but {_gibibytes(memory_bytes)} of memory do not fit it"
        return Resolution(spec, requested, note, (spec.name,), is_machine)

    def _by_family(self, requested: str, spelling: str) -> GpuSpec | None:
        match = self._family_pattern.fullmatch(spelling.strip())
        if match is None:
            return None
        family = match["family"].casefold()
        for name, kind in self._not_whole_gpus.items():
            if name.casefold() == family:
                raise UnknownGpuError(requested, reason=f"{kind}, {_NOT_NVIDIA}" if find_vendor(kind) else kind)
        return next(self._by_name[gpu] for name, gpu in self._families.items() if name.casefold() == family)

    def _choose(self, requested: str, entry: AmbiguousName, memory_bytes: float | None) -> Resolution:
        candidates = [self._by_name[name] for name in entry.candidates]
        others = entry.others
        remark = ""
        if memory_bytes is not None:
            fitting = [spec for spec in candidates if _memory_fits(spec, memory_bytes)]
            if fitting:
                candidates, others = fitting, ()
            else:
                remark = f"; {_gibibytes(memory_bytes)} of memory fit none of them"
        names = tuple(spec.name for spec in candidates)
        alternatives = (*names[1:], *(f"{other} (not in the catalogue)" for other in others))
        note = ""
        if alternatives or remark:
            also = f"; also possible: {', '.join(alternatives)}" if alternatives else ""
            note = f"taken for {names[0]}{also}{remark}"
        return Resolution(candidates[0], requested, note, names)

    def nearest(self, name: str, count: int = 3) -> tuple[str, ...]:
        """Return canonical names spelled most like ``name``, best first; fewer than ``count`` when little is alike."""
        key = normalise_name(split_count(name)[0][:_LONGEST_NAME])
        if not key:
            return ()
        # "3090" is close to anything with digits; names with letters tell more.
        canonical = {known: spec.name for known, spec in self._by_key.items() if not known.isdigit()}
        canonical |= {known: entry.candidates[0] for known, entry in self._ambiguous_by_key.items()}
        matches = difflib.get_close_matches(key, canonical, n=4 * count, cutoff=0.5)
        return tuple(dict.fromkeys(canonical[match] for match in matches))[:count]


def load_gpus(*extra: Path | str) -> GpuCatalog:
    """Return the shipped catalogue, read once, with the GPUs of further files added; see ``GpuCatalog.load``."""
    return GpuCatalog.load(*extra) if extra else _shipped()


@cache
def _shipped() -> GpuCatalog:
    return GpuCatalog.load()


def _memory_fits(spec: GpuSpec, memory_bytes: float) -> bool:
    return _VISIBLE_MEMORY_LOW * spec.memory_bytes <= memory_bytes <= _VISIBLE_MEMORY_HIGH * spec.memory_bytes


def _gibibytes(memory_bytes: float) -> str:
    return f"{memory_bytes / (1 << 30):.1f} GiB"


def _table(document: Mapping[str, Any], section: str, path: Path) -> Mapping[str, Any]:
    table = document.get(section, {})
    if not isinstance(table, Mapping):
        raise CatalogError(f"{path}: {section} must be a table")
    return table


def _strings(document: Mapping[str, Any], section: str, path: Path) -> dict[str, str]:
    table = _table(document, section, path)
    for key, value in table.items():
        if not isinstance(value, str):
            raise CatalogError(f"{path}: {section}.{key} must be a string, not {value!r}")
    return dict(table)


def _parse_ambiguous(table: Mapping[str, Any], path: Path) -> list[AmbiguousName]:
    entries = []
    for name, entry in table.items():
        where = f"{path}: ambiguous name {name!r}"
        if not isinstance(entry, Mapping) or not set(entry) <= {"candidates", "others"}:
            raise CatalogError(f"{where} needs candidates = [...] and may have others = [...]")
        lists = [entry.get(key, []) for key in ("candidates", "others")]
        if not lists[0] or not all(
            isinstance(names, list) and all(isinstance(n, str) for n in names) for names in lists
        ):
            raise CatalogError(f"{where}: candidates and others must be lists of names")
        entries.append(AmbiguousName(name, tuple(lists[0]), tuple(lists[1])))
    return entries
