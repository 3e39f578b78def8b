"""A bad index is named with the function that the user called, on every target."""

import re

import numpy as np
import pytest

import staticgrad as sg

BAD = np.array([1, 7])


def calls():
    x = sg.input("x", (3, 4))
    i = sg.input("i", (2,), "int64")
    column = sg.expand_dims(i, 1)
    with sg.Graph():
        table = sg.nn.Embedding(3, 4)
    return x, i, {
        "indexing": (x[i], "-3 <= index < 3"),
        "indexing ": (x.at[i].add(1.0), "-3 <= index < 3"),
        "indexing  ": (x[1, i], "-4 <= index < 4"),
        "take": (sg.take(x, i, 0), "-3 <= index < 3"),
        "take_along_axis": (sg.take_along_axis(x[:2], column, 1), "-4 <= index < 4"),
        "put_along_axis": (sg.put_along_axis(x[:2], column, 9.0, 1), "-4 <= index < 4"),
        "scatter_add": (sg.scatter_add(3, i, 1.0), "-3 <= index < 3"),
        "segment_sum": (sg.segment_sum(i, i, 3), "0 <= index < 3"),
        "segment_max": (sg.segment_max(i, i, 3), "0 <= index < 3"),
        "bincount": (sg.bincount(i, length=3), "0 <= index < 3"),
        "one_hot": (sg.one_hot(i, 3), "0 <= index < 3"),
        "ravel_multi_index": (sg.ravel_multi_index((i, i), (3, 4)), "0 <= index < 3"),
        "unravel_index": (sg.unravel_index(i, (2, 3))[0], "0 <= index < 6"),
        "a slice": (sg.dynamic_slice(x, (i[1], 0), (1, 4)), "0 <= index < 3"),
        "cross_entropy": (sg.nn.cross_entropy(x[:2], i), "0 <= index < 4"),
        "Embedding": (table(i), "-3 <= index < 3"),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(calls()[2]))
@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_the_error_names_the_call(name, target):
    x, i, found = calls()
    y, rule = found[name]
    f = sg.compile(y, inputs=[x, i], target=target)
    text = (
        rf"^{name.strip()} requires {rule}, got 7 at position [01]; .*index_errors.py"
    )
    with pytest.raises(sg.IndexOutOfRange, match=text):
        f(x=np.zeros((3, 4), "f4"), i=BAD)


KNOWN = {
    "take": lambda x: sg.take(x, [0, 9], 0),
    "indexing": lambda x: x[[0, 9]],
    "segment_sum": lambda x: sg.segment_sum(x, [0, 9, 0], 3),
    "one_hot": lambda x: sg.one_hot([0, 9], 3),
    "unravel_index": lambda x: sg.unravel_index([0, 9], (2, 3)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_is_refused_at_once(name):
    with pytest.raises(
        sg.IndexOutOfRange, match=rf"^{name} requires indices in .*, got 9"
    ):
        KNOWN[name](sg.input("x", (3, 4)))


def test_equal_checks_of_different_calls_are_one():
    x, i = sg.input("x", (3, 4)), sg.input("i", (2,), "int64")
    f = sg.compile([sg.take(x, i, 0), x[i] * 2.0], inputs=[x, i])
    assert f.source().count("= check_index(") == 1


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_fit_says_that_positions_are_those_of_the_batch(target):
    with sg.Graph():
        x, y = sg.input("x", ("batch", 2)), sg.input("y", ("batch",), "int64")
        loss = sg.nn.cross_entropy(sg.nn.Linear(2, 3)(x), y)
    trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(0.1), target=target)
    labels = np.zeros(12, np.int64)
    labels[9] = 5
    data = {"x": np.zeros((12, 2), "f4"), "y": labels}
    text = (
        "cross_entropy requires 0 <= index < 3, got 5 at position 1; look at the labels"
        " or indices  at test_index_errors.py"
    )
    with pytest.raises(sg.IndexOutOfRange, match=re.escape(text)) as caught:
        trainer.fit(data, epochs=1, batch_size=4, shuffle=False, progress=False)
    said = "in step 3, epoch 1; the position is counted within its batch"
    assert str(caught.value).endswith(said)
