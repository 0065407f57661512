"""Tables of measurements: what is wrong with one is named by file, line and column."""

from __future__ import annotations

import pytest

from gpusonde.errors import TableError
from gpusonde.predictor.tables import TableLimits, read_table


@pytest.fixture
def write(tmp_path):
    def made(content: str | bytes):
        path = tmp_path / "table.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return made


def test_cells_keep_their_lines_past_empty_lines_quotes_and_a_byte_order_mark(write):
    table = read_table(write('\ufeffa, b\r\n1,2\r\n\r\n"x\r\ny", 4 \r\n'))
    assert table.heading == ("a", "b")
    assert [(row.line, row.text("b")) for row in table.rows] == [(2, "2"), (5, "4")]
    assert table.rows[1].text("a") == "x\r\ny"
    assert table.rows[0].text("c") == ""


@pytest.mark.parametrize(
    ("content", "line", "field", "problem"),
    [
        ("", 1, None, "empty file"),
        ("a,b,a\n", 1, "a", "there twice"),
        ("a,c\n1,2\n", 1, "b", "missing"),
        ("a,b\n1,2\n3\n", 3, None, "a truncated line"),
        ("a,b\n1,2,3\n", 2, None, "3 fields where the heading has 2"),
        ('a,b\n1,"2\n', 2, None, "not a CSV"),
        (b"a,b\n1,\xff\n", 2, None, "not UTF-8"),
        (b"a,b\n1,2\n\0,2\n", 3, None, "NUL"),
        ("a,b\n1,2\n3,4\n5,6\n", 4, None, "more than 2 rows"),
        ("a,b\n1," + "9" * 100, 2, None, "longer than 50 characters"),
        ("a,b\n" + "1,2\n" * 100, None, None, "larger than 200 bytes"),
    ],
)
def test_what_is_no_table_is_refused_with_its_place(write, content, line, field, problem):
    limits = TableLimits(file_bytes=200, rows=2, line_characters=50)
    with pytest.raises(TableError, match=problem) as refused:
        read_table(write(content), required=("a", "b"), limits=limits)
    assert (refused.value.line, refused.value.field) == (line, field)
    assert refused.value.path is not None
    assert refused.value.path.endswith("table.csv")


def test_cells_become_numbers_counts_and_choices(write):
    (row,) = read_table(write("number,count,empty,kind\n-1.5,3,,one\n")).rows
    assert (row.number("number"), row.count("count"), row.count("empty", 7)) == (-1.5, 3, 7)
    assert row.choice("kind", {"one": 1, "two": 2}) == 1


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (lambda row: row.number("text"), "'many' is not a number"),
        (lambda row: row.number("nan"), "must be finite"),
        (lambda row: row.number("negative", above=0), "must be positive and finite"),
        (lambda row: row.number("large", below=1e300), "must be finite"),
        (lambda row: row.count("half"), "whole number of at least 1"),
        (lambda row: row.count("large"), "must be positive and finite"),
        (lambda row: row.choice("text", {"one": 1}), "'many' is unknown; use one"),
    ],
)
def test_a_cell_that_is_something_else_is_refused_with_line_and_column(write, read, problem):
    (row,) = read_table(write("text,nan,negative,large,half\nmany,nan,-1,1e305,0.5\n")).rows
    with pytest.raises(TableError, match=problem) as refused:
        read(row)
    assert refused.value.line == 2
    assert refused.value.field in row.cells
