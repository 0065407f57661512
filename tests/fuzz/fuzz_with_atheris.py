"""Lets coverage guide the search for input that a decoder does not expect.

``python tests/fuzz/fuzz_with_atheris.py TARGET [CORPUS_DIRECTORY | INPUT_FILE] [-max_total_time=60 ...]``; the options
are libFuzzer's. Without a target it lists them. An input that ends in another error than the promised one is written to
a file, and the exit code is not 0.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))

with atheris.instrument_imports(include=["gpusonde.", "google.protobuf", "json", "tomllib"]):
    from fuzz.targets import TARGETS, seeds_of


def main() -> None:
    """Run one target."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit("targets: " + ", ".join(TARGETS))
    name = sys.argv.pop(1)
    logging.disable(logging.CRITICAL)
    target = TARGETS[name]
    for argument in sys.argv[1:]:
        if not argument.startswith("-") and not Path(argument).is_file():
            Path(argument).mkdir(exist_ok=True)
            for number, seed in enumerate(seeds_of(name)):
                (Path(argument) / f"seed-{number}").write_bytes(seed)
            break
    atheris.Setup(sys.argv, target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
