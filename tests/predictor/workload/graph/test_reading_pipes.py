"""Graphs that come through a pipe, and places that a file must not replace."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from support.workload_graphs import small_network

from gpusonde.predictor.workload.graph import dump_graph
from gpusonde.predictor.workload.graph.reading import read_graph
from gpusonde.service.durable_files import write_durably


def test_a_graph_is_read_from_a_pipe_as_from_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    content = dump_graph(small_network()).encode()
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[content])
    writer.start()
    assert read_graph(tmp_path / "pipe") == small_network()
    writer.join()


@pytest.mark.parametrize("place", ["pipe", "folder"])
def test_only_files_are_replaced(place, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = {path: path.lstat().st_mode for path in tmp_path.iterdir()}
    with pytest.raises(OSError, match=r"no regular file|directory") as error:
        write_durably(tmp_path / place, b"content")
    assert Path(error.value.filename) == tmp_path / place
    assert {path: path.lstat().st_mode for path in tmp_path.iterdir()} == before
