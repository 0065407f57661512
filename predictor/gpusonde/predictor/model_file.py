"""Model files: named arrays and one JSON document, as a safetensors file.

The format is a header of JSON and the arrays' bytes: nothing in a foreign file can be made to run, or to ask for more
memory than the file is long. The document stands in the header's metadata, with a digest of itself and of the arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from gpusonde.errors import ModelError
from gpusonde.predictor.former_model_files import decode_zip

Arrays = Mapping[str, npt.NDArray[Any]]

#: How the names of model files end.
SUFFIX = ".safetensors"
# One key only: safetensors writes several in any order, and the same model is to give the same file, byte for byte.
_KEY = "gpusonde"
_DIGEST = "sha256"
_TYPES = frozenset({"<f8", "<f4", "<i8", "<i4", "<i2", "|u1", "|b1"})
_MOST_HEADER_BYTES = 64 << 20


@dataclass(frozen=True)
class ModelFile:
    """What a model file holds.

    Attributes:
        document: What JSON can hold.
        arrays: Arrays of numbers by name.
        digest: SHA-256 of both; empty for a file of a release whose files had none.
    """

    document: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]
    digest: str

    def check_finite(self, *, infinite: Collection[str] = ()) -> None:
        """Check that all arrays hold numbers.

        Args:
            infinite: Names of those that may hold infinity.

        Raises:
            ModelError: One does not.
        """
        for name, array in self.arrays.items():
            if np.isnan(array).any() or (name not in infinite and np.isinf(array).any()):
                raise ModelError(f"damaged: array {name[:40]} holds values that are no numbers")


def encode(document: Mapping[str, Any], arrays: Arrays) -> tuple[bytes, str]:
    """Make the bytes of a model file; the same content gives the same bytes.

    Args:
        document: What JSON can hold.
        arrays: Arrays of numbers by name.

    Returns:
        The bytes, and the digest of the content.

    Raises:
        ModelError: An array holds something else than numbers.
    """
    stored: dict[str, npt.NDArray[Any]] = {}
    for name, array in arrays.items():
        little = np.asarray(array, order="C", dtype=_order_little(array))
        if little.dtype.str not in _TYPES:
            raise ModelError(f"array {name} of {array.dtype} cannot be saved")
        stored[name] = little
    digest = _digest(document, stored)
    text = json.dumps({**document, _DIGEST: digest}, sort_keys=True)
    return save(stored, metadata={_KEY: text}), digest


def decode(content: bytes, *, most_bytes: int) -> ModelFile:
    """Read the bytes of a model file, which may come from anybody.

    Args:
        content: The bytes.
        most_bytes: Most that they may be, and that a compressed file of a former release may unpack to.

    Raises:
        ModelError: They are no model file, are damaged, or are too many.
    """
    if len(content) > most_bytes:
        raise ModelError(f"larger than {most_bytes >> 20} MiB")
    if content.startswith(b"PK"):
        return ModelFile(*decode_zip(content, most_bytes=most_bytes))
    header_bytes = int.from_bytes(content[:8], "little")
    if header_bytes > _MOST_HEADER_BYTES:
        raise ModelError("not a model file, or damaged (its header is too long)")
    try:
        arrays = load(content)
        document = json.loads(json.loads(content[8 : 8 + header_bytes])["__metadata__"][_KEY])
        digest = document.pop(_DIGEST)
        written = _digest(document, arrays)
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"not a model file, or damaged ({str(error)[:200]})") from error
    if digest != written:
        raise ModelError("damaged: it does not match its checksum")
    if any(_order_little(array).str not in _TYPES for array in arrays.values()):
        raise ModelError("it holds arrays of types that no model has")
    return ModelFile(document, arrays, written)


def _digest(document: Mapping[str, Any], arrays: Arrays) -> str:
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        little = array.astype(_order_little(array), copy=False)
        digest.update(json.dumps([name, little.dtype.str, little.shape]).encode())
        digest.update(little.tobytes())
    return digest.hexdigest()


def _order_little(array: npt.NDArray[Any]) -> np.dtype[Any]:
    return array.dtype.newbyteorder("<")
