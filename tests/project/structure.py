"""The structure of the product in figures, and the tables of files in its READMEs.

``python tests/project/structure.py`` prints, for the packages in staticgrad/ and
compiler/: modules per folder, arrows against the layers of pyproject.toml, long files,
names that stand for two things, and the places of four operations (places.py). With
``--write`` it writes the table of files of each folder's README anew, from the first
lines of the modules' docstrings.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from places import OPERATIONS, places

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"staticgrad": "staticgrad", "compiler": "staticgrad.compiler"}

MOST_IN_A_ROOT = 12
MOST_IN_A_FOLDER = 26
LONG_FILE = 400

TABLE = re.compile(r"<!-- files -->\n.*?<!-- end of files -->\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Module:
    """A file of the product: its path from the root, its import name and its tree."""

    path: Path
    name: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """The number of its lines."""
        return len((ROOT / self.path).read_text(encoding="utf-8").splitlines())

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring, in one line."""
        text = ast.get_docstring(self.tree) or ""
        return " ".join(text.split("\n\n")[0].split())


def modules() -> list[Module]:
    """All modules of the product; the link staticgrad/compiler is left out."""
    return [module for top in PACKAGES for module in _inside(top)]


def _inside(top: str) -> Iterator[Module]:
    for path in sorted((ROOT / top).rglob("*.py")):
        relative = path.relative_to(ROOT / top)
        if top == "staticgrad" and relative.parts[0] == "compiler":
            continue
        parts = relative.with_suffix("").parts
        name = ".".join((PACKAGES[top], *parts)).removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield Module(path.relative_to(ROOT), name, tree)


def modules_per_folder(found: list[Module]) -> dict[Path, int]:
    """How many modules each folder holds, ``__init__`` and ``__main__`` included."""
    return dict(Counter(module.path.parent for module in found))


def repeated_names(found: list[Module]) -> dict[str, list[str]]:
    """Module names that stand in two folders, with the paths."""
    places = defaultdict(list)
    for module in found:
        if not module.path.stem.startswith("__"):
            places[module.path.stem].append(str(module.path))
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def repeated_classes(found: list[Module]) -> dict[str, list[str]]:
    """Names of public classes and types that are defined twice, with the paths."""
    places = defaultdict(list)
    for module in found:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(module.path))
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def arrows(found: list[Module]) -> set[tuple[str, str]]:
    """Pairs of modules (importer, imported) within the product."""
    known = {module.name for module in found}
    pairs = set()
    for module in found:
        for target in _imported(module.tree):
            named = target if target in known else target.rpartition(".")[0]
            if named in known and named != module.name:
                pairs.add((module.name, named))
    return pairs


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _contracts() -> list[dict[str, Any]]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["tool"]["importlinter"]["contracts"]


def for_type_checkers() -> set[tuple[str, ...]]:
    """The imports that pyproject.toml leaves out of a contract: importer, imported."""
    ignored = [row for c in _contracts() for row in c.get("ignore_imports", ())]
    return {tuple(row.split(" -> ")) for row in ignored}


def layers() -> list[list[set[str]]]:
    """The layers of each contract in pyproject.toml, the highest first."""
    result = []
    for contract in _contracts():
        if contract["type"] == "layers":
            prefix = "".join(f"{c}." for c in contract.get("containers", ()))
            rows = [re.split(r"\s*[:|]\s*", row) for row in contract["layers"]]
            result.append([{prefix + name for name in row} for row in rows])
    return result


def arrows_against_layers(found: list[Module]) -> list[tuple[str, str]]:
    """Imports of something that stands in a higher layer."""
    upward = []
    pairs = arrows(found) - for_type_checkers()
    for contract in layers():
        height = {name: -n for n, row in enumerate(contract) for name in row}
        for pair in sorted(pairs):
            source, target = (_height(name, height) for name in pair)
            if source is not None and target is not None and source < target:
                upward.append(pair)
    return upward


def _height(name: str, heights: dict[str, int]) -> int | None:
    """The layer of a module: that of itself or of the folder that it is in."""
    while name:
        if name in heights:
            return heights[name]
        name = name.rpartition(".")[0]
    return None


def table_of(folder: Path, found: list[Module]) -> str:
    """The table of a folder's files and, after them, of its folders."""
    rows = ["| file | what it is |", "|---|---|"]
    files = [m for m in found if m.path.parent == folder and m.path.stem[0] != "_"]
    rows += [f"| `{m.path.name}` | {m.summary} |" for m in files]
    inner = [m for m in found if m.path.name == "__init__.py"]
    inner = [m for m in inner if m.path.parent.parent == folder]
    rows += [f"| `{m.path.parent.name}/` | {m.summary} |" for m in inner]
    return "\n".join(("<!-- files -->", *rows, "<!-- end of files -->", ""))


def pages(found: list[Module]) -> dict[Path, str]:
    """The READMEs of folders with a table of files, as they should be."""
    result = {}
    for folder in modules_per_folder(found):
        page = ROOT / folder / "README.md"
        if page.exists():
            text = page.read_text(encoding="utf-8")
            table = table_of(folder, found)
            result[page] = TABLE.sub(lambda _, table=table: table, text)
    return result


def main(arguments: list[str]) -> None:
    """Print the figures, or write the tables."""
    found = modules()
    if "--write" in arguments:
        for page, text in pages(found).items():
            if page.read_text(encoding="utf-8") != text:
                page.write_text(text, encoding="utf-8")
                print("written:", page.relative_to(ROOT))
        return
    print("modules per folder")
    for folder, number in sorted(modules_per_folder(found).items()):
        print(f"  {number:3} {folder}")
    print(f"lines: {sum(module.lines for module in found)} in {len(found)} modules")
    print(f"arrows: {len(arrows(found))}, against the layers:", end=" ")
    print(arrows_against_layers(found) or 0)
    long = [(m.lines, str(m.path)) for m in found if m.lines > LONG_FILE]
    print(f"files of more than {LONG_FILE} lines: {len(long)}")
    for lines, path in sorted(long, reverse=True):
        print(f"  {lines} {path}")
    print("module names that stand twice:", repeated_names(found) or 0)
    print("class names that stand twice:", repeated_classes(found) or 0)
    for operation, names in OPERATIONS.items():
        lines = places(*names)
        files = {file for file, _ in lines}
        print(f"places of {operation}: {len(lines)} lines in {len(files)} files")


if __name__ == "__main__":
    main(sys.argv[1:])
