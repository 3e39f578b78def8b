"""explain_gradient and gradient_report, with the numbers that articles tell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import staticgrad as sg

X = np.random.default_rng(0).normal(size=(32, 16)).astype("float32")


# ---- paths ---------------------------------------------------------------------------


def test_every_path_is_counted_and_shown() -> None:
    with sg.Graph():
        x = sg.parameter([1.0, 2.0], name="x")
        h = sg.tanh(x)
        y = sg.sum(h * x + h)
    found = sg.explain_gradient(y, x)
    assert found.count == 3
    assert [n.op.name for n in found.paths[0]][-1] == "reduce_sum"
    text = str(found)
    assert "3 paths, whose gradients are added" in text
    assert "x -> tanh test_diagnosis.py:" in text
    assert "parameter 'x' float32[2]  at test_diagnosis.py:" in text


def test_steps_of_one_line_and_module_stand_together() -> None:
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 4))
        model = sg.nn.Sequential(sg.nn.Linear(4, 3), sg.nn.Tanh())
        h = model(x)
        loss = sg.nn.cross_entropy(h, sg.argmax(h, axis=1))
    text = str(sg.explain_gradient(loss, model[0].weight, limit=1))
    place = r"test_diagnosis\.py:\d+"
    steps = rf"1: 0\.weight -> transpose, matmul, add {place} in 0 -> tanh {place} in 1"
    assert re.search(rf"{steps} -> subtract, .*, divide {place}$", text, re.M), text


@pytest.mark.parametrize(
    "make",
    [sg.softmax, sg.log_softmax, sg.logsumexp, lambda x: sg.nn.attention(x, x, x)],
)
def test_the_shift_of_a_softmax_is_no_cut(make: Any) -> None:
    x = sg.parameter(np.ones((2, 3), np.float32), name="x")
    found = sg.explain_gradient(sg.sum(make(x) ** 2), x)
    assert found
    assert found.cuts == ()
    own = sg.sum(x * sg.stop_gradient(sg.max(x)))
    assert len(sg.explain_gradient(own, x).cuts) == 1


def test_paths_of_a_deep_diamond_are_counted_not_walked() -> None:
    x = sg.parameter(1.0, name="x")
    y = x
    for _ in range(100):
        y = y * y
    found = sg.explain_gradient(y, x, limit=3)
    assert found.count == 2**100
    assert len(found.paths) == 3
    assert f"and {2**100 - 3} more" in str(found)


CUTS: dict[str, tuple[Any, str, str]] = {
    "rounding": (lambda x: sg.sum(sg.rint(x)), "rint", "zero everywhere"),
    "comparison": (
        lambda x: sg.sum((x > 1).astype("float32")), "greater", "gives bool"
    ),
    "argmax": (lambda x: sg.argmax(x).astype("float32") * 1.0, "", ""),
    "stopped": (lambda x: sg.sum(sg.stop_gradient(x)), "stop_gradient", "it stops"),
    "integers": (
        lambda x: sg.sum(x.astype("int64").astype("float32")), "cast", "gives int64"
    ),
    "custom": (
        lambda x: sg.custom_op("mine", forward=lambda x: x * x)(x) * 1.0, "", ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_is_named_with_its_line(name: str) -> None:
    make, op, reason = CUTS[name]
    x = sg.parameter(np.float32([1.0, 2.0]), name="x")
    y = sg.sum(make(x))
    found = sg.explain_gradient(y, x)
    if name == "custom":  # no backward: a path whose gradient is zero
        assert found.count == 1
        return
    assert not found
    assert "no path: the gradient is zero everywhere" in str(found)
    assert f"cut by {op}" in str(found)
    assert reason in str(found)
    assert "at test_diagnosis.py:" in str(found.cuts[0])
    with pytest.raises(sg.GraphError, match="whose path to y is cut by"):
        sg.grad(y, x)


def test_a_choice_is_no_cut_and_the_real_one_is_named() -> None:
    x = sg.parameter([1.0, -2.0], name="x")
    found = sg.explain_gradient(sg.sum(sg.relu(x)), x)
    assert found.count == 1
    assert found.cuts == ()
    stopped = sg.sum(sg.stop_gradient(sg.relu(x)))
    assert [c.node.op.name for c in sg.explain_gradient(stopped, x).cuts] == [
        "stop_gradient"
    ]
    with pytest.raises(sg.GraphError, match="cut by stop_gradient"):
        sg.grad(stopped, x)


def test_unused_and_partly_cut() -> None:
    x, z = sg.parameter([1.0, 2.0], name="x"), sg.parameter(1.0, name="z")
    y = sg.sum(x * sg.stop_gradient(x))
    found = sg.explain_gradient(y, x)
    assert found.count == 1
    assert [cut.node.op.name for cut in found.cuts] == ["stop_gradient"]
    assert "no path: the result does not use it" in str(sg.explain_gradient(y, z))
    with pytest.raises(sg.DTypeError, match="explain_gradient requires a float y"):
        sg.explain_gradient(sg.argmax(x), x)


# ---- the report ----------------------------------------------------------------------


def deep(residual: bool, scale: float = 1.0, layers: int = 20, width: int = 16) -> Any:
    """A network of sigmoid layers, with residual connections or without."""
    with sg.Graph(seed=0):
        x, y = sg.input("x", ("batch", 16)), sg.input("y", ("batch",))
        h = x
        for number in range(layers):
            with sg.scope(f"layer{number}"):
                layer = sg.nn.Linear(width, width)
                new = sg.sigmoid(layer(h) * scale)
                h = h + new if residual else new
        with sg.scope("out"):
            result = sg.nn.Linear(width, 1)(h)[:, 0]
        return sg.mean((result - y) ** 2)


DATA = {"x": X, "y": X[:, 0]}


def test_twenty_sigmoid_layers_vanish_and_residuals_keep_them() -> None:
    plain = sg.gradient_report(deep(residual=False), DATA)
    shallow = next(iter(plain.norms.values()))
    assert shallow < 1e-8
    assert not plain.healthy
    assert any(v.startswith("vanishing: the norm of layer0") for v in plain.verdicts)
    assert any("factor of" in v for v in plain.verdicts)
    kept = sg.gradient_report(deep(residual=True), DATA)
    assert 1e-3 < next(iter(kept.norms.values())) < 10
    assert not any(v.startswith(("vanish", "suspicious")) for v in kept.verdicts)


def test_a_bad_start_explodes() -> None:
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 16))
        h = x
        for _ in range(20):
            w = sg.parameter(np.full((16, 16), 2.0, "float32"), name="w")
            h = sg.relu(h @ w)
        loss = sg.mean(h)
    report = sg.gradient_report(loss, {"x": abs(X)})
    assert report.global_norm >= 1e10
    assert report.verdicts[0].startswith("explosion: the global norm is")


def test_the_norms_are_those_of_numpy() -> None:
    loss = deep(residual=True, layers=3)
    wrt = {p.name: p for p in _parameters(loss)}
    report = sg.gradient_report(loss, DATA)
    grads = sg.compile(sg.grad(loss, wrt))(**DATA)
    assert list(report.norms) == ["layer0", "layer1", "layer2", "out"]
    for name, norm in report.norms.items():
        own = [g for key, g in grads.items() if key.startswith(f"{name}.")]
        assert own
        want = np.sqrt(sum(float((g.astype("f8") ** 2).sum()) for g in own))
        assert norm == pytest.approx(want, rel=1e-5)
    total = np.sqrt(sum(float((g.astype("f8") ** 2).sum()) for g in grads.values()))
    assert report.global_norm == pytest.approx(total, rel=1e-5)
    reference = sg.gradient_report(loss, DATA, target="reference")
    assert reference.global_norm == pytest.approx(report.global_norm, rel=1e-5)


def _parameters(loss: Any) -> list[Any]:
    return [
        t
        for node in sg.ir.graph.topological([loss])
        for t in node.outputs
        if isinstance(t, sg.Parameter)
    ]


def test_dead_and_saturated_units_are_counted() -> None:
    with sg.Graph():
        x = sg.input("x", ("batch", 3))
        bias = sg.parameter(np.float32([-100.0, 0.0, -100.0]), name="bias")
        dead = sg.relu(x + bias)
        own = sg.where(x > 0, x, 0.0)
        steep = sg.parameter(np.float32([0.1, 0.1, 100.0]), name="steep")
        full = sg.tanh(x * steep + 5000 * (steep > 1))
        half = sg.sigmoid(x * 0 - 20) + dead
        loss = sg.mean(half + own + full + sg.maximum(-abs(x), 0.0))
    report = sg.gradient_report(loss, {"x": X[:, :3]}, [bias, steep])
    found = {(u.activation.kind, u.activation.state): u.idle for u in report.units}
    assert found["sigmoid", "saturated"] == 3
    assert found["tanh", "saturated"] == 1
    idle = sorted(u.idle for u in report.units if u.activation.kind == "relu")
    assert idle == [0, 2, 3]
    assert any(v.startswith("dead: relu") and "2 of 3" in v for v in report.verdicts)
    assert not report.healthy


def test_layers_without_activation_are_told() -> None:
    with sg.Graph(seed=0):
        first, second, third = (sg.nn.Linear(16, 16) for _ in range(3))
        x = sg.input("x", ("batch", 16))
        loss = sg.mean(third(sg.relu(second(first(x)))) ** 2)
    report = sg.gradient_report(loss, {"x": X})
    linear = [v for v in report.verdicts if v.startswith("linear: ")]
    assert len(linear) == 1
    assert "between weight and weight_1" in linear[0]
    assert "at test_diagnosis.py:" in linear[0]


def test_what_is_not_finite_is_named() -> None:
    with sg.Graph():
        w, v = sg.parameter(0.0, name="w"), sg.parameter(2.0, name="v")
        loss = sg.log(w) + v * v
    report = sg.gradient_report(loss)
    assert report.verdicts[0] == "not finite: the gradients of w"
    with sg.Graph():
        w, v = sg.parameter(3.0, name="w"), sg.parameter(2.0, name="v")
        loss = 1e-4 * w + 1e-3 * v
    assert sg.gradient_report(loss).verdicts[0].startswith("small: the global norm")
    assert sg.gradient_report(loss * 1e5).verdicts[0].startswith("large: the global")


def test_the_picture(tmp_path: Path) -> None:
    report: Any = sg.gradient_report(deep(residual=False), DATA)
    path = report.render(tmp_path / "norms.svg")
    root = ET.parse(path).getroot()
    texts = [e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("Norms of gradients" in t for t in texts)
    assert sum(t.startswith("layer") for t in texts) == 20
    bars = [e for e in root.iter() if e.tag.endswith("title")]
    assert sum("norm" in (e.text or "") for e in bars) == 21
    assert report._repr_svg_().startswith("<svg")
    assert "vanishing" in str(report)
