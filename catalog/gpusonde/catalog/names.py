"""Spelling of GPU names: one key for every way in which drivers, frameworks and clouds write the same name."""

from __future__ import annotations

import re
import unicodedata

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


def key_of(name: str) -> str:
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


def without_count(name: str) -> tuple[str, int]:
    """Split "8x H100" into the name and the count; the count is 1 where none is written."""
    match = _COUNT.match(name)
    return (name[match.end() :], int(match.group(1))) if match else (name, 1)


def bracketed(name: str) -> str | None:
    """The product inside the brackets of an lspci line ("TU104GL [Tesla T4]"), or None."""
    match = _LSPCI.search(name)
    return match.group(1) if match else None


def slice_kind(name: str) -> str | None:
    """What part of a GPU the name stands for ("a MIG slice"), or None for a whole one."""
    return next((kind for pattern, kind in _SLICES if pattern.search(name)), None)
