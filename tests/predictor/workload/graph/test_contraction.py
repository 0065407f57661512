import pytest

from gpusonde.predictor.workload.graph.builder import (
    find_contraction_shapes,
    take_first_contraction,
    write_tensordot_equation,
)


@pytest.mark.parametrize(
    ("equation", "left", "right", "expected"),
    [
        ("ij,jk->ik", (2, 3), (3, 5), ((2, 3), (3, 5))),
        ("ij,jk", (2, 3), (3, 5), ((2, 3), (3, 5))),
        ("bhqd,bhkd->bhqk", (2, 4, 6, 8), (2, 4, 7, 8), ((8, 6, 8), (8, 8, 7))),
        ("...ij,...jk->...ik", (9, 2, 3), (9, 3, 5), ((9, 2, 3), (9, 3, 5))),
        ("b t c, c d -> b t d", (2, 6, 8), (8, 5), ((12, 8), (8, 5))),
        ("nctkv,kvw->nctw", (2, 3, 4, 5, 6), (5, 6, 7), ((24, 30), (30, 7))),
        ("i,j->ij", (4,), (5,), None),
        ("bij,bij->bij", (2, 3, 4), (2, 3, 4), None),
        ("ij->ji", (2, 3), (), None),
        ("ijk,jk->i", (2, 3), (3, 5), None),
    ],
)
def test_an_einstein_sum_is_a_product_of_these_matrices(equation, left, right, expected):
    assert find_contraction_shapes(equation, left, right) == expected


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        ("ab,bc,cd->ad", [(2, 3), (3, 4)], ("ab,bc->ac", (2, 4), "ac,cd->ad")),
        ("ab,bc,cd", [(2, 3), (3, 4)], ("ab,bc->ac", (2, 4), "ac,cd->ad")),
        ("bn,bnd,bmd->bm", [(2, 5), (2, 5, 8)], ("bn,bnd->bd", (2, 8), "bd,bmd->bm")),
        ("a,b,ab->", [(2,), (3,)], ("a,b->ab", (2, 3), "ab,ab->")),
        ("ab,bc->ac", [(2, 3), (3, 4)], None),
        ("...a,ab,bc->...c", [(9, 2), (2, 3)], None),
        ("ab,bc,cd->ad", [(2, 3, 4), (3, 4)], None),
    ],
)
def test_an_einstein_sum_of_many_is_taken_from_the_left(equation, shapes, expected):
    assert take_first_contraction(equation, shapes) == expected


def test_a_tensordot_is_an_einstein_sum():
    assert write_tensordot_equation(([2, 0], [1, 0]), (3, 2)) == "abc,ac->b"
