"""Where an operation's name has to be written for the operation to exist.

A place is a line of staticgrad/ or compiler/ that would have to be written, with the
name of the operation as a word of its own, for it to have a record, a public function,
kernels on every target and its part in NumPy's protocol:

* the line of a function or a class of that name, a method's declaration included,
* a line of a module's own code (not of a function's) that has the name as a value or as
  a word of a string: a record, a row of a table, ``__all__``,
* a line of the function itself that has the name as a word of a string,
* a line of an ``__init__`` that imports the name.

Comments, docstrings and calls are no places; np.tanh is NumPy's. Nor is what uses an
operation: nn/ and pictures/ are read for names that they define.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
USERS = ("nn", "pictures")
OPERATIONS = {
    "xlogy": ("xlogy",),
    "cumsum": ("cumsum",),
    "tanh": ("tanh",),
    "conv2d": ("conv2d", "conv", "Convolution"),
}
"""Operations that are counted, with the names of their records and functions."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def places(*names: str) -> list[tuple[str, int]]:
    """(file, line) of each place of an operation that has these names."""
    trees = {path: ast.parse(path.read_text()) for path in _modules(names)}
    homes = {path.parent.name for path, tree in trees.items() if _defined(tree, names)}
    return [
        (path.relative_to(ROOT).as_posix(), line)
        for path, tree in trees.items()
        if path.parent.name not in USERS or path.parent.name in homes
        for line in sorted(_lines(path, tree, names))
    ]


def _modules(names: tuple[str, ...]) -> Iterator[Path]:
    """The files that hold one of the names, the compiler's under one path alone."""
    folders = ROOT / "staticgrad", ROOT / "compiler"
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        linked = path.is_relative_to(ROOT / "staticgrad" / "compiler")
        if not linked and any(name in path.read_text() for name in names):
            yield path


def _defined(tree: ast.Module, names: tuple[str, ...]) -> set[ast.AST]:
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {n for n in ast.walk(tree) if isinstance(n, kinds) and n.name in names}


def _lines(path: Path, tree: ast.Module, names: tuple[str, ...]) -> set[int]:
    words = re.compile(rf"\b({'|'.join(names)})\b")
    texts = path.read_text().splitlines()
    defined = _defined(tree, names)
    found = {node.lineno for node in defined}
    stack: list[tuple[ast.AST, bool]] = [(tree, True)]
    while stack:
        node, counts = stack.pop()
        if counts and _is_named(node, names, path.stem == "__init__"):
            found.add(node.lineno)
        elif (
            counts and isinstance(node, ast.Constant) and words.search(f"{node.value}")
        ):
            span = range(node.lineno, node.end_lineno + 1)
            found.update(n for n in span if words.search(texts[n - 1]))
        inner = node in defined if isinstance(node, FUNCTIONS) else counts
        stack += [(child, inner) for child in _children(node)]
    return found


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a node: no docstrings, and of ``"a b".split()`` the string."""
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.Call) and child is node.func:
            if isinstance(child, ast.Attribute):
                yield child.value
        elif not (
            isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        ):
            yield child


def _is_named(node: ast.AST, names: tuple[str, ...], is_init: bool) -> bool:
    if isinstance(node, ast.alias):
        return is_init and node.name in names
    if isinstance(node, ast.Attribute):
        is_numpy = isinstance(node.value, ast.Name) and node.value.id == "np"
        return node.attr in names and not is_numpy
    return isinstance(node, ast.Name) and node.id in names
