"""The pages for users: blocks run and print what is shown, commands and links exist.

Every Python block of a page runs, in order, in one namespace; a text block right after
it is what it prints. What differs between machines and runs is masked on both sides.
``python tests/project/test_readme.py`` writes what is printed now into the pages.
"""

import contextlib
import io
import linecache
import re
from pathlib import Path

import pytest

import staticgrad as sg
from staticgrad.compiler.codegen.tiles.product_tiles import LONG_ROWS, plan_of

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = (README, ROOT / "docs" / "tour.md")  # those whose blocks run

BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<text>.*?)^```$)?", re.M | re.S
)
COMMAND = re.compile(r"^python3 -m venv \.venv && .*$", re.M)
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]+))?\)")
# What depends on the machine, on the cache and on the clock.
VARYING = (
    (r"\d+ threads( \(\w+\))?", "T threads"),
    (r"\d+ compiled, \d+ from the cache, in [\d.]+ s", "C"),
    (r"  (in memory|on disk|compiled.*)$", "  H"),
)


def hidden(path):
    """True in virtual environments and caches."""
    return any(part.startswith(".") for part in path.relative_to(ROOT).parts)


def masked(text):
    lines = [line.rstrip() for line in text.strip().splitlines()]
    for pattern, name in VARYING:
        lines = [re.sub(pattern, name, line) for line in lines]
    return lines


def name_of(code, number):
    """The file name in an error: that of the comment in the first line."""
    found = re.match(r"# (\w+\.py)\n", code)
    return found[1] if found else f"block{number}.py"


def run(code, number, namespace):
    """Return the output of a block."""
    name = name_of(code, number)
    lines = code.splitlines(keepends=True)
    linecache.cache[name] = (len(code), None, lines, name)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), namespace)  # noqa: S102  # our own README
    return printed.getvalue()


def blocks(page):
    return list(BLOCK.finditer(page.read_text(encoding="utf-8")))


with_blocks = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@with_blocks
def test_blocks_print_what_is_shown(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": page.stem}
    for number, block in enumerate(blocks(page)):
        printed = run(block["code"], number, namespace)
        assert masked(printed) == masked(block["text"] or ""), block["code"]
    drawn = re.findall(r'"(\w+\.svg)"', page.read_text(encoding="utf-8"))
    assert {path.name for path in tmp_path.iterdir()} == set(drawn)


@with_blocks
def test_every_python_block_is_found(page):
    text = page.read_text(encoding="utf-8")
    assert len(blocks(page)) == text.count("```python\n") > 3


@pytest.mark.skipif(
    plan_of().rows != LONG_ROWS, reason="elsewhere gradients take memory"
)
def test_figures_are_those_of_the_example():
    import digits  # not needed, and not found, where this file is run by itself

    _, _, loss, accuracy = digits.build()
    trainer = sg.Trainer(loss, sg.optim.Adam(2e-3), metrics={"accuracy": accuracy})
    train, _ = digits.load()
    trainer.step(**{name: array[: digits.BATCH] for name, array in train.items()})
    memory = trainer.memory
    figures = (memory.arena_bytes, memory.lower_bound_bytes, memory.unplanned_bytes)
    text = README.read_text(encoding="utf-8")
    assert [f for f in figures if text.count(f"{f:,}") < 2] == []
    assert f"kernels           {len(memory.plan.schedule.kernels)}\n" in text


def test_what_is_said_to_be_missing_is_missing():
    text = README.read_text(encoding="utf-8")
    part = text.split("## What is not there yet\n")[1].split("\n## ")[0]
    names = re.findall(r"`((?:sg|nn|linalg)\.\w+)`", part)
    places = {"sg": sg, "nn": sg.nn, "linalg": sg.linalg}
    there = [n for n in names if hasattr(places[n.split(".")[0]], n.split(".")[1])]
    assert len(names) > 5
    assert there == []


def test_two_commands_do_everything():
    main, tests = COMMAND.findall(README.read_text(encoding="utf-8"))
    assert (ROOT / main.split()[-1]).is_file()
    assert tests.endswith(" -m pytest -n auto")
    for command, extra in ((main, "examples"), (tests, "test")):
        assert f"install -q '.[{extra}]'" in command
        assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "path",
    sorted(p for p in ROOT.glob("**/*.md") if not hidden(p)),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_links_lead_somewhere(path):
    near = [link for link in LINK.findall(prose(path)) if "://" not in link[0]]
    assert [t for t, _ in near if not (path.parent / t).exists()] == []
    anchored = [(path.parent / t if t else path, a) for t, a in near if a]
    assert [(p.name, a) for p, a in anchored if a not in anchors(p)] == []


def prose(path):
    """The text of a page without its blocks."""
    return re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.M | re.S)


def anchors(path):
    """What the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.*)$", prose(path), flags=re.M)
    return {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}


def rewrite(page):
    """Put what the blocks of a page print now into it."""
    namespace = {"__name__": page.stem}
    text = page.read_text(encoding="utf-8")
    for number, block in enumerate(blocks(page)):
        printed = run(block["code"], number, namespace)
        if block["text"] is not None and masked(printed) != masked(block["text"]):
            old = block[0]
            head = old[: block.start("text") - block.start()]
            text = text.replace(old, f"{head}{printed}```")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for each in PAGES:
        rewrite(each)
