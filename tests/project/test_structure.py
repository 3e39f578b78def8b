"""The structure of the product: sizes of folders, arrows, names, tables of files."""

import pytest
import structure

FOUND = structure.modules()
ROOTS = (structure.Path("staticgrad"), structure.Path("compiler"))


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
