"""Pictures: valid, complete, bounded in time, whatever layout engine there is."""

import dataclasses
import os
import stat
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.kernel_ir.kernels import LoopKernel, Operand, Site
from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.kernel_ir.schedule import Buffer, Schedule
from staticgrad.ir.graph import OpenGraph as Graph
from staticgrad.ir.graph import scope
from staticgrad.ir.types import FLOAT32
from staticgrad.pictures import graph_picture as graph_pictures
from staticgrad.pictures import (
    history_svg,
    layout,
    memory_svg,
    render_history,
    render_memory,
)
from staticgrad.pictures.drawing import draw
from staticgrad.pictures.folding import MOST, fold_blocks, fold_runs, fold_scopes, folds
from staticgrad.pictures.memory_picture import live_bytes
from staticgrad.pictures.module_visits import split_visits
from staticgrad.pictures.row_layout import draw_rows, ordered_rows

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ['<b a="&">', "back\\slash\\N", "nul\x00", "lone\ud800", "<<i>x</i>>", "日本"]


@pytest.fixture(autouse=True)
def no_program(monkeypatch):
    """Pretend that there is no dot, unless a test brings its own."""
    monkeypatch.setattr(layout, "dot_program", lambda: None)


def texts(svg):
    return [e.text for e in ET.fromstring(svg.encode()).iter(f"{SVG}text")]


def tooltips(svg):
    return [e.text for e in ET.fromstring(svg.encode()).iter(f"{SVG}title")]


def nodes(svg):
    groups = ET.fromstring(svg.encode()).iter(f"{SVG}g")
    return sum(group.get("class") == "node" for group in groups)


def chain(length):
    x = h = sg.input("x", (3,))
    for _ in range(length):
        h = sg.tanh(h)
    return x, h


def blocks(count):
    h = sg.input("x", ("batch", 8))
    for number in range(count):
        with scope(f"block{number}"):
            skip = h
            for part in range(2):
                with scope(f"linear{part}"):
                    h = sg.matmul(h, sg.parameter(np.ones((8, 8), np.float32)))
                    h = sg.tanh(h + sg.parameter(np.ones(8, np.float32)))
            h = h * sg.exp(h) + skip
    return h


def long_arrows(count):
    made = [sg.input("x", (3,))]
    for _ in range(count):
        made.append(sg.tanh(made[-1]))
    for number in range(count):
        made.append(made[-1] + made[count - number])
    return made[-1]


def test_small_graph_shows_names_shapes_lines_and_scopes():
    with Graph() as graph:
        x = sg.input("pixels", ("batch", 3))
        with scope("head"):
            y = sg.tanh(x * 0.5)
    svg = graph_pictures.graph_svg(graph)
    shown = " ".join(filter(None, texts(svg)))
    for part in ("pixels", "float32[batch, 3]", "multiply(·, 0.5)", "tanh", "head"):
        assert part in shown
    assert any("test_pictures.py:" in (t or "") for t in tooltips(svg))
    assert nodes(svg) == 3
    assert y.shape == x.shape


def test_what_can_be_shown(tmp_path):
    with Graph() as graph:
        x = sg.input("x", (3,))
        y, z = sg.tanh(x), sg.exp(x)
    for shown in (graph, Graph.closed((x,), (y, z)), [y, z], (y, z), {"y": y, "z": z}):
        path = sg.render(shown, tmp_path / "graph.svg")
        assert nodes(path.read_text(encoding="utf-8")) == 3
    assert nodes(sg.render(y, str(tmp_path / "y.svg")).read_text(encoding="utf-8")) == 2
    assert nodes(graph._repr_svg_()) == 3


def test_graph_drops_what_nobody_holds():
    with Graph() as graph:
        x = sg.input("x", (3,))
        y = sg.tanh(x)
        sg.exp(x)
    assert nodes(graph_pictures.graph_svg(graph)) == 2
    assert graph.ends == (y,)


def test_bodies_are_named_by_what_they_are_and_counted_within_the_picture():
    def picture():
        with Graph() as graph:
            x = sg.input("x", ("t", 3))
            c, y = sg.scan(lambda c, v: (sg.tanh(c + v), c), np.zeros(3, "f4"), x)
            z = sg.cond(sg.sum(c) > 0, lambda: sg.sum(y), lambda: sg.sum(c))
            w = sg.while_loop(lambda s: s < 9, lambda s: s * 2, z)
            assert w.shape == ()
        return graph_pictures.graph_svg(graph)

    shown = set(texts(picture()))
    names = {"scan 1", "switch 1, case 0", "switch 1, case 1"}
    assert shown >= names | {"while_loop 1, condition", "while_loop 1, body"}
    assert set(texts(picture())) == shown


def test_empty_graph():
    with Graph() as graph:
        pass
    ET.fromstring(graph_pictures.graph_svg(graph).encode())
    ET.fromstring(draw_rows(draw(graph)).encode())


def test_update_is_an_arrow_back_to_its_leaf():
    with Graph() as graph:
        count = sg.state(np.zeros((), np.float32), name="count")
        sg.update(count, count + 1.0)
    drawing = draw(graph)
    (arrow,) = [a for a in drawing.arrows if a.update]
    assert drawing.boxes[arrow.head].lines[0] == "count"
    assert nodes(graph_pictures.graph_svg(graph)) == 2


@pytest.mark.parametrize("name", NAMES)
def test_names_cannot_break_the_picture(name):
    with Graph() as graph, scope(name):
        w = sg.parameter(np.ones(3, np.float32), name=name)
        y = w * 2.0
    assert nodes(graph_pictures.graph_svg(graph)) == 2
    ET.fromstring(draw_rows(draw(graph)).encode())
    assert y.shape == (3,)


@pytest.mark.parametrize("name", NAMES)
def test_names_cannot_break_the_memory_picture(name):
    ET.fromstring(memory_svg(plan_of([(0, 1, 64)], name)).encode())
    ET.fromstring(history_svg({name: [1.0, 2.0]}).encode())


def test_long_chain_is_quick():
    _, y = chain(1200)
    graph_pictures.graph_svg(chain(2)[1])  # compiles the engine where it is new
    start = time.perf_counter()
    svg = graph_pictures.graph_svg(y)
    assert time.perf_counter() - start < 12
    assert nodes(svg) == 1201


def test_network_of_forty_blocks_is_quick():
    y = blocks(40)
    graph_pictures.graph_svg(chain(2)[1])
    start = time.perf_counter()
    svg = graph_pictures.graph_svg(y)
    assert time.perf_counter() - start < 12
    assert nodes(svg) == len(draw(y).boxes) > 500


def test_hard_layout_is_bounded_in_time():
    y = long_arrows(500)
    start = time.perf_counter()
    svg = graph_pictures.graph_svg(y, seconds=1.0)
    assert time.perf_counter() - start < 16
    assert any("took over" in (t or "") for t in texts(svg))


def test_deep_graph_is_folded():
    x = h = sg.input("x", (3,))
    for _ in range(3000):
        h = sg.tanh(h) * 0.9 + x
    start = time.perf_counter()
    svg = graph_pictures.graph_svg(h, seconds=1.0)
    assert time.perf_counter() - start < 24
    assert len(svg) < 2_000_000
    assert any("Folded" in (t or "") for t in texts(svg))


def test_embedded_layout_stops_in_time():
    count = 300
    lines = [f"a{n}->a{n + 1} [label=wide_label]" for n in range(count)]
    lines += [f"a{n}->a{count - n}" for n in range(count // 2)]
    start = time.perf_counter()
    with pytest.raises(layout.LayoutTimeout):
        layout.layout("digraph{" + ";".join(lines) + "}", 0.1)
    assert time.perf_counter() - start < 16
    assert "<svg" in layout.layout("digraph{a->b}", 5)


def test_bad_text_is_an_error():
    with pytest.raises(layout.LayoutError, match="parse"):
        layout.layout("digraph {", 5)


def program(folder: Path, script: str) -> str:
    path = folder / "dot"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for dot is a shell script")
@pytest.mark.parametrize("script", ["exit 1", "kill -11 $$", "echo nonsense", "exit 0"])
def test_failing_program_gives_way_to_the_embedded_engine(
    script, tmp_path, monkeypatch
):
    path = program(tmp_path, script)
    monkeypatch.setattr(layout, "dot_program", lambda: path)
    assert nodes(graph_pictures.graph_svg(chain(4)[1])) == 5


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for dot is a shell script")
def test_slow_program_is_stopped(tmp_path, monkeypatch):
    path = program(tmp_path, "exec sleep 60")
    monkeypatch.setattr(layout, "dot_program", lambda: path)
    start = time.perf_counter()
    svg = graph_pictures.graph_svg(chain(4)[1], seconds=1.0)
    assert time.perf_counter() - start < 40
    assert any("took over" in (t or "") for t in texts(svg))


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for dot is a shell script")
def test_program_is_used(tmp_path, monkeypatch):
    picture = '<svg viewBox="0 0 8 8"><g><text>by dot</text></g></svg>'
    path = program(tmp_path, f"cat >/dev/null; echo '{picture}'")
    monkeypatch.setattr(layout, "dot_program", lambda: path)
    assert "by dot" in texts(graph_pictures.graph_svg(chain(4)[1]))


def test_no_engine_at_all_gives_a_plain_layout(monkeypatch):
    def broken(text, seconds):
        raise layout.LayoutError("broken")

    monkeypatch.setattr(layout, "run_embedded", broken)
    svg = graph_pictures.graph_svg(chain(4)[1])
    assert any((t or "").startswith("tanh") for t in texts(svg))
    assert any("Graphviz failed" in (t or "") for t in texts(svg))


def test_rows_hold_every_box_once_and_arrows_point_down():
    drawing = draw(blocks(5))
    rows = ordered_rows(drawing)
    assert sorted(b for row in rows for b in row) == list(range(len(drawing.boxes)))
    level = {box: number for number, row in enumerate(rows) for box in row}
    assert all(level[a.tail] < level[a.head] for a in drawing.arrows)
    svg = draw_rows(drawing)
    assert texts(svg).count("matmul") == 10 + 1  # and the legend


def test_folding_keeps_count_and_points_forward():
    drawing = draw(blocks(30))
    for smaller in folds(drawing):
        assert smaller.nodes == drawing.nodes
        assert len(smaller.boxes) < len(drawing.boxes)
    assert len(smaller.boxes) <= MOST
    runs = fold_runs(drawing)
    assert all(a.tail < a.head or not a.update for a in runs.arrows)
    assert len(fold_scopes(drawing).boxes) <= MOST
    assert len(fold_blocks(drawing, 10).boxes) <= 10


def test_runs_become_one_box():
    x, y = chain(50)
    assert [box.count for box in fold_runs(draw(y)).boxes] == [1, 50]
    assert x.shape == y.shape


def plan_of(lives, name="buffer", commit=0, kernels=6):
    """A plan of (first, last, bytes) buffers stacked one on another."""
    buffers = [
        Buffer(k, "temporary", (size // 4,), FLOAT32, name)
        for k, (_, _, size) in enumerate(lives)
    ]
    made = [
        LoopKernel(
            f"{name}_{k}",
            (1,),
            tuple(
                Operand(b, "write" if first == k else "read", FLOAT32)
                for b, (first, last, _) in enumerate(lives)
                if k in (first, last)
            ),
            (),
            (),
            (Site("add", None, name),),
            1,
        )
        for k in range(kernels)
    ]
    sizes = tuple(size for _, _, size in lives)
    offsets = tuple(int(x) for x in np.cumsum((0, *sizes))[:-1])
    plan = Plan(
        Schedule(tuple(buffers), tuple(made), commit, (), (), ()),
        (("batch", 32),),
        ((1, 1),) * kernels,
        sizes,
        tuple(first for first, _, _ in lives),
        tuple(last for _, last, _ in lives),
        offsets,
        sum(sizes),
        0,
        3 * sum(sizes),
        "bound",
    )
    return dataclasses.replace(plan, lower_bound_bytes=max(live_bytes(plan)))


def test_memory_picture_shows_every_buffer(tmp_path):
    plan = plan_of([(0, 2, 4096), (1, 3, 8192), (4, 5, 256)], commit=5)
    svg = render_memory(plan, tmp_path / "memory.svg").read_text(encoding="utf-8")
    about = [t for t in tooltips(svg) if t and t.startswith("buffer:")]
    assert len(about) == 3
    assert "float32[1024], 4 KiB at 0" in about[0]
    shown = " ".join(filter(None, texts(svg)))
    for part in ("12.25 KiB", "lower bound 12 KiB", "proven", "batch = 32", "commit"):
        assert part in shown


def test_live_bytes_are_summed_at_each_kernel():
    plan = plan_of([(0, 2, 64), (1, 3, 128), (4, 4, 256)])
    assert live_bytes(plan) == [64, 192, 192, 128, 256, 0]


def test_memory_picture_of_nothing():
    ET.fromstring(memory_svg(plan_of([(0, 0, 0)], kernels=1)).encode())
    empty = Schedule((), (), 0, (), (), ())
    plan = Plan(empty, (), (), (), (), (), (), 0, 0, 0, "")
    ET.fromstring(memory_svg(plan).encode())


def test_history_has_a_panel_for_each_quantity(tmp_path):
    history = {
        "loss": np.array([2.0, 1.0, np.nan, 0.5]),
        "accuracy": np.array([0.1, 0.5, 0.7, 0.9]),
        "val_loss": np.array([2.1, 1.2, 1.0, 0.8]),
        "val_accuracy": np.array([0.1, 0.4, 0.6, 0.8]),
    }
    svg = render_history(history, tmp_path / "curves.svg").read_text(encoding="utf-8")
    shown = [t for t in texts(svg) if t]
    assert shown.count("loss") == shown.count("accuracy") == 1
    assert "held out, last 0.8" in shown


@pytest.mark.parametrize(
    "history",
    [
        {},
        {"loss": []},
        {"loss": [3.0]},
        {"loss": [np.nan, np.inf]},
        {"loss": [1.0] * 500},
    ],
)
def test_history_of_any_length(history):
    ET.fromstring(history_svg(history).encode())


def test_second_visit_of_a_module_has_a_cluster_of_its_own():
    x = sg.input("x", (3,))
    with scope("a"):
        h = sg.tanh(x)
    with scope("b"):
        h = sg.exp(h)
    with scope("a"):
        y = sg.sin(h)
    drawing = split_visits(draw(y))
    assert [box.scope for box in drawing.boxes] == ["", "a", "b", "a (2)"]


def test_memory_of_an_executable_renders_itself(tmp_path):
    with Graph():
        x = sg.input("x", ("batch", 64))
        y = sg.sum(sg.matmul(sg.tanh(x), np.ones((64, 64), np.float32)))
    f = sg.compile(y, inputs=[x])
    f(x=np.ones((5, 64), np.float32))
    svg = f.memory.render(tmp_path / "memory.svg").read_text(encoding="utf-8")
    assert sum(" at " in (t or "") for t in tooltips(svg)) == len(f.memory.buffers)
    assert f.memory._repr_svg_() == svg


def test_another_format_is_refused(tmp_path):
    with pytest.raises(
        sg.GraphError, match=r"ends in \.svg, got 'y\.png'.*test_pictures"
    ):
        sg.render(sg.input("x", (3,)), tmp_path / "y.png")
    assert not (tmp_path / "y.png").exists()
