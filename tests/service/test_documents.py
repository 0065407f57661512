"""Documents: keys described by dataclasses, and what is said of values that cannot be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import pytest

from gpusonde.documents import (
    NOT_A_KEY,
    Default,
    ListOf,
    Number,
    Text,
    Whole,
    describe,
    keys_of,
    parse,
    read_as,
    to_plain,
)
from gpusonde.errors import DocumentError, ProblemError
from gpusonde.service.durable_files import write_json


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Wheel:
    """A wheel.

    Attributes:
        size: Its size.
        spokes: How many there are,
            or none.
    """

    size: Annotated[float, Number(most=5.0)]
    spokes: Annotated[int, Whole(least=0, most=99), Default(8)]

    def __post_init__(self) -> None:
        if self.spokes == 13:
            raise ProblemError("13 spokes bring bad luck")
        if self.spokes == 14:
            raise DocumentError("spokes", "are one too many")


@dataclass(frozen=True)
class Cart:
    """A cart.

    Attributes:
        wheels: Two or more.
        name: What it is called.
    """

    wheels: Annotated[tuple[Wheel, ...], ListOf(4, least=2)]
    name: Annotated[str, Text(longest=9)] = ""
    colour: Colour = Colour.RED
    gear: Literal["low", "high"] = "low"
    loads: Annotated[tuple[Annotated[float, Number(least=0.0)], ...], ListOf(3)] = ()
    spare: Wheel | None = None
    broken: bool = False
    anything: Any = None
    internal: Annotated[float, NOT_A_KEY] = math.pi


WHEELS = [{"size": 1}, {"size": 2.0, "spokes": 4.0}]


def test_an_object_is_made_of_its_keys_with_defaults_for_those_that_are_left_out_or_null():
    values = {"wheels": WHEELS, "colour": "blue", "gear": "high", "loads": [0, 1], "spare": None, "anything": [1]}
    expected = Cart((Wheel(1.0, 8), Wheel(2.0, 4)), "", Colour.BLUE, "high", (0.0, 1.0), None, False, [1])
    assert parse(Cart, values) == expected
    assert isinstance(parse(Cart, values).wheels[1].spokes, int)


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"wheels": None}, "c.wheels", "is missing"),
        ({"wheels": WHEELS[:1]}, "c.wheels", "at least 2"),
        ({"wheels": WHEELS * 3}, "c.wheels", "at most 4"),
        ({"wheels": {"size": 1}}, "c.wheels", "must be a list"),
        ({"wheels": [1, 2]}, "c.wheels[0]", "must be an object"),
        ({"wheels": [{"size": 1}, {}]}, "c.wheels[1].size", "is missing; give a number above 0 and at most 5"),
        ({"wheels": [{"size": 1}, {"size": 6}]}, "c.wheels[1].size", "must be a number above 0 and at most 5, not 6"),
        ({"wheels": [{"size": 1}, {"size": True}]}, "c.wheels[1].size", "not True"),
        ({"wheels": [{"size": 1}, {"size": 10**400}]}, "c.wheels[1].size", "must be a number"),
        ({"wheels": [{"size": 1}, {"size": math.nan}]}, "c.wheels[1].size", "not nan"),
        ({"wheels": [{"size": 1}, {"size": 1, "spokes": 2.5}]}, "c.wheels[1].spokes", "whole number from 0 to 99"),
        ({"wheels": [{"size": 1}, {"size": 1, "spokes": 13}]}, "c.wheels[1]", "bad luck"),
        ({"wheels": [{"size": 1}, {"size": 1, "spokes": 14}]}, "c.wheels[1].spokes", "one too many"),
        ({"name": ""}, "c.name", "a text of 1 to 9 characters"),
        ({"name": "a\tb"}, "c.name", "must be a text"),
        ({"name": "x" * 10}, "c.name", "must be a text"),
        ({"colour": "green"}, "c.colour", "must not be 'green'; use red or blue"),
        ({"gear": 1}, "c.gear", "use low or high"),
        ({"loads": [1, -1]}, "c.loads[1]", "at least 0"),
        ({"loads": "12"}, "c.loads", "must be a list"),
        ({"spare": []}, "c.spare", "must be an object"),
        ({"broken": 1}, "c.broken", "true or false"),
        ({"internal": 1.0}, "c.internal", "there is no such key"),
        ({"colur": "red"}, "c.colur", "did you mean 'colour'?"),
        ({"zzz": 1}, "c.zzz", "known are wheels, name"),
    ],
)
def test_what_cannot_be_is_named_by_its_path(change, field, says):
    with pytest.raises(DocumentError) as error:
        parse(Cart, {"wheels": WHEELS, **change}, "c")
    assert error.value.field == field
    assert says in str(error.value)


def test_every_key_is_described_from_its_one_declaration():
    assert describe(Wheel) == [
        ("size", "a number above 0 and at most 5", "required", "Its size."),
        ("spokes", "a whole number from 0 to 99", "8", "How many there are, or none."),
    ]
    assert [row[1:3] for row in describe(Cart)][:5] == [
        ("a list, each an object (in TOML a table)", "required"),
        ("a text of 1 to 9 characters", ""),
        ("red or blue", "red"),
        ("low or high", "low"),
        ("a list, each a number at least 0", ""),
    ]
    assert [key.kind for key in keys_of(Cart) if key.kind] == [Wheel, Wheel]


def test_a_type_that_no_document_holds_is_a_fault_of_ours():
    @dataclass
    class Wrong:
        when: complex

    with pytest.raises(TypeError, match="when"):
        keys_of(Wrong)


def test_a_file_says_what_it_is_and_errors_name_it(tmp_path):
    path = tmp_path / "cart.json"
    write_json(path, {"format": "gpusonde.cart/1", "wheels": WHEELS})
    assert read_as(Cart, path, "cart").wheels[0] == Wheel(1.0, 8)
    for content, field in (({"format": "gpusonde.cart/2"}, "format"), ({"format": "gpusonde.cart/1"}, "wheels")):
        write_json(path, content)
        with pytest.raises(DocumentError, match=r"cart\.json: ") as error:
            read_as(Cart, path, "cart")
        assert (error.value.path, error.value.field) == (path, field)


def test_values_become_plain_as_json_has_them():
    found = to_plain(Cart((Wheel(math.inf, 3),), colour=Colour.BLUE))
    assert found["wheels"] == [{"size": None, "spokes": 3}]
    assert (found["colour"], found["broken"]) == ("blue", False)
