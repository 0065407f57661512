"""The shape of the repository: one namespace, many source roots."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = (
    "proto",
    "telemetry",
    "catalog",
    "service",
    "agent",
    "epoch_detect",
    "predictor",
    "simulator",
    "optimizer",
    "collector",
    "cli",
)


def test_the_namespace_package_has_no_init_file():
    # A stray one breaks editable installs, pytest and import-linter, but not the wheel.
    assert [str(root) for root in SOURCE_ROOTS if (ROOT / root / "gpusonde" / "__init__.py").exists()] == []


def test_every_portion_says_that_it_is_typed():
    portions = [p for root in SOURCE_ROOTS for p in (ROOT / root / "gpusonde").iterdir() if p.is_dir()]
    portions = [p for p in portions if p.name != "__pycache__"]
    assert len(portions) >= 10
    assert [str(p) for p in portions if not (p / "py.typed").is_file()] == []


def test_a_class_name_means_one_class():
    places = defaultdict(list)
    for root in SOURCE_ROOTS:
        for file in (ROOT / root / "gpusonde").rglob("*.py"):
            if "_pb2" not in file.name:
                for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                    if isinstance(node, ast.ClassDef):
                        places[node.name].append(str(file.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("setting", ["dev-mode-dirs", "packages = [\n", "pythonpath", "mypy_path"])
def test_every_source_root_is_listed_wherever_pyproject_lists_them(setting: str):
    text = (ROOT / "pyproject.toml").read_text()
    listed = text[text.index(setting) :]
    listed = listed[: listed.index("]\n")]
    assert [root for root in SOURCE_ROOTS if f'"{root}' not in listed] == []


def test_the_type_checker_is_told_every_package_by_name():
    # Given the bare namespace, mypy checks its first portion only and reports success.
    text = (ROOT / "pyproject.toml").read_text()
    section = text[text.index("[tool.mypy]") : text.index("warn_unreachable")]
    assert [root for root in SOURCE_ROOTS if root != "proto" and f'"gpusonde.{root}"' not in section] == []


def test_what_a_gpu_host_imports_needs_no_scientific_stack():
    code = (
        "import sys; import gpusonde.agent, gpusonde.telemetry, gpusonde.catalog, gpusonde.cli.main; "
        "heavy = {'scipy', 'sklearn', 'pandas', 'catboost', 'matplotlib', 'rich', 'pyarrow'} & set(sys.modules); "
        "sys.exit(f'imported: {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_files_import_in_no_circle_and_packages_through_their_faces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import house

    crossing, bypassing, circle = house.import_figures(house.modules())
    assert circle == "none"
    assert bypassing / crossing < 0.1
