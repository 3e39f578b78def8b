"""Loops that search: places of extremes and early ends, as NumPy has them."""

import numpy as np
import pytest

import staticgrad as sg

LENGTHS = (1, 17, 320, 512, 513, 1031, 2500, 9001)
DTYPES = (
    "float32", "float64", "int32", "int64", "uint32", "uint64", "int16", "bool",
    "float16",
)  # fmt: skip


def rows_of(length, dtype):
    """Rows with ties, extremes at either end and special values."""
    draw = np.random.default_rng(length)
    rows = draw.integers(0, 100, (9, length)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        rows[1], rows[2, -1], rows[3, length // 2 :] = -np.inf, np.nan, np.nan
        rows[4], rows[4, length // 3 :] = -0.0, 0.0
        rows[5], rows[5, 1::2] = 0.0, -0.0
    elif dtype != "bool":
        info = np.iinfo(dtype)
        rows[1], rows[2], rows[3, -1], rows[4, -1] = info.min, info.max, info.max, 0
    rows[6, 0], rows[7, -1] = 1, 100 if dtype != "bool" else 1
    rows[8] = np.sort(rows[8])
    return rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_first_extreme_of_rows(length, dtype):
    rows = rows_of(length, dtype)
    x = sg.input("x", rows.shape, dtype=dtype)
    for arg in ("argmax", "argmin"):
        function, ours = getattr(np, arg), getattr(sg, arg)
        outputs = [ours(x, axis=1), ours(x), ours(x.T, axis=0), ours(x[:, ::-1], 1)]
        found = sg.compile(outputs, inputs=[x])(rows)
        with np.errstate(invalid="ignore"):
            expected = [
                function(rows, axis=1), function(rows), function(rows.T, axis=0),
                function(rows[:, ::-1], axis=1),
            ]  # fmt: skip
        for ours_found, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours_found, theirs)


@pytest.mark.parametrize(
    "shape", [(3, 700), (1, 5000), (40, 600), (2, 3, 512), (9973,), (65536,)]
)
def test_the_first_extreme_of_all(shape):
    draw = np.random.default_rng(0).normal(size=shape)
    ties = np.round(draw)
    gaps = draw.copy()
    gaps.ravel()[-shape[-1] :: 7] = np.nan
    symbolic = ("rows", *shape[1:])
    for dims in (shape, symbolic):
        x = sg.input("x", dims, dtype="float64")
        f = sg.compile([sg.argmax(x), sg.argmin(x, keepdims=True)], inputs=[x])
        for data in (draw, ties, gaps):
            most, least = f(data)
            assert most == np.argmax(data)
            assert (least == np.argmin(data, keepdims=True)).all()


@pytest.mark.parametrize("place", [None, 0, 5, 2047, 2048, 4999, 9999])
def test_any_and_all_end_at_the_first(place):
    data = np.zeros((2, 10000), bool)
    if place is not None:
        data[1, place] = True
    x = sg.input("x", data.shape, dtype="bool")
    more = [sg.any(x, axis=1), sg.all(~x, axis=1), sg.any(x), sg.all(~x)]
    f = sg.compile([*more, sg.argmax(x, axis=1), sg.argmax(x)], inputs=[x])
    expected = [
        data.any(1), (~data).all(1), data.any(), (~data).all(), data.argmax(1),
        data.argmax(),
    ]  # fmt: skip
    for found, theirs in zip(f(data), expected, strict=True):
        np.testing.assert_array_equal(found, theirs)


def test_what_is_computed_is_searched_as_well():
    draw = np.random.default_rng(1).normal(size=(5, 3000))
    x = sg.input("x", draw.shape, dtype="float64")
    y = sg.sin(x) * 2
    outputs = [sg.argmax(y, axis=1), sg.max(y, axis=1), sg.argmin(abs(x), axis=1)]
    found = sg.compile(outputs, inputs=[x])(draw)
    theirs = np.sin(draw) * 2
    expected = [theirs.argmax(1), theirs.max(1), abs(draw).argmin(1)]
    for ours, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-14)


def test_a_search_without_nan_finds_none():
    """Only what asks for a NaN may take its place for that of the extreme."""
    data = np.random.default_rng(2).normal(size=(3, 800))
    data[1, 40] = np.nan
    x = sg.input("x", data.shape, dtype="float64")
    last = np.iinfo(np.int64).max
    hit = x == sg.max(x, axis=1, keepdims=True)
    outputs = [
        sg.min(sg.where(hit, sg.arange(800), last), axis=1),
        sg.min(sg.where(hit | (x != x), sg.arange(800) + 3, last), axis=1),
        sg.min(sg.where(x > 1, sg.arange(800), last), axis=1),
    ]
    found = sg.compile(outputs, inputs=[x])(data)
    assert found[0].tolist() == [data[0].argmax(), last, data[2].argmax()]
    assert found[1].tolist() == [data[0].argmax() + 3, 43, data[2].argmax() + 3]
    assert found[2].tolist() == [int(np.flatnonzero(row > 1)[0]) for row in data]


def test_the_extreme_itself_may_be_wanted():
    data = np.random.default_rng(3).normal(size=(7, 900)).astype(np.float32)
    data[3, 5:9] = np.nan
    x = sg.input("x", data.shape)
    outputs = [sg.argmax(x, axis=1), sg.max(x, axis=1), sg.softmax(x, axis=1)]
    place, most, _ = sg.compile(outputs, inputs=[x])(data)
    np.testing.assert_array_equal(place, data.argmax(1))
    np.testing.assert_array_equal(most, data.max(1))


def test_rows_are_walked_once():
    x = sg.input("x", (10, 1000))
    text = sg.compile(sg.argmax(x, axis=1), inputs=[x]).source()
    assert "place_of_extreme" in text
    assert "for i1" not in text


def test_threads_find_the_same():
    data = np.random.default_rng(4).integers(0, 50, (64, 20000)).astype(np.float32)
    x = sg.input("x", data.shape)
    f = sg.compile([sg.argmax(x, axis=1), sg.argmin(x), sg.any(x > 60)], inputs=[x])
    before = sg.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            sg.set_num_threads(threads)
            found.append([value.tobytes() for value in f(data)])
    finally:
        sg.set_num_threads(before)
    assert found[0] == found[1]
