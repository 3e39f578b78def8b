"""Kernels made of tiles: what they meet, how far they reach, what they compute."""

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from tolerances import assert_near

import staticgrad as sg
from staticgrad.compiler.codegen.tiles.convolution_rows import runs
from staticgrad.compiler.codegen.tiles.tile_calls import SCHEMES
from staticgrad.compiler.codegen.tiles.weight_gradients import spans
from staticgrad.compiler.codegen.tiles.winograd_matrices import TRANSFORMS
from staticgrad.compiler.kernel_ir.kernels import LoopKernel, Number, Tiles
from staticgrad.compiler.kernel_ir.schemes import (
    Slide,
    Transposed,
    Winograd,
    WinogradWeights,
)
from staticgrad.compiler.passes.channels_last import channels_last
from staticgrad.compiler.verify.verify_schedule import verify_schedule
from staticgrad.errors import CompilerBug
from staticgrad.ir.graph_text import text


def numbers(*shape, dtype="float32"):
    return np.random.default_rng([*shape]).standard_normal(shape).astype(dtype)


def schedule_of(f):
    return f.memory.plan.schedule


def schemes_of(f):
    """The schemes of an executable's kernels, in order."""
    bodies = [k.body for k in schedule_of(f).kernels if isinstance(k, LoopKernel)]
    return [body[0].scheme for body in bodies if isinstance(body[0], Tiles)]


# ---- what meets what -----------------------------------------------------------------

SLIDES = [
    Slide(size, taps, count, stride, dilation, low)
    for size, taps, stride, dilation, low in [
        (28, 5, 1, 1, 0), (32, 3, 1, 1, 1), (15, 3, 2, 1, 1), (9, 2, 3, 2, 0),
        (5, 5, 1, 1, 4), (40, 7, 2, 1, 3), (7, 3, 1, 2, 2), (1, 1, 1, 1, 0),
    ]
    for count in [(size + 2 * low - dilation * (taps - 1) - 1) // stride + 1]
]  # fmt: skip


def meetings(slide):
    return {
        (window, tap, slide.element(window, tap))
        for window in range(slide.count)
        for tap in range(slide.taps)
        if slide.element(window, tap) >= 0
    }


@pytest.mark.parametrize("width", [1, 4, 6, 16])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("slide", SLIDES, ids=str)
def test_runs_of_tiles_meet_everything_once(slide, backwards, width):
    found = []
    columns = []
    for run in runs(slide, backwards, width):
        for tile in range(run.count):
            start = run.start + tile * run.width
            base = run.base + tile * run.base_step
            columns += range(start, start + run.width)
            for element, column, tap in run.meetings:
                pair = (start + column, base + element)
                window, other = reversed(pair) if backwards else pair
                found.append((window, tap, other))
    assert sorted(found) == sorted(meetings(slide))
    assert columns == list(range(slide.size if backwards else slide.count))


def test_long_rows_are_not_walked_tile_by_tile():
    slide = Slide(10**9, 5, 10**9, 1, 1, 2)
    for backwards in (False, True):
        found = runs(slide, backwards, 16)
        assert len(found) <= 4
        assert sum(run.count * run.width for run in found) == 10**9


@pytest.mark.parametrize("slide", SLIDES, ids=str)
def test_spans_are_the_windows_that_have_a_tap(slide):
    for tap, (first, last) in enumerate(spans(slide)):
        wanted = {w for w in range(slide.count) if slide.element(w, tap) >= 0}
        assert set(range(first, last)) == wanted


# ---- reach ---------------------------------------------------------------------------


def convolution(image, kernels, **attrs):
    """An executable of all three convolutions of these shapes, for any batch."""
    x, w = sg.input("x", ("n", *image)), sg.input("w", kernels)
    y = sg.nn.conv2d(x, w, **attrs)
    g = sg.input("g", y.shape)
    f = sg.compile([y, *sg.grad(y, [x, w], g)], inputs=[x, w, g])
    f(numbers(2, *image), numbers(*kernels), numbers(2, *y.shape[1:]))
    return f


GOOD = schedule_of(convolution((3, 9, 9), (5, 3, 3, 3), stride=2))
TILED = [
    (number, operand)
    for number, kernel in enumerate(GOOD.kernels)
    if isinstance(kernel, LoopKernel) and isinstance(kernel.body[0], Tiles)
    for operand in range(len(kernel.operands))
]


def with_tiles(number, change):
    kernel = GOOD.kernels[number]
    kernel = replace(kernel, body=(change(kernel.body[0]),))
    return with_kernel(number, kernel)


def with_kernel(number, kernel):
    kernels = (*GOOD.kernels[:number], kernel, *GOOD.kernels[number + 1 :])
    return replace(GOOD, kernels=kernels)


def with_reach(number, operand, **fields):
    def change(tiles):
        reaches = list(tiles.reaches)
        reaches[operand] = replace(reaches[operand], **fields)
        return replace(tiles, reaches=tuple(reaches))

    return with_tiles(number, change)


def test_a_valid_schedule_passes():
    verify_schedule(GOOD)
    assert len(TILED) >= 9


@pytest.mark.parametrize(("number", "operand"), TILED)
def test_a_reach_before_or_behind_the_buffer_is_noticed(number, operand):
    reach = GOOD.kernels[number].body[0].reaches[operand]
    far = 10**12
    for broken in ({"first": -1}, {"last": reach.last + far}, {"step": far}):
        with pytest.raises(CompilerBug, match="is reached at"):
            verify_schedule(with_reach(number, operand, **broken))


def test_chunks_that_write_the_same_are_noticed():
    broken = 0
    for number, operand in TILED:
        kernel = GOOD.kernels[number]
        own = kernel.operands[operand]
        alone = own.per_chunk or kernel.axes[0] == 1 or not kernel.parallel
        if own.mode == "read" or alone:
            continue
        broken += 1
        with pytest.raises(CompilerBug, match="write the same elements"):
            verify_schedule(with_reach(number, operand, step=0))
    assert broken >= 2


def test_a_missing_reach_is_noticed():
    number = TILED[0][0]
    broken = with_tiles(number, lambda t: replace(t, reaches=t.reaches[:-1]))
    with pytest.raises(CompilerBug, match="reaches, 3 operands"):
        verify_schedule(broken)


def test_tiles_beside_other_statements_are_noticed():
    number = TILED[0][0]
    kernel = GOOD.kernels[number]
    more = Number(0, 1.0, np.dtype(np.float32))
    broken = replace(kernel, body=(*kernel.body, more))
    with pytest.raises(CompilerBug, match="all that their kernel does"):
        verify_schedule(with_kernel(number, broken))


def test_a_scheme_is_its_text():
    for scheme in schemes_of(convolution((16, 8, 8), (16, 16, 3, 3), padding=1)):
        assert eval(repr(scheme), dict(SCHEMES)) == scheme  # noqa: S307  our own text


# ---- which scheme --------------------------------------------------------------------


def kinds(f):
    return [type(scheme) for scheme in schemes_of(f) if type(scheme) is not Transposed]


def test_the_scheme_follows_from_the_sizes():
    # (image, kernels, attributes), schemes of the result and of both gradients
    plain = kinds(convolution((3, 9, 9), (5, 3, 3, 3)))
    assert sorted(k.__name__ for k in plain) == ["Rows", "Rows", "Weights"]
    deep = kinds(convolution((6, 9, 9), (6, 1, 3, 3), groups=6))
    assert sorted(k.__name__ for k in deep) == [
        "Depthwise", "Depthwise", "DepthwiseWeights",
    ]  # fmt: skip
    tiles = kinds(convolution((32, 8, 8), (32, 32, 3, 3), padding=1))
    assert {k.__name__ for k in tiles} == {
        "Winograd", "WinogradKernels", "WinogradWeights",
    }  # fmt: skip
    odd = kinds(convolution((32, 9, 9), (32, 32, 3, 3), padding=1))
    assert {k.__name__ for k in odd} == {"Rows", "Weights"}


TRANSFORMED = [
    # image, stride, padding
    ((12, 10), 1, 0),
    ((12, 10), 1, 1),
    ((12, 10), 1, ((2, 2), (1, 1))),
    ((12, 10), 1, ((0, 2), (2, 0))),
    ((10, 13), 1, 1),
    ((8, 16), 1, 1),
    ((24, 22), 2, 1),
    ((24, 22), 2, ((0, 1), (0, 1))),
    ((24, 22), 2, ((2, 0), (2, 1))),
    ((24, 23), (2, 1), 1),
    ((12, 24), (1, 2), ((1, 1), (0, 1))),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("size", "stride", "padding"), TRANSFORMED, ids=str)
def test_transformed_tiles_are_as_accurate_as_sums(size, stride, padding, dtype):
    x, w = numbers(3, 32, *size, dtype=dtype), numbers(64, 32, 3, 3, dtype=dtype)
    leaves = [sg.input("x", ("n", 32, *size), dtype), sg.input("w", w.shape, dtype)]
    y = sg.nn.conv2d(*leaves, stride=stride, padding=padding)
    g = numbers(3, *y.shape[1:], dtype=dtype)
    leaves.append(sg.input("g", y.shape, dtype))
    outputs = [y, *sg.grad(y, leaves[:2], leaves[2])]
    f = sg.compile(outputs, inputs=leaves)
    exact = [a.astype(np.float64) for a in (x, w, g)]
    wide = [sg.input(f"w{k}", a.shape, "float64") for k, a in enumerate(exact)]
    y = sg.nn.conv2d(*wide[:2], stride=stride, padding=padding)
    both = [y, *sg.grad(y, wide[:2], wide[2])]
    wanted = sg.compile(both, inputs=wide, target="reference")(*exact)
    for got, want in zip(f(x, w, g), wanted, strict=True):
        assert got.dtype == dtype
        error = np.abs(got - want).max() / np.abs(want).max()
        assert error <= (2e-6 if dtype == "float32" else 4e-15)
    assert kinds(f).count(Winograd) == 2
    assert WinogradWeights in kinds(f)


def test_matrices_are_those_of_a_window_that_slides():
    # y = made (kernels w * image x)
    steps = {"two": 1, "four": 1, "apart": 2}
    for name, stride in steps.items():
        t = TRANSFORMS[name]
        image, kernels, made = (
            reduce(lambda before, m: np.asarray(m) @ before, factors, np.eye(count))
            for factors, count in (
                (t.image, t.read), (t.kernels, 3), (t.made, t.products),
            )
        )  # fmt: skip
        x, w = numbers(t.read, dtype="float64"), numbers(3, dtype="float64")
        want = [x[p * stride :][:3] @ w for p in range(t.count)]
        np.testing.assert_allclose(made @ (kernels @ w * (image @ x)), want, 1e-12)


def test_a_nan_stays_within_its_tiles():
    x, w = numbers(1, 16, 12, 12), numbers(16, 16, 3, 3)
    x[0, 3, 5, 5] = np.nan
    leaves = [sg.input("x", x.shape), sg.input("w", w.shape)]
    y = sg.compile(sg.nn.conv2d(*leaves, padding=1), inputs=leaves)(x, w)
    lost = np.isnan(y[0]).all(axis=0)
    assert lost[4:7, 4:7].all()
    assert lost.sum() <= 16
    assert not lost[:4].any()
    assert not lost[8:].any()


# ---- the same bits -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "kernels", "attrs"),
    [
        ((3, 30, 30), (8, 3, 5, 5), {}),
        ((32, 32, 32), (32, 32, 3, 3), {"padding": 1}),
        ((32, 24, 22), (32, 32, 3, 3), {"padding": 1, "stride": 2}),
        ((64, 16, 16), (64, 1, 3, 3), {"padding": 1, "groups": 64}),
        ((128, 10, 10), (128, 128, 1, 1), {}),
    ],
    ids=str,
)
def test_any_number_of_threads_gives_the_same_bits(image, kernels, attrs):
    f = convolution(image, kernels, **attrs)
    x, w = numbers(6, *image), numbers(*kernels)
    before = sg.get_num_threads()
    results = []
    g = numbers(6, kernels[0], *_made(image, kernels, attrs))
    try:
        for threads in (1, 2):
            sg.set_num_threads(threads)
            results.append(f(x, w, g))
    finally:
        sg.set_num_threads(before)
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


def _made(image, kernels, attrs):
    padding, stride = attrs.get("padding", 0), attrs.get("stride", 1)
    return [
        (n + 2 * padding - k) // stride + 1
        for n, k in zip(image[1:], kernels[2:], strict=True)
    ]


def test_a_part_of_a_batch_gives_the_same_bits():
    f = convolution((16, 12, 12), (16, 16, 3, 3), padding=1)
    x, w, g = numbers(40, 16, 12, 12), numbers(16, 16, 3, 3), numbers(40, 16, 12, 12)
    whole = f(x, w, g)
    part = f(x[:7], w, g[:7])
    np.testing.assert_array_equal(whole[0][:7], part[0])
    np.testing.assert_array_equal(whole[1][:7], part[1])


# ---- copies --------------------------------------------------------------------------

ORDERS = [
    ((40, 30), (1, 0)),
    ((5, 7, 9), (2, 0, 1)),
    ((5, 33, 17), (0, 2, 1)),
    ((3, 4, 20, 21), (0, 2, 3, 1)),
    ((3, 20, 21, 4), (0, 3, 1, 2)),
    ((16, 16, 3, 3), (2, 3, 1, 0)),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("shape", "order"), ORDERS, ids=str)
def test_copies_that_turn_axes_keep_every_bit(shape, order, symbolic, dtype):
    sizes = ("n", *shape[1:]) if symbolic else shape
    x = sg.input("x", sizes, dtype)
    f = sg.compile(sg.transpose(x, order), inputs=[x])
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    given = data.view(dtype).reshape(shape)  # NaNs with any payload among them
    got = f(given)
    wanted = np.ascontiguousarray(given.transpose(order))
    assert got.tobytes() == wanted.tobytes()
    if dtype != "uint8" and not symbolic:
        assert any(isinstance(s, Transposed) for s in schemes_of(f))


# ---- channels last -------------------------------------------------------------------


def network(x, w1, w2):
    h = sg.nn.conv2d(x, w1, padding=1)
    mean = sg.mean(h, axis=(0, 2, 3), keepdims=True)
    h = sg.nn.relu(h - mean)
    h = sg.concatenate([h, sg.pad(h[:, :, 1:], ((0, 0), (0, 0), (1, 0), (0, 0)))], 1)
    h = sg.nn.max_pool2d(h, 2)
    return sg.nn.conv2d(sg.tanh(h) + h, w2)


def test_images_between_convolutions_are_not_transposed():
    shapes = [("n", 3, 8, 8), (4, 3, 3, 3), (6, 8, 3, 3)]
    leaves = [sg.input(f"x{k}", s) for k, s in enumerate(shapes)]
    loss = sg.sum(network(*leaves) ** 2)
    grads = sg.grad(loss, leaves)
    f = sg.compile([loss, *grads], inputs=leaves)
    arrays = [numbers(5, *shapes[0][1:]), *(numbers(*s) for s in shapes[1:])]
    got = f(*arrays)
    images = [b.shape for b in schedule_of(f).buffers if b.kind == "temporary"]
    for shape in (s for s in images if len(s) == 4 and s[0] == leaves[0].shape[0]):
        assert shape[-1] in (3, 4, 6, 8)
        assert shape[1:3] != (4, 8)
    reference = sg.compile([loss, *grads], inputs=leaves, target="reference")
    for one, two in zip(got, reference(*arrays), strict=True):
        scale = np.abs(two).max()
        assert np.abs(one - two).max() <= 1e-5 * scale


def test_the_pass_in_text():
    # f(first(x), y) = first(f(x, last(y))); reductions find their axes
    with sg.Graph() as graph:
        x, y = sg.input("x", ("n", 5, 6, 3)), sg.input("y", ("n", 3, 5, 6))
        first = sg.transpose(x, (0, 3, 1, 2))
        both = first + y
        total = sg.sum(both, axis=(0, 2))
        scaled = first * sg.reshape(sg.sum(first, axis=(0, 2, 3)), (3, 1, 1))
    graph.outputs = (both, total, scaled)
    after = channels_last(graph)
    lines = text(after, lines=False)
    assert "reduce_sum" in lines
    kinds = [node.op.name for node in after.nodes]
    adds = [node for node in after.nodes if node.op.name == "add"]
    assert [node.types[0].shape[1:] for node in adds] == [(5, 6, 3)]
    assert kinds.count("multiply") == 1
    assert channels_last(after) is after
    given = {"x": numbers(2, 5, 6, 3), "y": numbers(2, 3, 5, 6)}
    for one, two in zip(values(graph, given), values(after, given), strict=True):
        assert_near(one, two)


def values(graph, given):
    from_reference = sg.compile(
        list(graph.outputs), inputs=list(graph.inputs), target="reference"
    )
    return from_reference(**given)


def test_other_transposes_stay():
    with sg.Graph() as graph:
        x = sg.input("x", ("n", 5, 6, 3))
        y = sg.exp(sg.transpose(x, (0, 2, 1, 3)))
    graph.outputs = (y,)
    assert channels_last(graph) is graph
