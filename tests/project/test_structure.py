"""The structure of the product: sizes of folders, arrows, names, tables of files."""

import re

import pytest
import structure

FOUND = structure.modules()
ROOTS = (structure.Path("staticgrad"), structure.Path("compiler"))
OUTSIDE = {"build", "dist", "node_modules"}  # and hidden folders
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"[\w./]*\w\.py\b")
# Files of users, and those that the recipes of CONTRIBUTING.md make.
EXAMPLES = {
    "train.py",
    "NAME.py",
    "softsign.py",
    "drop_signs.py",
    "test_drop_signs.py",
    "adagrad.py",
}


def own(pattern):
    """The repository's files of this pattern; linked folders are left out."""
    for path in structure.ROOT.rglob(pattern):
        parts = path.relative_to(structure.ROOT).parts
        hidden = any(p.startswith(".") or p in OUTSIDE for p in parts)
        if not hidden and parts[:2] != ("staticgrad", "compiler"):
            yield path


def files_named(text):
    """The Python files that prose, a docstring or a comment names."""
    return {name.removeprefix("../") for name in FILE.findall(FENCED.sub("", text))}


PYTHON_FILES = ["/" + str(p.relative_to(structure.ROOT)) for p in own("*.py")]


def unknown(names):
    """Those names that no path of the repository ends with."""
    known = [n for n in names if any(p.endswith("/" + n) for p in PYTHON_FILES)]
    return names - set(known) - {n for n in names if n.split("/")[-1] in EXAMPLES}


def test_roots_are_small():
    sizes = structure.modules_per_folder(FOUND)
    assert {r: sizes[r] for r in ROOTS if sizes[r] > structure.MOST_IN_A_ROOT} == {}


def test_folders_are_small():
    sizes = structure.modules_per_folder(FOUND)
    most = structure.MOST_IN_A_FOLDER
    assert {f: n for f, n in sizes.items() if n > most} == {}


def test_no_arrow_points_against_the_layers():
    assert len(structure.layers()) >= 2
    assert structure.arrows_against_layers(FOUND) == []


def test_an_arrow_against_the_layers_would_be_found(monkeypatch):
    upward = ("staticgrad.ir.graph", "staticgrad.ops.leaves")
    monkeypatch.setattr(structure, "arrows", lambda found: {upward})
    assert structure.arrows_against_layers(FOUND) == [upward]


def test_a_module_name_stands_for_one_thing():
    assert structure.repeated_names(FOUND) == {}


def test_a_class_name_stands_for_one_thing():
    assert structure.repeated_classes(FOUND) == {}


@pytest.mark.parametrize("page", structure.pages(FOUND), ids=lambda p: p.parent.name)
def test_the_table_of_a_folder_is_that_of_its_files(page):
    """``python tests/project/structure.py --write`` writes the tables anew."""
    assert page.read_text(encoding="utf-8") == structure.pages(FOUND)[page]


def test_every_folder_of_the_product_has_a_page():
    folders = {f for f in structure.modules_per_folder(FOUND) if len(f.parts) == 2}
    pages = {page.parent.relative_to(structure.ROOT) for page in structure.pages(FOUND)}
    assert folders - pages == set()


def test_pages_and_docstrings_name_files_that_exist():
    pages = [p for p in own("*.md") if p.name != "CHANGELOG.md"]
    paths = [*pages, *(structure.ROOT / module.path for module in FOUND)]
    dead = {
        str(p.relative_to(structure.ROOT)): names
        for p in paths
        if (names := unknown(files_named(p.read_text(encoding="utf-8"))))
    }
    assert dead == {}


def test_a_dead_name_would_be_found():
    text = "See `gone.py` and `op.py`.\n```\nin_a_program.py\n```\n"
    assert unknown(files_named(text)) == {"gone.py"}
