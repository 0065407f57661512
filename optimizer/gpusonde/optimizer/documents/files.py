"""Reading and writing documents: JSON or TOML by the file's name, of bounded size and depth."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpusonde.optimizer.documents.fields import DocumentError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST_DOCUMENT_BYTES = 8 << 20
_DEEPEST = 32


def read_document(path: Path) -> dict[str, Any]:
    """Read a document; files called ``*.toml`` are TOML, all others JSON.

    Raises:
        DocumentError: It is too large, cannot be parsed or is no object.
        OSError: It cannot be read.
    """
    # Read before it is measured: a pipe has no size.
    with path.open("rb") as file:
        data = file.read(LARGEST_DOCUMENT_BYTES + 1)
    if path.suffix == ".toml":
        return _checked(_toml(_text(data)))
    return parse_json(data)


def parse_json(data: bytes, *, is_line: bool = False) -> dict[str, Any]:
    """Parse a JSON document.

    Args:
        data: Its bytes.
        is_line: It is a line of a larger file, whose number the caller names.

    Raises:
        DocumentError: It is too large, no JSON or no object; NaN and infinities, which are no JSON, are refused.
    """
    text = _text(data)
    try:
        return _checked(json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique))
    except json.JSONDecodeError as error:
        place = f"at character {error.colno}" if is_line else f"line {error.lineno}"
        raise DocumentError("", f"{place}: no JSON ({error.msg})") from None
    except RecursionError:
        raise DocumentError("", f"is nested more than {_DEEPEST} deep") from None
    except DocumentError:
        raise
    except ValueError as error:  # whole numbers of thousands of digits
        raise DocumentError("", f"no JSON ({error})") from None


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document; the file is there as a whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    try:
        _replace(path, text)
    except OSError as error:
        # The temporary file is our own affair.
        error.filename = str(path)
        raise


def _replace(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def check_format(document: Mapping[str, Any], kind: str, path: str = "") -> None:
    """Check that a document says what it is.

    Raises:
        DocumentError: It says something else, or is of a version that this program does not know.
    """
    field = f"{path}.format" if path else "format"
    said = document.get("format")
    expected = f"gpusonde.{kind}/1"
    if said == expected:
        return
    if isinstance(said, str) and said.startswith(f"gpusonde.{kind}/"):
        raise DocumentError(field, f"version {said[:60]!r} is not known here, only {expected!r}; upgrade gpusonde")
    problem = "is missing" if said is None else f"is {str(said)[:60]!r}"
    raise DocumentError(field, f"{problem}; a {kind} file begins with format = {expected!r}")


def _text(data: bytes) -> str:
    if len(data) > LARGEST_DOCUMENT_BYTES:
        raise DocumentError("", f"is larger than {LARGEST_DOCUMENT_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError("", f"is not UTF-8 text (byte {error.start})") from None


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise DocumentError("", f"is nested more than {_DEEPEST} deep") from None
    except ValueError as error:
        raise DocumentError("", f"no TOML ({error})") from None


def _checked(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise DocumentError("", "must be one object")
    _check_depth(document)
    return document


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(_DEEPEST):
        level = [
            item
            for value in level
            if isinstance(value, (dict, list))
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise DocumentError("", f"is nested more than {_DEEPEST} deep")


def _refuse_constant(name: str) -> Any:
    raise DocumentError("", f"{name} is no JSON; leave out what is not known")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [key for key, _ in pairs]
        repeated = next(key for key in found if names.count(key) > 1)
        raise DocumentError(repeated[:60], "appears twice in one object")
    return found
