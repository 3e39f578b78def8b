"""Expression swell: what symbolic differentiation writes down, and what a graph holds.

The derivative of x -> x * x -> ... as an expression doubles with every step; as a graph
it grows by a few nodes. A network of 100 layers has a gradient graph of less than five
times its nodes. Run: ``python examples/swell.py [--short]``.
"""

import argparse

import numpy as np

import staticgrad as sg
from staticgrad.ir.graph import topological


def nodes(tensors):
    """Count the operations and leaves that tensors are made of."""
    return len(topological(tensors))


def expression(tensor):
    """Count the symbols of the tensor written as an expression."""
    size = {}
    for node in topological([tensor]):
        total = 1 + sum(size[t] for t in node.inputs)
        size.update((t, total) for t in node.outputs)
    return size[tensor]


def repeated_squares(depth):
    """x * x, of which the square, of which the square, ..."""
    x = sg.parameter(1.0001, name="x")
    y = x
    for _ in range(depth):
        y = y * y
    return x, y


def squares():
    """Counts for growing depth: the expression doubles, the graph grows evenly."""
    print("depth   nodes of y   nodes of dy/dx   symbols of dy/dx")
    counts = []
    for depth in (5, 10, 20, 40):
        x, y = repeated_squares(depth)
        dx = sg.grad(y, x)
        counts.append(nodes([dx]))
        print(f"{depth:5}   {nodes([y]):10}   {counts[-1]:14}   {expression(dx):16.3g}")
    growth = [
        (b - a) / d for a, b, d in zip(counts, counts[1:], (5, 10, 20), strict=False)
    ]
    assert max(growth) <= 6  # nodes per step
    x, y = repeated_squares(10)
    found = sg.compile(sg.grad(y, x))()
    np.testing.assert_allclose(found, 1024 * 1.0001**1023, rtol=1e-3)


def deep_network(layers):
    """A chain of linear and tanh layers: its parameters and its loss."""
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 8))
        model = [sg.nn.Linear(8, 8) for _ in range(layers)]
        h = x
        for layer in model:
            h = sg.tanh(layer(h))
        loss = sg.mean(h * h)
    return [p for layer in model for p in layer.parameters().values()], loss


def growth_of(layers):
    """Return the ratio of the nodes with gradients to those without."""
    wrt, loss = deep_network(layers)
    grads = sg.grad(loss, wrt)
    ratio = nodes([loss, *grads]) / nodes([loss])
    print(f"{layers} layers: {nodes([loss])} nodes, with gradients "
          f"{nodes([loss, *grads])}, {ratio:.2f} times as many")  # fmt: skip
    return ratio


def main():
    """Both counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="the same: it is short")
    parser.parse_args()
    squares()
    assert growth_of(100) <= 5


if __name__ == "__main__":
    main()
