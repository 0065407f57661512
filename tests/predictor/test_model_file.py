"""Model files: what is written is read, and nothing else is taken for a model file."""

from __future__ import annotations

import io
import json
import pickle
import zipfile

import numpy as np
import pytest

from gpusonde.errors import ModelError
from gpusonde.predictor.model_file import decode, encode

DOCUMENT = {"format": "a test", "names": ["one", "two"], "nothing": None, "share": 0.1}
ARRAYS = {
    "exact": np.array([0.1, np.pi, 5e-324, np.inf]),
    "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.array(7.5),
    "none": np.empty((0, 4)),
    "counts": np.arange(5, dtype=np.int64),
    "small": np.array([[-1, 2]], dtype=np.int16),
    "flags": np.array([True, False]),
    "turned": np.arange(6, dtype=np.int32).reshape(2, 3).T,
}
MOST = 1 << 20


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


def header_and_rest(content: bytes) -> tuple[dict, bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def file_of(header: dict | bytes, rest: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


def test_documents_and_arrays_are_read_as_they_were_written_to_the_last_bit():
    content, digest = encode(DOCUMENT, ARRAYS)
    file = decode(content, most_bytes=MOST)
    assert (file.document, file.digest) == (DOCUMENT, digest)
    assert file.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (file.arrays[name].dtype, file.arrays[name].shape) == (array.dtype, array.shape)
        assert file.arrays[name].tobytes() == array.tobytes()


def test_the_same_content_gives_the_same_bytes_in_whatever_order_it_is_given():
    again = encode(dict(reversed(DOCUMENT.items())), dict(reversed(ARRAYS.items())))
    assert again == encode(DOCUMENT, ARRAYS)


def test_the_digest_is_that_of_document_and_arrays():
    digests = {encode(DOCUMENT, ARRAYS)[1], encode({**DOCUMENT, "share": 0.2}, ARRAYS)[1]}
    digests |= {encode(DOCUMENT, {**ARRAYS, "counts": np.arange(5) + 1})[1]}
    digests |= {encode(DOCUMENT, {**ARRAYS, "floats": ARRAYS["floats"].reshape(3, 2)})[1]}
    assert len(digests) == 4


@pytest.mark.parametrize("array", [np.array([Bomb()]), np.array(["text"]), np.array([1j])])
def test_what_is_no_number_is_not_written(array):
    with pytest.raises(ModelError, match=r"x of .* cannot be saved"):
        encode({}, {"x": array})


def test_a_file_cut_anywhere_or_with_a_changed_byte_is_refused():
    content, _ = encode(DOCUMENT, ARRAYS)
    generator = np.random.default_rng(0)
    for cut in generator.integers(0, len(content), 60):
        with pytest.raises(ModelError):
            decode(content[:cut], most_bytes=MOST)
    for position in generator.integers(0, len(content), 200):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        with pytest.raises(ModelError):
            decode(bytes(damaged), most_bytes=MOST)
    with pytest.raises(ModelError):
        decode(content + b"\0", most_bytes=MOST)


def test_a_changed_document_does_not_match_its_checksum():
    content, _ = encode(DOCUMENT, ARRAYS)
    header, rest = header_and_rest(content)
    document = json.loads(header["__metadata__"]["gpusonde"])
    header["__metadata__"]["gpusonde"] = json.dumps({**document, "share": 0.2})
    with pytest.raises(ModelError, match="checksum"):
        decode(file_of(header, rest), most_bytes=MOST)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F64", "shape": [1 << 40], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [-1], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [1], "data_offsets": [0, 1 << 62]},
        {"dtype": "F64", "shape": [1], "data_offsets": [8, 0]},
        {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]},
        {"dtype": "object", "shape": [1], "data_offsets": [0, 8]},
        [],
    ],
)
def test_arrays_that_cannot_be_are_refused(entry):
    header = {"__metadata__": {"gpusonde": '{"sha256": ""}'}, "x": entry}
    with pytest.raises(ModelError, match="damaged"):
        decode(file_of(header, bytes(8)), most_bytes=MOST)


@pytest.mark.parametrize(
    "document", ["", "[]", "{}", "null", "[" * 100_000, '{"sha256": []}', '{"a": ' * 5000 + "1" + "}" * 5000]
)
def test_documents_that_cannot_be_are_refused(document):
    with pytest.raises(ModelError):
        decode(file_of({"__metadata__": {"gpusonde": document}}, b""), most_bytes=MOST)
    with pytest.raises(ModelError):
        decode(file_of({"__metadata__": {"other": "{}"}}, b""), most_bytes=MOST)


@pytest.mark.parametrize(
    "content",
    [b"", b"PK", b"\0" * 1000, b"\xff" * 1000, b"not a model", pickle.dumps(Bomb()), file_of(b"[" * 1000, b"")],
)
def test_foreign_files_are_refused_and_nothing_executed(content):
    with pytest.raises(ModelError):
        decode(content, most_bytes=MOST)


def test_a_file_of_more_bytes_than_allowed_is_refused():
    content, _ = encode({}, {"x": np.zeros(MOST // 8)})
    with pytest.raises(ModelError, match="larger than 1 MiB"):
        decode(content, most_bytes=MOST)


def test_numbers_are_told_from_what_is_none():
    content, _ = encode({}, {"border": np.array([1.0, np.inf]), "weight": np.array([1.0])})
    file = decode(content, most_bytes=MOST)
    file.check_finite(infinite=("border",))
    with pytest.raises(ModelError, match="border"):
        file.check_finite()
    with pytest.raises(ModelError, match="border"):
        decode(encode({}, {"border": np.array([np.nan])})[0], most_bytes=MOST).check_finite(infinite=("border",))


# Archives of former releases; real ones are in tests/data/before_house.


def archive(members: dict[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packing) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return made.getvalue()


def npy(array: np.ndarray, **options: bool) -> bytes:
    made = io.BytesIO()
    np.lib.format.write_array(made, np.asanyarray(array), version=(1, 0), **options)
    return made.getvalue()


def test_arrays_of_a_former_archive_are_read_without_pickle():
    members = {"document.npy": npy(np.frombuffer(b'{"step": 7}', np.uint8)), "x.npy": npy(ARRAYS["turned"])}
    for packing in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        file = decode(archive(members, packing), most_bytes=MOST)
        assert file.document == {"step": 7}
        np.testing.assert_array_equal(file.arrays["x"], ARRAYS["turned"])


SHAPES = ("(1099511627776, 1048576)", "(-1,)", "(" * 2000 + ")" * 2000, "(None,)", "'x'", "((6,)", "(9" * 99)
LIES = [f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode() for shape in SHAPES]


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"manifest.json": b"[]", "arrays.bin": b""},
        {"manifest.json": b'{"sha256": ""}', "arrays.bin": b""},
        {"manifest.json": pickle.dumps(Bomb()), "arrays.bin": pickle.dumps(Bomb())},
        {"manifest.json": b"[" * 100_000, "arrays.bin": b""},
        {"document.npy": npy(np.frombuffer(b"[" * 100_000, np.uint8))},
        {"document.npy": npy(np.array([Bomb()], dtype=object), allow_pickle=True)},
        {"x.npy": npy(np.zeros(4))},
        *({"x.npy": b"\x93NUMPY\x01\x00" + len(lie).to_bytes(2, "little") + lie} for lie in LIES),
    ],
)
def test_damaged_or_hostile_archives_are_refused_and_nothing_executed(members):
    with pytest.raises(ModelError):
        decode(archive(members), most_bytes=MOST)


def test_archives_that_unpack_to_too_much_or_are_packed_otherwise_are_refused():
    with pytest.raises(ModelError, match="unpacks to more than 1 MiB"):
        decode(archive({"a.npy": bytes(MOST), "b.npy": b"1"}), most_bytes=MOST)
    with pytest.raises(ModelError, match="packed in another way"):
        decode(archive({"a.npy": b"1"}, zipfile.ZIP_LZMA), most_bytes=MOST)
