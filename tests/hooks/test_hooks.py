"""Hooks: on gradients, on modules; what they see, change, and refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.testing import check_vmap, gradcheck

TARGETS = ("reference", "cpu")


def value(tensor: Any) -> Any:
    return sg.compile(tensor)()


def parameter(array: Any) -> sg.Parameter:
    return sg.parameter(np.array(array, "float64"), name="p")


@pytest.mark.parametrize("target", TARGETS)
def test_a_hook_sees_the_gradient_summed_over_uses_and_hooks_run_in_order(
    target: Any,
) -> None:
    x = parameter([1.0, -2.0])
    seen: list[Any] = []
    y = sg.on_gradient(x, seen.append, lambda g: g * 10, lambda g: sg.clip(g, -25, 25))
    loss = sg.sum(y * y + y)
    dx = sg.grad(loss, x)
    assert len(seen) == 1
    got = sg.compile([dx, seen[0]], target=target)()
    assert got[1].tolist() == [3, -3]
    assert got[0].tolist() == [25, -25]
    nested = sg.on_gradient(sg.on_gradient(x, lambda g: g + 1), lambda g: g * 10)
    assert value(sg.grad(sg.sum(nested), x)).tolist() == [11, 11]


def test_a_hook_on_an_intermediate_costs_nothing_where_it_changes_nothing() -> None:
    x = parameter([1.0, -2.0])
    plain = sg.grad(sg.sum(sg.exp(x * 2)), x)
    hooked = sg.grad(sg.sum(sg.exp(sg.on_gradient(x * 2, lambda g: None))), x)
    f, g = sg.compile(plain), sg.compile(hooked)
    assert f().tolist() == g().tolist()
    names = [[k.name for k in h.target.code.loops] for h in (f, g)]
    assert names[0] == names[1]
    dropped = sg.grad(sg.sum(sg.on_gradient(x, lambda g: 0 * g) + x), x)
    assert value(dropped).tolist() == [1, 1]


def test_nan_is_replaced_and_hooks_work_inside_transforms() -> None:
    x = parameter([[1.0, 0.0], [4.0, 9.0]])

    def safe(row: Any) -> Any:
        root = sg.sqrt(sg.on_gradient(row, lambda g: sg.nan_to_num(g, posinf=7.0)))
        return sg.sum(root)

    want = [[0.5, 7.0], [0.25, 1 / 6]]
    np.testing.assert_allclose(value(sg.grad(safe(x), x)), want)
    rows = sg.vmap(lambda row: sg.grad(safe(row), row))(x)
    np.testing.assert_allclose(value(rows), want)
    clipped = sg.vmap(lambda row: sg.clip_gradient(row, -1, 1))(x)
    np.testing.assert_allclose(value(sg.grad(sg.sum(clipped * 3), x)), np.ones((2, 2)))
    assert gradcheck(lambda x: sg.on_gradient(x * x, lambda g: None), np.array([2.0]))
    assert check_vmap(lambda x: sg.on_gradient(x * x, lambda g: 2 * g), np.ones((3, 2)))


def test_clipping_reversing_and_passing_straight_through() -> None:
    x = parameter([0.4, 1.6])
    two_sided = sg.grad(sg.sum(sg.clip_gradient(x, -0.5, 0.5) * [3.0, -3.0]), x)
    assert value(two_sided).tolist() == [0.5, -0.5]
    one_sided = sg.grad(sg.sum(sg.clip_gradient(x, high=0.1) * [3.0, -3.0]), x)
    assert value(one_sided).tolist() == [0.1, -3]
    assert (
        value(sg.grad(sg.sum(sg.reverse_gradient(x, 2.0) * 3), x)).tolist() == [-6] * 2
    )
    assert value(sg.jvp(sg.reverse_gradient(x), x, [1.0, 2.0])).tolist() == [-1, -2]
    key = sg.random.key(0)
    sample = (sg.random.uniform(key, (2,), dtype="float64") < x).astype("float64")
    y = sg.straight_through(sample, x)
    drawn, slope = value([y, sg.grad(sg.sum(y * [2.0, 5.0]), x)])
    assert set(drawn.tolist()) <= {0.0, 1.0}
    assert slope.tolist() == [2, 5]
    with pytest.raises(sg.ShapeError, match="straight_through requires y and x of one"):
        sg.straight_through(sg.sum(x), x)
    with pytest.raises(sg.DTypeError, match="of one type, got int64"):
        sg.straight_through(x.astype("int64"), x)


def test_what_a_hook_may_give() -> None:
    x = parameter([0.4, 1.6])
    wrong = sg.on_gradient(x, lambda g: sg.sum(g))
    with pytest.raises(sg.ShapeError, match="hook to give the shape of the gradient"):
        sg.grad(sg.sum(wrong), x)
    wrong = sg.on_gradient(x, lambda g: g.astype("float32"))
    with pytest.raises(sg.DTypeError, match="hook to give the dtype of the gradient"):
        sg.grad(sg.sum(wrong), x)
    with pytest.raises(
        sg.GraphError, match="requires functions of the gradient, got 3"
    ):
        sg.on_gradient(x, 3)
    with pytest.raises(sg.GraphError, match="a float tensor and a function"):
        sg.on_gradient(x)
    with pytest.raises(sg.GraphError, match=r"a float tensor .* int64"):
        sg.on_gradient(sg.constant(np.arange(3)), lambda g: g)


def test_a_hook_whose_result_is_not_used_says_so() -> None:
    with sg.Graph():
        x = sg.input("x", (3,))
        w = sg.parameter(np.ones(3, "float32"), name="w")
        h = x * w
        hooked = sg.on_gradient(h, lambda g: g * 2)
        loss = sg.sum(h)
    with pytest.warns(sg.HookWarning, match=r"requires its result .* at test_hooks.py"):
        sg.grad(loss, w)
    assert hooked.shape == (3,)
    with sg.Graph():
        x = sg.input("x", (3,))
        loss = sg.sum(sg.on_gradient(x, lambda g: g * 2))
    sg.grad(loss, x)  # no warning


# ---- modules -------------------------------------------------------------------------


def test_forward_hooks_see_and_replace() -> None:
    with sg.Graph(seed=0):
        layer = sg.nn.Linear(3, 2)
        seen: list[str] = []
        handles = [
            layer.on_forward_pre(lambda module, args: seen.append("before")),
            layer.on_forward_pre(lambda module, args: args[0] * 2),
            layer.on_forward(lambda module, args, y: seen.append(f"after {y.shape}")),
            layer.on_forward(lambda module, args, y: -y),
        ]
        x = sg.input("x", (4, 3))
        y = layer(x)
        assert seen == ["before", "after (4, 2)"]
        plain = layer.forward(x * 2)
        for handle in handles:
            handle.remove()
            handle.remove()
        seen.clear()
        assert layer(x).shape == (4, 2)
        assert seen == []
    data = np.ones((4, 3), "float32")
    got = sg.compile([y, plain])(data)
    np.testing.assert_array_equal(got[0], -got[1])


def test_backward_hooks_see_both_sides_even_where_inputs_need_no_gradient() -> None:
    with sg.Graph(seed=0):
        first, second = sg.nn.Linear(3, 2), sg.nn.Linear(2, 1)
        model = sg.nn.Sequential(first, second)
        seen: dict[str, Any] = {}

        def hook(name: str) -> Any:
            def fn(module: Any, of_inputs: Any, of_results: Any) -> None:
                assert name not in seen
                seen[name] = (*of_inputs, *of_results)

            return fn

        handles = [first.on_backward(hook("first")), second.on_backward(hook("second"))]
        x = sg.input("x", (4, 3))
        loss = sg.sum(model(x) ** 2)
        dw = sg.grad(loss, model.parameters())
    assert set(seen) == {"first", "second"}
    h = first.forward(x)
    y = second.forward(h)
    want = [2 * y @ second.weight @ first.weight, 2 * y @ second.weight]
    for handle in handles:
        handle.remove()
    reference = sg.grad(sg.sum(model(x) ** 2), model.parameters())
    f = sg.compile([seen["first"], want, dw, reference])
    got, expected, grads, plain = f(np.arange(12, dtype="float32").reshape(4, 3))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    for name in grads:
        np.testing.assert_allclose(grads[name], plain[name], rtol=1e-5)


def test_backward_hooks_replace_the_gradient_of_inputs() -> None:
    with sg.Graph(seed=0):
        layer = sg.nn.Linear(2, 2)
        x = sg.input("x", (1, 2))
        plain = sg.grad(sg.sum(layer(x)), x)
        handle = layer.on_backward(lambda module, ins, outs: (ins[0] * 3,))
        tripled = sg.grad(sg.sum(layer(x)), x)
        handle.remove()
        layer.on_backward(lambda module, ins, outs: (sg.sum(ins[0]),))
        with pytest.raises(
            sg.ShapeError, match="on_backward requires gradients of the"
        ):
            sg.grad(sg.sum(layer(x)), x)
        with pytest.raises(sg.GraphError, match="a hook requires a function, got 3"):
            layer.on_forward(3)
    one, three = sg.compile([plain, tripled])()
    np.testing.assert_allclose(three, 3 * one, rtol=1e-6)
