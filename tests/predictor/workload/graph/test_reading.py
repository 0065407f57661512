from __future__ import annotations

from pathlib import Path

import pytest
from support.hostile_graphs import json_graph, pt2, small_onnx

from gpusonde.errors import GraphLimitError, MalformedGraphError
from gpusonde.predictor.workload.graph import GraphLimits
from gpusonde.predictor.workload.graph.reading import GraphFormat, read_graph, recognise

CONTENTS = {GraphFormat.JSON: json_graph(), GraphFormat.ONNX: small_onnx(), GraphFormat.PT2: pt2()}


@pytest.mark.parametrize("expected", GraphFormat)
def test_a_format_is_recognised_by_content_whatever_the_file_is_called(expected: GraphFormat, tmp_path: Path) -> None:
    path = tmp_path / "network.txt"
    path.write_bytes(CONTENTS[expected])
    assert recognise(CONTENTS[expected][:64]) is expected
    from_path, from_bytes = read_graph(path), read_graph(CONTENTS[expected])
    assert from_path.operations == from_bytes.operations == read_graph(CONTENTS[expected], expected.value).operations
    assert read_graph(path, expected).operations == from_path.operations
    assert from_path.name == ("small" if expected is GraphFormat.JSON else "network")
    assert read_graph(str(path), name="mine").name == "mine"


def test_what_is_none_of_them_is_refused() -> None:
    for content in (b"", b"\0", b"\x80\x02N.", b"#!/bin/sh", b"[1]", b"\x7fELF", b"PK", b"\xff" * 64):
        with pytest.raises(MalformedGraphError):
            read_graph(content)


def test_an_empty_file_and_one_of_another_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    with pytest.raises(MalformedGraphError):
        read_graph(path)
    for given, content in CONTENTS.items():
        for claimed in set(GraphFormat) - {given}:
            with pytest.raises(MalformedGraphError):
                read_graph(content, claimed)


def test_limits_hold_for_paths_too(tmp_path: Path) -> None:
    limits = GraphLimits(json_bytes=10, onnx_bytes=10, archive_bytes=10)
    path = tmp_path / "network"
    for content in CONTENTS.values():
        path.write_bytes(content)
        with pytest.raises(GraphLimitError):
            read_graph(path, limits=limits)


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_graph(tmp_path / "missing")
