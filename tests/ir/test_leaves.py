"""Inputs, parameters, states, constants, updates, by_mode."""

import re

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.ir.alignment import aligned_empty
from staticgrad.ir.graph import Graph


def test_input_shapes():
    with sg.Graph() as graph:
        x = sg.input("x", ("batch", 64))
        y = sg.input("y", "batch", dtype="int64")
        z = sg.input("z", (x.shape[0] * 2, np.int64(3)))
        s = sg.input("s")
    assert graph.inputs == (x, y, z, s) or [i.name for i in graph.inputs] == list(
        "xyzs"
    )
    assert [str(t.type) for t in (x, y, z, s)] == [
        "float32[batch, 64]", "int64[batch]", "float32[2*batch, 3]", "float32[]",
    ]  # fmt: skip
    assert x.shape[0] == y.shape[0] == sg.Size.symbol("batch")


@pytest.mark.parametrize("name", ["a b", "", "1x", 3, None, "x.y"])
def test_input_names_are_identifiers(name):
    with pytest.raises(sg.GraphError, match="input requires a name that is an"):
        sg.input(name, (2,))


@pytest.mark.parametrize("dim", ["a b", -1, 1.5, None, ""])
def test_input_dimensions(dim):
    with pytest.raises(sg.ShapeError, match="input requires a shape of") as caught:
        sg.input("x", (2, dim))
    assert "  at test_leaves.py:" in str(caught.value)


def test_two_inputs_of_one_name():
    with sg.Graph():
        sg.input("x", (2,))
        with pytest.raises(sg.GraphError, match="input requires a name of its own"):
            sg.input("x", (3,))


def test_input_dtypes():
    assert sg.input("x", (), ">f4").dtype == np.float32
    with pytest.raises(sg.DTypeError, match="input requires a dtype that is") as caught:
        sg.input("x", (), "complex64")
    assert "  at test_leaves.py:" in str(caught.value)


def test_parameter_dtypes():
    assert sg.parameter([1.0, 2.0]).dtype == np.float32
    assert sg.parameter(np.zeros(3)).dtype == np.float64
    assert sg.parameter([np.float64(1)]).dtype == np.float64
    assert sg.parameter([1, 2]).dtype == np.int64
    assert sg.parameter(2.0).dtype == np.float32
    assert sg.parameter(np.zeros(3, ">f8")).dtype == np.dtype("float64")
    with pytest.raises(sg.DTypeError, match="parameter requires a bool, integer"):
        sg.parameter(np.zeros(2, "complex128"))
    with pytest.raises(sg.DTypeError, match="parameter requires a bool, integer"):
        sg.parameter(["a"])
    with pytest.raises(sg.DTypeError, match="requires a value that is known now"):
        sg.parameter(sg.input("x", (2,)))


def test_parameter_names():
    with sg.Graph() as graph:
        made = [sg.parameter(0.0), sg.parameter(0.0), sg.parameter(0.0, name="w")]
        with sg.scope("block"):
            made.append(sg.parameter(0.0, name="w"))
    assert [p.name for p in made] == ["parameter", "parameter_1", "w", "block.w"]
    assert list(graph.parameters) == [p.name for p in made]


def test_a_parameter_owns_a_copy():
    start = np.arange(3.0)
    w = sg.parameter(start)
    start[:] = 7
    np.testing.assert_array_equal(w.value, [0, 1, 2])
    with pytest.raises(ValueError, match="read-only"):
        w.value[0] = 1
    w.value = [3, 4, 5]
    np.testing.assert_array_equal(w.value, [3, 4, 5])
    with pytest.raises(sg.ShapeError, match="requires shape"):
        w.value = np.zeros(4)
    with pytest.raises(sg.DTypeError, match="assigning to"):
        w.value = np.zeros(3, complex)


def test_states_are_not_parameters():
    with sg.Graph() as graph:
        sg.state(np.zeros(2), name="mean")
        sg.parameter(np.zeros(2), name="w", trainable=False)
    assert list(graph.states) == ["mean"]
    assert not graph.parameters["w"].trainable


def test_constants():
    assert sg.constant(2.0).type.weak
    assert sg.constant(2).type.weak
    assert not sg.constant(np.float32(2)).type.weak
    assert not sg.constant(np.array(2.0)).type.weak
    assert not sg.constant(2.0, dtype="float64").type.weak
    array = np.arange(3)
    c = sg.constant(array)
    array[:] = 7
    np.testing.assert_array_equal(c.value, [0, 1, 2])
    assert not c.value.flags.writeable
    with pytest.raises(sg.DTypeError, match="constant requires"):
        sg.constant(["a"])
    with pytest.raises(sg.DTypeError, match="known now"):
        sg.constant(sg.input("x"))
    for wide in (2**40 + 5, [0, -(2**31) - 1], np.array(2**31)):
        with pytest.raises(sg.DTypeError, match="constant requires int32, got"):
            sg.constant(wide, "int32")
    assert sg.constant([-(2**31), 2**31 - 1], "int32").dtype == np.int32


def test_update_returns_and_registers_the_pair():
    with sg.Graph() as graph:
        count = sg.state(np.int32(0), name="count")
        pair = sg.update(count, count + 1)
    assert pair[0] is count
    assert graph.updates == (pair,) or graph.updates[0][1] is pair[1]
    f = sg.compile(count * 1, updates=graph, target="reference")
    assert [int(f()) for _ in range(3)] == [0, 1, 2]
    assert count.value == 3


UPDATES = [
    (
        lambda s: (s, np.zeros(3, "float32")),
        sg.ShapeError,
        "update requires a new value",
    ),
    (lambda s: (s, np.zeros(2)), sg.DTypeError, "cast it with .astype('float32')"),
    (lambda s: (s, s + np.float64(1)), sg.DTypeError, "of the leaf's dtype"),
    (lambda s: (s + 1, s), sg.GraphError, "update requires a parameter or a state"),
    (lambda s: (sg.input("x", (2,)), s), sg.GraphError, "a parameter or a state"),
]


@pytest.mark.parametrize(("arguments", "error", "match"), UPDATES)
def test_updates_of_another_type(arguments, error, match):
    with sg.Graph():
        state = sg.state(np.zeros(2, "float32"))
        with pytest.raises(error, match=re.escape(match)) as caught:
            sg.update(*arguments(state))
    assert "  at test_leaves.py:" in str(caught.value)


def test_update_needs_an_open_graph_and_is_single():
    state = sg.state(0.0)
    with pytest.raises(sg.GraphError, match="update requires an open Graph"):
        sg.update(state, state + 1)
    with sg.Graph():
        sg.update(state, 1)
        with pytest.raises(sg.GraphError, match="one new value per leaf"):
            sg.update(state, 2)


def test_a_number_updates_a_state():
    with sg.Graph() as graph:
        state = sg.state(np.float32(3))
        _, new = sg.update(state, 1)
    assert new.dtype == np.float32
    sg.compile([], updates=graph, target="reference")()
    assert state.value == 1


def test_by_mode_promotes_and_broadcasts():
    x = sg.input("x", (3,))
    y = sg.by_mode(train=x * 2, eval=0)
    assert str(y.type) == "float32[3]"
    value = np.arange(3, dtype="float32")
    for mode, want in (("train", value * 2), ("eval", value * 0)):
        f = sg.compile(y, inputs=[x], mode=mode, target="reference")
        np.testing.assert_array_equal(f(value), want)


def test_leaves_know_their_line():
    for leaf in (sg.input("x"), sg.parameter(0.0), sg.state(0.0), sg.constant(0.0)):
        assert str(leaf.source).startswith("test_leaves.py:")


def test_unknown_dtypes_are_told_the_known_ones():
    with pytest.raises(sg.DTypeError, match=r"one of bfloat16, .*uint8, got 'float99'"):
        sg.input("x", (), "float99")


def test_only_what_is_public_is_listed():
    assert {"grad", "nn", "Tensor", "__version__"} < set(dir(sg))
    assert not {"ir", "compiler", "lifting"} & set(dir(sg))


def test_large_arrays_begin_elsewhere_in_a_page():
    small = [aligned_empty((n,), np.float32) for n in (1, 5, 1000)]
    large = [aligned_empty((64, 100 + n), np.float32) for n in range(16)]
    assert all(a.ctypes.data % 64 == 0 for a in small + large)
    starts = [a.ctypes.data % 4096 for a in large]
    assert starts[:8] == starts[8:]
    assert sorted(starts[:8]) == list(range(0, 4096, 512))
    for number, array in enumerate(large):
        array[...] = number
    assert all((array == number).all() for number, array in enumerate(large))


def test_a_record_is_kept_with_its_graph_alone():
    with sg.Graph() as graph:
        x = sg.input("x", (2,))
    graph.record(list).append(x)
    assert graph.record(list)[0] is x
    closed = Graph.closed(graph.inputs, (x,))
    assert isinstance(graph, Graph)
    assert closed.record(list) == []
    assert closed.nodes is closed.nodes
