"""Random numbers: known answers, streams, distributions, the stream of a graph."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.runtime.targets import reference
from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.graph import OpenGraph as Graph
from staticgrad.ir.graph import scope
from staticgrad.ops.random import layer_key
from staticgrad.ops.random.philox import philox

FULL = 0xFFFFFFFF

# From kat_vectors of Random123: counter, key, result of philox4x32 with 10 rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((FULL,) * 4, (FULL,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def run(tensor, *inputs, mode="eval", **values):
    return reference.run(Graph.closed(inputs, [tensor]), mode, values)[0][0]


def words(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(counter, key, expected):
    assert philox(counter, key).tolist() == words(expected)


def test_philox_takes_many_counters_at_once():
    counters = np.array([c for c, _, _ in KNOWN]).T
    keys = np.array([k for _, k, _ in KNOWN]).T
    expected = [words(text) for _, _, text in KNOWN]
    assert philox(tuple(counters), tuple(keys)).tolist() == expected


def test_fold_in_is_a_block_of_philox():
    (c0, _, c2, c3), key, _ = KNOWN[2]
    folded = sg.random.fold_in(np.array([*key, c2, c3], np.uint32), c0)
    assert run(folded).tolist() == philox((c0, 0, c2, c3), key).tolist()
    many = sg.random.fold_in(sg.random.key(1), np.arange(3))
    one = [run(sg.random.fold_in(sg.random.key(1), n)).tolist() for n in range(3)]
    assert run(many).tolist() == one


def test_key_keeps_64_bits_of_the_seed():
    assert sg.random.key(2**40 + 7).value.tolist() == [7, 256, 0, 0]
    assert sg.random.key(-1).value.tolist() == [FULL, FULL, 0, 0]
    assert sg.random.key(np.int64(3)).value.tolist() == [3, 0, 0, 0]


def test_a_seed_may_be_an_input():
    seed = sg.input("seed", (), "int64")
    for target in ("reference", "cpu"):
        f = sg.compile(sg.random.key(seed), target=target)
        for number in (3, 2**40 + 7, -1):
            assert f(number).tolist() == sg.random.key(number).value.tolist()
    with pytest.raises(DTypeError, match="an integer seed"):
        sg.random.key(0.5)


def test_uniform_is_made_of_the_words_of_the_blocks():
    key = np.array([0xA4093822, 0x299F31D0, 5, 6], np.uint32)
    blocks = np.concatenate([philox((i, 0, 5, 6), tuple(key[:2])) for i in range(3)])
    single = run(sg.random.uniform(key, (2, 5), "float32"))
    expected = (blocks[:10] >> 8).astype("float32") * np.float32(2.0**-24)
    assert np.array_equal(single, expected.reshape(2, 5))
    double = run(sg.random.uniform(key, (5,), "float64"))
    high, low = blocks[:10:2] >> 5, blocks[1:10:2] >> 6
    assert np.array_equal(double, (high * 2.0**26 + low) / 2.0**53)


def test_a_draw_does_not_depend_on_its_shape():
    flat = run(sg.random.uniform(sg.random.key(3), (24,)))
    cube = run(sg.random.uniform(sg.random.key(3), (2, 3, 4)))
    more = run(sg.random.uniform(sg.random.key(3), (31,)))
    assert np.array_equal(flat, cube.ravel())
    assert np.array_equal(flat, more[:24])


def test_keys_give_different_numbers_and_the_same_key_the_same():
    keys = [sg.random.key(0), sg.random.key(1), *sg.random.split(sg.random.key(0), 3)]
    draws = [run(sg.random.uniform(key, (8,))).tolist() for key in keys]
    assert len({tuple(draw) for draw in draws}) == len(keys)
    assert run(sg.random.uniform(keys[2], (8,))).tolist() == draws[2]


def test_a_key_may_be_an_input():
    key = sg.input("key", (4,), "uint32")
    u = sg.random.uniform(key, (6,))
    given = np.array([9, 0, 0, 0], np.uint32)
    expected = run(sg.random.uniform(sg.random.key(9), (6,)))
    assert np.array_equal(run(u, key, key=given), expected)


def test_symbolic_shapes():
    x = sg.input("x", ("n", 2))
    u = sg.random.uniform(sg.random.key(0), x.shape)
    assert str(u.type) == "float32[n, 2]"
    assert run(u, x, x=np.zeros((3, 2), "f4")).shape == (3, 2)
    assert run(u, x, x=np.zeros((0, 2), "f4")).shape == (0, 2)


def test_uniform_between_low_and_high():
    key = sg.random.key(4)
    u = run(sg.random.uniform(key, (1000,), low=-3.0, high=5))
    assert u.dtype == np.float32
    assert -3 <= u.min() < -2.9
    assert 4.9 < u.max() <= 5
    low = sg.input("low", (2,), "float64")
    assert sg.random.uniform(key, (3, 2), low=low).dtype == np.float64


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", [0, 1, 12345, 2**63])
def test_uniform_is_uniform(dtype, seed):
    n = 1 << 16
    u = run(sg.random.uniform(sg.random.key(seed), (n,), dtype)).astype("float64")
    assert u.min() >= 0
    assert u.max() < 1
    ordered = np.sort(u)
    steps = np.arange(n + 1) / n
    distance = max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1]))
    assert distance * np.sqrt(n) < 1.95  # Kolmogorov-Smirnov, p = 0.001
    counts = np.bincount((u * 256).astype(int), minlength=256)
    chi2 = np.sum((counts - n / 256) ** 2) / (n / 256)
    assert 184 < chi2 < 338  # 255 degrees of freedom, p = 0.0002 on either side
    # neighbours are not correlated: a sum of n products has deviation sqrt(n) / 12
    centred = u - 0.5
    for lag in (1, 2, 4, 64):
        assert abs(np.sum(centred[lag:] * centred[:-lag])) < 4 * np.sqrt(n) / 12


def test_keys_that_were_split_are_not_correlated():
    n = 1 << 14
    first, second = sg.random.split(sg.random.key(0))
    u, v = (run(sg.random.uniform(k, (n,), "float64")) - 0.5 for k in (first, second))
    assert abs(np.sum(u * v)) < 4 * np.sqrt(n) / 12


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_bernoulli(p):
    n = 1 << 14
    hits = run(sg.random.bernoulli(sg.random.key(2), p, (n,)))
    assert hits.dtype == bool
    assert abs(hits.sum() - n * p) <= 4 * np.sqrt(n * p * (1 - p))


def test_bernoulli_takes_a_probability_per_element():
    p = sg.input("p", ("n",))
    hits = sg.random.bernoulli(sg.random.key(2), p)
    assert str(hits.type) == "bool[n]"
    given = np.array([0, 1, 0, 1], "float32")
    assert run(hits, p, p=given).tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda r: r.uniform(np.zeros(4), (2,)), DTypeError, "key of dtype uint32"),
        (lambda r: r.uniform(r.split(r.key(0)), (2,)), ShapeError, "key of four words"),
        (lambda r: r.categorical(np.ones(3, "u4"), [0.0]), ShapeError, "sg.stack"),
        (
            lambda r: r.uniform(r.key(0), (2,), "int32"),
            DTypeError,
            "a floating-point dtype",
        ),
        (lambda r: r.uniform(r.key(0), (-1,)), ShapeError, "shape"),
        (lambda r: r.fold_in(r.key(0), 0.5), DTypeError, "integers to fold in"),
        (lambda r: r.bernoulli(r.key(0), np.ones(3), (2,)), ShapeError, "broadcast"),
    ],
)
def test_refusals(build, error, match):
    with pytest.raises(error, match=match) as caught:
        build(sg.random)
    assert "test_random.py:" in str(caught.value)


# ---- the stream of a graph -----------------------------------------------------------


def step(graph, mode):
    """One run of `graph`: its outputs; the updates are applied."""
    outputs, updates = reference.run(graph, mode, {})
    for leaf, value in updates:
        leaf.value = value
    return outputs


def stream_graph(seed=5):
    with Graph(seed=seed) as graph:
        with scope("model.dropout"):
            first = layer_key()
        second = layer_key()
    return Graph.closed((), [first, second], graph.updates), graph


def test_layers_draw_from_one_state_of_the_graph():
    closed, graph = stream_graph()
    assert list(graph.states) == ["random_stream"]
    assert graph.states["random_stream"].value.tolist() == [5, 0, 0, 0]
    first, second = step(closed, "train")
    assert first.tolist() == philox((0, 0, 0, 0), (5, 0)).tolist()
    assert second.tolist() == philox((1, 0, 0, 0), (5, 0)).tolist()


def test_training_advances_the_stream_and_evaluation_does_not():
    closed, graph = stream_graph()
    evaluated = [step(closed, "eval")[0].tolist() for _ in range(2)]
    trained = [step(closed, "train")[0].tolist() for _ in range(3)]
    assert evaluated[0] == evaluated[1] == trained[0]
    assert len({tuple(key) for key in trained}) == 3
    assert graph.states["random_stream"].value.tolist() == [5, 0, 3, 0]


def test_equal_seeds_give_equal_streams():
    runs = [step(stream_graph(seed)[0], "train")[1].tolist() for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_layer_key_requires_an_open_graph():
    with pytest.raises(GraphError, match="requires an open Graph"):
        layer_key()
