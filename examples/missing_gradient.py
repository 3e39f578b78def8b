"""Why a gradient is missing: six causes, each explained with its line, and the remedy.

Dynamic engines answer None, at run time; here ``sg.grad`` raises when the graph is
built, and ``sg.explain_gradient`` shows every path or what cuts it. Run:
``python examples/missing_gradient.py [--short]``.
"""

import argparse

import numpy as np

import staticgrad as sg


def refused(make, *words):
    """`make` raises an error of the library that says all of `words`."""
    try:
        make()
    except (sg.GraphError, sg.ShapeError, sg.DTypeError) as error:
        text = str(error)
        assert all(word in text for word in words), text
        assert "missing_gradient.py:" in text
        print(f"  {text}")
        return
    raise AssertionError("nothing was refused")


def remedies(w, v):
    """Gradients that are not missing, by what the reader may have met."""
    h = w * 3
    y = sg.straight_through(sg.rint(v), v)
    return {
        "intermediate": sg.grad(sg.sum(h * h), h),
        "no_grad": sg.grad(sg.sum(w * v), v),
        "non-scalar": sg.grad(w * w, w, cotangent=[1.0, 1.0]),
        "rounded": sg.grad(sg.sum(y * y), v),
    }


def six_causes():
    """Unused, intermediate, no_grad, detach, non-scalar, reassigned."""
    w = sg.parameter([2.0, 3.0], name="w")
    v = sg.parameter([0.4, 1.6], name="v")
    there = {name: g.tolist() for name, g in sg.compile(remedies(w, v))().items()}

    print("1. unused: the loss never reads it")
    refused(lambda: sg.grad(sg.sum(w * w), v), "does not use")

    print("2. an intermediate value: nothing special, any tensor may be asked for")
    assert there["intermediate"] == [12, 18]

    print("3. no_grad: a part that shall not be trained is just not asked for")
    assert there["no_grad"] == [2, 3]

    print("4. detach: stop_gradient cuts the path, and is named")
    stopped = sg.sum(sg.stop_gradient(w) * 2)
    refused(lambda: sg.grad(stopped, w), "cut by stop_gradient")
    found = sg.explain_gradient(stopped, w)
    print("  " + str(found).replace("\n", "\n  "))
    assert not found
    assert found.cuts[0].node.op.name == "stop_gradient"

    print("5. not a scalar: say which combination of the results is meant")
    refused(lambda: sg.grad(w * w, w), "a scalar y")
    assert there["non-scalar"] == [4, 6]

    print("6. reassigned: another leaf of the same name is another leaf")
    old, w = w, sg.parameter([2.0, 3.0], name="w")
    refused(lambda: sg.grad(sg.sum(w * w), old), "does not use")
    w.value = w.value - 0.1  # this keeps the leaf
    assert np.allclose(sg.compile(sg.grad(sg.sum(w * w), w))(), [3.8, 5.8])


def operations_without_a_derivative():
    """Rounding, comparing, choosing and sampling break the path."""
    x = sg.parameter([0.4, 1.6], name="x")
    key = sg.random.key(0)
    breaking = {
        "rint": sg.sum(sg.rint(x)),
        "greater": sg.sum((x > 1).astype("float32")),
        "argmax": sg.argmax(x).astype("float32"),
        "a sample": sg.sum((sg.random.uniform(key, (2,)) < x).astype("float32")),
    }
    print("operations that break the path")
    for name, y in breaking.items():
        found = sg.explain_gradient(y, x)
        assert not found, name
        print(f"  {name}: {found.cuts[0]}")
        refused(lambda y=y: sg.grad(y, x), "cut by")
    print("  the remedy: straight_through")
    assert sg.compile(remedies(x, x)["rounded"])().tolist() == [0, 4]


def all_paths():
    """A gradient that comes back on several paths is their sum."""
    with sg.Graph(seed=0):
        x = sg.input("x", (4,))
        w = sg.parameter(np.float32([1, 2, 3, 4]), name="w")
        h = sg.tanh(x * w)
        loss = sg.sum(h * h) + sg.sum(w * w)
    found = sg.explain_gradient(loss, w)
    print(found)
    assert found.count == 4  # h * h reads h twice


def main():
    """All causes, with checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="the same: it is short")
    parser.parse_args()
    six_causes()
    operations_without_a_derivative()
    all_paths()


if __name__ == "__main__":
    main()
