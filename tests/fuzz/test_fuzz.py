"""Whatever bytes a decoder gets, it ends in a value or in the error that it promises.

``GPUSONDE_FUZZ_EXAMPLES`` and ``GPUSONDE_FUZZ_SECONDS`` make hypothesis and atheris look longer than CI has time for;
with the second one atheris looks at every decoder, else at those that strangers reach.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz.targets import TARGETS, seeds_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_EXAMPLES = int(os.environ.get("GPUSONDE_FUZZ_EXAMPLES", "30"))
_SECONDS = int(os.environ.get("GPUSONDE_FUZZ_SECONDS", "0"))
_STRANGERS = ("stream_request", "zstd_values", "workload_json", "workload_onnx", "workload_program")
_WITH_ATHERIS = tuple(TARGETS) if _SECONDS else _STRANGERS
ARCHIVES = (
    "arrays_file", "model_file", "tracker_state", "workload_archive", "workload_file",
)  # fmt: skip
_TOKENS = [
    b"\0", b"\xff" * 4, b"\xff" * 8, b"\x80\x01", b'"', b"{", b"[" * 3000, b"\n", b"nan", b"1e999", b"9" * 400, b"-1",
    b"\\ud800", b"\xc3\x28", b"true", b"null",
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """One of the seeds with some bytes changed, removed, repeated, inserted or cut."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.sampled_from([1, 1, 4, 8, 40]))
        match draw(st.integers(0, 5)):
            case 0:
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case 1 if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = data[at : at + length]
            case 4:
                data[at:at] = draw(st.sampled_from(_TOKENS))
            case _:
                del data[at:]
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_what_a_decoder_is_made_for_it_takes(name: str) -> None:
    for seed in seeds_of(name):
        TARGETS[name].run(seed)


def repacked(seed: bytes, method: int) -> Iterator[bytes]:
    """An archive packed in another way, whole and with the packed bytes of its members damaged in places."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(seed)) as old, zipfile.ZipFile(file, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name), method)
        members = new.infolist()
    yield file.getvalue()
    for begin in (0, 4, 5, 9, 12, 20, 30):
        data = bytearray(file.getvalue())
        for member in members:
            at = member.header_offset + 30 + len(member.filename.encode()) + begin
            data[at : at + 3] = bytes(byte ^ 0x5A for byte in data[at : at + 3])
        yield bytes(data)


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_packed_in_another_way_ends_in_a_promised_error(name: str, method: int) -> None:
    for seed in TARGETS[name].seeds():
        if seed.startswith(b"PK"):
            for data in repacked(seed, method):
                TARGETS[name].run(data)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_ends_in_a_promised_error(name: str) -> None:
    target, seeds = TARGETS[name], list(seeds_of(name))

    @settings(
        max_examples=_EXAMPLES // 2 if target.is_slow else 4 * _EXAMPLES, deadline=None, derandomize=True,
        database=None, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.one_of(damaged(seeds), st.binary(max_size=200)))
    def check(data: bytes) -> None:
        target.run(data)

    check()


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed (extra 'fuzz')")
@pytest.mark.parametrize("name", _WITH_ATHERIS)
def test_coverage_leads_to_no_other_error(name: str, tmp_path: Path) -> None:
    script = Path(__file__).with_name("fuzz_with_atheris.py")
    done = subprocess.run(
        [sys.executable, str(script), name, f"-max_total_time={_SECONDS or 1}", "-max_len=4096", "-timeout=20",
         f"-artifact_prefix={tmp_path}/", str(tmp_path)],
        capture_output=True, text=True, timeout=240 + 2 * _SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A thousand warnings about a thousand damaged files tell nothing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
