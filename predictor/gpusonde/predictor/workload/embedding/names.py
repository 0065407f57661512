"""Names of dataset types, such as "digits" or "imagenet"."""

from __future__ import annotations

import re

#: Characters of the longest name.
LONGEST = 64
# They name files: nothing that leads out of a folder, nothing that two file systems take for different names.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


class DatasetTypeNameError(ValueError):
    """A text that names no dataset type."""


def check_dataset_type(name: str) -> str:
    """The name, if it is one.

    Raises:
        DatasetTypeNameError: It is not.
    """
    if len(name) > LONGEST or not _NAME.fullmatch(name):
        shown = name if len(name) <= LONGEST else f"{name[:LONGEST]}..."
        raise DatasetTypeNameError(
            f"{shown!r} names no dataset type: use 1 to {LONGEST} small letters, digits, '.', '_' and '-', "
            "the first one a letter or a digit"
        )
    return name
