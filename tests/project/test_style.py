"""The rules of the code's style that a program can check."""

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("staticgrad", "compiler", "tests", "examples", "benchmarks")
PRODUCT = ("staticgrad", "compiler")

FILE_LINES = 600
FUNCTION_LINES = 60
LINE_LENGTH = 88
MOST_WORDS = 60  # of the glossary
PAGE_LINES = 200  # of a page of decisions
VAGUE_NAMES = {
    "utils",
    "util",
    "helpers",
    "helper",
    "common",
    "misc",
    "manager",
    "handler",
}
# Heavy packages that only some users need; everything else is imported at the top.
IMPORTED_INSIDE = ("numba.cuda", "matplotlib")
# Folders whose README has a table of files, and which of their files it names; those of
# the product are in test_structure.py.
TABLES = {
    "benchmarks": "*.py",
    "examples": "*.py",
    "tests": "**/test_*.py",
}
# Words with which a docstring would describe a thing in a roundabout way.
ROUNDABOUT = {"What", "Whatever", "How", "Where", "When", "Who", "From"}
# The stages after the passes ask for the kind of an op, never for its name.
NAMELESS_EXCEPT = ("passes",)


def sources(*folders):
    """Python files of the folders; the link staticgrad/compiler is left out."""
    found = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "compiler" not in path.relative_to(ROOT / folder).parts:
                found.append(path)
    return found


def texts():
    """The pages for people."""
    folders = (*FOLDERS, "docs")
    return [*ROOT.glob("*.md"), *(p for f in folders for p in (ROOT / f).rglob("*.md"))]


def name(path):
    return str(path.relative_to(ROOT))


all_files = pytest.mark.parametrize("path", sources(*FOLDERS), ids=name)
product_files = pytest.mark.parametrize("path", sources(*PRODUCT), ids=name)


def functions(tree):
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def test_the_folders_are_searched():
    assert len(sources(*PRODUCT)) > 20


@all_files
def test_file_and_lines_are_short(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= FILE_LINES
    assert [n for n, line in enumerate(lines, 1) if len(line) > LINE_LENGTH] == []


@all_files
def test_functions_are_short(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    long = [
        (f.name, f.end_lineno - f.lineno + 1)
        for f in functions(tree)
        if f.end_lineno - f.lineno + 1 > FUNCTION_LINES
    ]
    assert long == []


@all_files
def test_file_name_says_what_is_in_it(path):
    words = {word for part in path.relative_to(ROOT).parts for word in part.split("_")}
    assert not VAGUE_NAMES & {word.removesuffix(".py") for word in words}


def code_in_tables(folder):
    """Return the code between backquotes in the tables of a folder's README."""
    readme = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("|")]
    return [
        code.removesuffix(".py") for code in re.findall(r"`([^`]+)`", "".join(rows))
    ]


@pytest.mark.parametrize("folder", TABLES)
def test_the_table_of_a_folder_names_its_files(folder):
    named = code_in_tables(folder)
    files = [path.stem for path in (ROOT / folder).glob(TABLES[folder])]
    unnamed = [f for f in files if not any(fnmatch(f, one) for one in named)]
    assert [f for f in unnamed if not f.startswith("__")] == []


def test_the_table_of_tests_names_no_others():
    named = [code for code in code_in_tables("tests") if code.startswith("test_")]
    assert [one for one in named if not list((ROOT / "tests").rglob(f"{one}.py"))] == []


@pytest.mark.parametrize("path", texts(), ids=name)
def test_lists_have_no_holes(path):
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"\n(?:- |  ).*\n\n- .*", text) == []


def glossary():
    """The words that CONTRIBUTING.md explains."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = page.split("## Glossary\n")[1].split("\n## ")[0]
    return re.findall(r"^\| ([^|]+?) \|", rows, re.M)[1:]


def test_the_glossary_is_short_and_its_words_are_used():
    words = glossary()
    assert 30 < len(words) <= MOST_WORDS
    assert words == sorted(set(words), key=str.lower)
    code = "".join(path.read_text(encoding="utf-8") for path in sources(*PRODUCT))
    wanted = {w: rf"(?i)\b{w}".replace(" ", r"[\s_]") for w in words}
    assert [w for w, pattern in wanted.items() if not re.search(pattern, code)] == []


def test_decisions_are_short_pages_that_the_index_names():
    folder = ROOT / "docs" / "decisions"
    pages = [path for path in folder.glob("*.md") if path.name != "README.md"]
    long = [
        p.name for p in pages if len(p.read_text("utf-8").splitlines()) > PAGE_LINES
    ]
    assert long == []
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert [p.name for p in pages if f"]({p.name})" not in index] == []


@all_files
def test_module_has_a_docstring(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@product_files
def test_imports_stand_at_the_top(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = []
    for function in functions(tree):
        for node in ast.walk(function):
            if isinstance(node, ast.Import):
                inside += [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                inside.append(node.module)
    assert [n for n in inside if not n.startswith(IMPORTED_INSIDE)] == []


@product_files
def test_what_is_public_has_a_docstring(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    definitions = ast.FunctionDef | ast.ClassDef
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef)]
    public_classes = [c for c in classes if not c.name.startswith("_")]
    members = [m for owner in (tree, *public_classes) for m in owner.body]
    bare = [
        m.name
        for m in members
        if isinstance(m, definitions)
        and not m.name.startswith("_")
        and not ast.get_docstring(m)
        and not overload_or_setter(m)
    ]
    assert bare == []


@product_files
def test_docstrings_name_the_thing_or_the_action(path):
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [
        (getattr(node, "lineno", 1), text)
        for node in ast.walk(tree)
        if isinstance(node, documented) and (text := ast.get_docstring(node))
    ]
    bad = [(line, text.splitlines()[0]) for line, text in found if roundabout(text)]
    assert bad == [], (
        "the first line of a docstring names the thing or the action: put a variable "
        f"in backticks, and begin with a noun or a verb, not with {sorted(ROUNDABOUT)}"
        + "".join(f"\n{name(path)}:{line}: {text}" for line, text in bad)
    )


def roundabout(text):
    """Whether a docstring begins with a question's word, or with x in a capital."""
    word = text.split()[0]
    return word in ROUNDABOUT or re.fullmatch(r"[B-Z]\W?", word)


def overload_or_setter(definition):
    names = [ast.unparse(decorator) for decorator in definition.decorator_list]
    return any(n == "overload" or n.endswith(".setter") for n in names)


@pytest.mark.parametrize("path", sources("compiler"), ids=name)
def test_stages_ask_for_kinds_of_ops(path):
    if path.parent.name in NAMELESS_EXCEPT:
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tests = [
        node for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.Match)
    ]
    asked = [
        ast.unparse(test)
        for test in tests
        for node in ast.walk(test)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node).endswith(("op.name", "op().name"))
    ]
    assert asked == []


@pytest.mark.parametrize("name", ["PASSES", "SCHEDULE_PASSES"])
def test_passes_tell_their_reasons(name):
    tree = ast.parse((ROOT / "compiler" / "compile.py").read_text(encoding="utf-8"))
    (passes,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and node.target.id == name
    ]
    assert isinstance(passes, ast.Tuple)
    for entry in passes.elts:
        _, reason, *_ = entry.args
        assert isinstance(reason, ast.Constant)
        assert len(reason.value) > 10
        assert entry.lineno == entry.end_lineno
