import json
import random
import subprocess
import sys
from collections import Counter

import pytest

from gpusonde.predictor.workload.training.architectures import (
    Activation,
    ArchitectureSpace,
    ArchitectureSpec,
    BlockKind,
    Cell,
    Head,
    Norm,
    Style,
    Wire,
    sample,
)

SPEC = ArchitectureSpec(
    style=Style.MIXED,
    width=16,
    maximum_width=64,
    stem_stride=1,
    norm=Norm.BATCH,
    activation=Activation.RELU,
    head=Head.POOL,
    normalized_head=True,
    cells=(
        Cell(((Wire(BlockKind.CONVOLUTION_3, 0),), (Wire(BlockKind.SKIP, 0), Wire(BlockKind.ATTENTION, 1))), stride=2),
    ),
)


def test_the_same_seed_draws_the_same_architectures():
    first, second = ([sample(generator) for _ in range(20)] for generator in (random.Random(5), random.Random(5)))
    assert first == second
    assert first != [sample(generator) for generator in [random.Random(6)] for _ in range(20)]


def test_a_description_survives_its_text():
    generator = random.Random(0)
    for spec in [SPEC, *(sample(generator) for _ in range(50))]:
        assert ArchitectureSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    "change",
    [
        {"style": "unknown"},
        {"width": -1},
        {"width": "16"},
        {"cells": 5},
        {"cells": [{"nodes": [], "stride": 1, "concatenated": False, "residual": False, "entry": False}]},
        {"cells": [{"nodes": [[]], "stride": 1, "concatenated": False, "residual": False, "entry": False}]},
        {
            "cells": [
                {
                    "nodes": [[{"block": "skip", "source": 1}]],
                    "stride": 1,
                    "concatenated": False,
                    "residual": False,
                    "entry": False,
                }
            ]
        },
    ],
)
def test_text_that_describes_no_architecture_is_refused(change):
    document = json.loads(SPEC.to_json()) | change
    with pytest.raises(ValueError, match=r"architecture|Style"):
        ArchitectureSpec.from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "[]", "5", "{}"])
def test_text_that_is_no_description_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        ArchitectureSpec.from_json(text)


def test_draws_hold_everything_that_there_is_within_the_space():
    generator, space = random.Random(0), ArchitectureSpace()
    specs = [sample(generator, space) for _ in range(400)]
    blocks = Counter(wire.block for spec in specs for cell in spec.cells for node in cell.nodes for wire in node)
    assert set(blocks) == set(BlockKind)
    for kind, values in (
        (Style, [spec.style for spec in specs]),
        (Norm, [spec.norm for spec in specs]),
        (Activation, [spec.activation for spec in specs]),
        (Head, [spec.head for spec in specs]),
    ):
        assert set(values) == set(kind)
    sizes = [spec.size(space.side) for spec in specs]
    assert max(work for work, _ in sizes) <= space.maximum_multiply_adds
    assert max(operations for _, operations in sizes) <= space.maximum_operations
    assert max(len(spec.cells) for spec in specs) == space.maximum_cells


def test_every_node_of_a_cell_is_read():
    generator = random.Random(0)
    cells = [cell for _ in range(200) for cell in sample(generator).cells]
    for cell in cells:
        read = {wire.source for node in cell.nodes for wire in node}
        loose = [position + 1 for position in range(len(cell.nodes) - 1) if position + 1 not in read]
        assert cell.concatenated or not loose
    assert {len(cell.nodes) for cell in cells} == {1, 2, 3}


@pytest.mark.parametrize(("side", "stride"), [(4, 1), (8, 1), (16, 1), (28, 2), (32, 2), (64, 4), (224, 16)])
def test_the_stem_shrinks_large_images(side, stride):
    assert ArchitectureSpace.for_images(side).stem_stride == stride


def test_images_too_small_for_a_network_are_refused():
    with pytest.raises(ValueError, match="3 pixels"):
        ArchitectureSpace.for_images(3)


def test_describing_architectures_and_embedding_needs_no_torch():
    code = (
        "import sys; import gpusonde.predictor.workload.embedding; "
        "import gpusonde.predictor.workload.training.architectures; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
