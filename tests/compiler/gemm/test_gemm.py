"""Matrix products by our own tiles: layouts, edges, bounds, special values, bits."""

import ctypes
import itertools
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
from hand_made import product

import staticgrad as sg
from staticgrad.compiler.codegen.native_compile import ir_of
from staticgrad.compiler.codegen.tiles.product_tiles import plan_of
from staticgrad.compiler.gemm import (
    blas,
    choose_product,
    narrow_products,
    product_leaves,
    small_products,
    tile_driver,
)
from staticgrad.compiler.gemm import small_kernels as kernels
from staticgrad.compiler.host import numba_internals as internals
from staticgrad.compiler.host.processor import vector_bytes

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
ROUNDING = {FLOAT32: 6e-8, FLOAT64: 1.2e-16}
GUARD = 77.0
PAGE = mmap.PAGESIZE

dtypes = pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
layouts = pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])


ROADS = [
    "one call where small", "tiles in one call", "the driver", "from afar",
    "few columns",
]  # fmt: skip


@pytest.fixture(params=ROADS)
def strategy(request, monkeypatch):
    """Small products have roads of their own, but the driver can do them too."""
    number = ROADS.index(request.param)
    if number > 0:
        monkeypatch.setattr(small_products, "MOST_TERMS", 0)
    if number > 1:
        monkeypatch.setattr(small_products, "MOST_TILED", 0)
    if number > 2:
        monkeypatch.setattr(tile_driver, "FAR_B_BYTES", 0)
        monkeypatch.setattr(tile_driver, "THIN_BYTES", 0)
    if number == 3:
        monkeypatch.setattr(tile_driver, "TWO_BYTES", 0)
    if number > 3:
        monkeypatch.setattr(narrow_products, "LEAST", 0)
        monkeypatch.setattr(narrow_products, "ADDING", 0)


roads = pytest.mark.usefixtures("strategy")


def call(table, a, b, c, ranges=None):
    """Run the items of a product, given as ranges; a panel of NaNs is the scratch."""
    panel = np.full(tile_driver.PANEL_BYTES // 8 + 16, np.nan)
    start = panel.ctypes.data + -panel.ctypes.data % 64
    context = np.array([0, start], np.int64)
    operands = np.array([x.ctypes.data for x in (a, b, c)], np.int64)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(
        int(tile_driver.addresses(table[None])[0])
    )
    for begin, end in ranges or [(0, int(table[blas.ITEMS]))]:
        function(
            operands.ctypes.data, table.ctypes.data, begin, end, context.ctypes.data
        )
    return c


def table_of(kernel):
    return tile_driver.described(blas.shape_of(kernel, {}))


def numbers(shape, dtype, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def stored(matrix, transposed, gap=0):
    """The matrix as it lies in memory, rows `gap` elements apart."""
    laid = matrix.swapaxes(-1, -2) if transposed else matrix
    padded = np.full((*laid.shape[:-1], laid.shape[-1] + gap), np.nan, matrix.dtype)
    padded[..., : laid.shape[-1]] = laid
    return padded


def check(m, n, k, dtype, layout, alpha=1.0, beta=0.0, gap=0, seed=0):
    """The product against NumPy's in float64; what is around C has to stay."""
    a, b = numbers((m, k), dtype, seed), numbers((k, n), dtype, seed + 1)
    left, right = stored(a, layout[0] == "T", gap), stored(b, layout[1] == "T", gap)
    kernel = product(
        m, n, k, dtype, transposed=(layout[0] == "T", layout[1] == "T"),
        ld=(left.shape[1], right.shape[1], n + gap), offsets=(0, 0, n + gap),
        alpha=alpha, beta=beta,
    )  # fmt: skip
    c = np.full((m + 2, n + gap), GUARD, dtype)
    before = numbers((m, n), dtype, seed + 2) if beta else np.full((m, n), np.nan)
    c[1:-1, :n] = before
    call(table_of(kernel), left, right, c)
    exact = alpha * (a.astype(np.float64) @ b.astype(np.float64))
    size = abs(alpha) * (abs(a).astype(np.float64) @ abs(b).astype(np.float64))
    if beta:
        exact, size = exact + beta * before, size + abs(beta * before)
    bound = (k + 4) * ROUNDING[dtype] * size + 1e-300
    assert (abs(c[1:-1, :n] - exact) <= bound).all()
    assert (c[0] == GUARD).all()
    assert (c[-1] == GUARD).all()
    assert (c[:, n:] == GUARD).all()


@roads
@dtypes
@layouts
def test_every_small_shape(layout, dtype):
    sizes = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 31, 33)
    for m, n in itertools.product(sizes, sizes):
        check(m, n, 1 + (m * 7 + n * 3) % 37, dtype, layout, seed=m)


@roads
@dtypes
@layouts
@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (-0.01, 1), (2, 0), (0.5, -0.25)])
@pytest.mark.parametrize("gap", [0, 3])
def test_alpha_beta_and_strides(layout, dtype, alpha, beta, gap):
    for m, n, k in [
        (13, 45, 21), (1, 40, 9), (40, 1, 9), (3, 37, 70), (18, 16, 1), (33, 40, 24),
    ]:  # fmt: skip
        check(m, n, k, dtype, layout, alpha, beta, gap)


@dtypes
@layouts
def test_blocks_of_terms_and_parts(layout, dtype):
    for m, n, k in [
        (50, 70, 1100), (2, 140, 700), (140, 2, 700), (300, 90, 130), (203, 65, 601),
    ]:  # fmt: skip
        check(m, n, k, dtype, layout, beta=0.5, gap=1)


@roads
@dtypes
@layouts
def test_few_rows_or_columns(layout, dtype):
    for m, n, k in [
        (1, 1025, 18), (2, 1023, 21), (3, 2050, 19), (4, 1040, 36), (5, 70, 130),
        (6, 33, 40), (7, 1033, 17), (8, 48, 521), (1, 37, 600), (1, 3, 1041),
        (1, 5, 512), (700, 1, 530), (1029, 1, 40), (2, 9, 515), (9, 40, 20),
        (2, 300, 77), (2, 1030, 600), (70, 2, 2100), (2100, 3, 70), (600, 5, 80),
        (90, 8, 600), (33, 4, 1030),
    ]:  # fmt: skip
        check(m, n, k, dtype, layout, beta=m % 2, gap=n % 3)


@roads
@dtypes
@pytest.mark.parametrize("layout", ["NT", "TT"])
def test_what_is_turned_between_terms(layout, dtype):
    """Panels and parts of panels, with and without rows and terms that are left."""
    for m, n, k in [
        (16, 32, 17), (31, 33, 18), (32, 48, 19), (32, 64, 64), (47, 17, 100),
        (64, 100, 20), (70, 31, 512), (130, 40, 51), (16, 200, 33), (200, 9, 128),
    ]:  # fmt: skip
        check(m, n, k, dtype, layout, beta=m % 2, gap=n % 3)


@roads
@dtypes
@layouts
@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
def test_an_empty_sum_is_beta_times_c(layout, dtype, beta):
    check(5, 19, 0, dtype, layout, beta=beta)
    check(5, 1, 0, dtype, layout, beta=beta)


@pytest.mark.parametrize(("m", "n", "batch"), [(0, 3, 1), (3, 0, 1), (3, 3, 0)])
def test_empty_results_are_not_touched(m, n, batch):
    table = table_of(product(m, n, 2, batch=batch))
    c = call(table, np.ones((3, 2)), np.ones((2, 3)), np.full(9, GUARD))
    assert table[blas.ITEMS] == 0
    assert (c == GUARD).all()


@dtypes
@layouts
def test_batches_with_strides(layout, dtype):
    a, b = numbers((5, 9, 12), dtype), numbers((5, 12, 20), dtype, 1)
    left, right = stored(a, layout[0] == "T", 2), stored(b, layout[1] == "T", 1)
    c = np.full((5, 9, 23), GUARD, dtype)
    kernel = product(
        9, 20, 12, dtype, transposed=(layout[0] == "T", layout[1] == "T"), batch=5,
        ld=(left.shape[2], right.shape[2], 23),
        batch_strides=(left[0].size, right[0].size, 9 * 23),
    )  # fmt: skip
    call(table_of(kernel), left, right, c)
    np.testing.assert_allclose(c[..., :20], a @ b, atol=400 * ROUNDING[dtype])
    assert (c[..., 20:] == GUARD).all()


def test_heads_of_attention_lie_between_each_other():
    """Scores of 2 x 4 heads straight from a matrix of queries, keys and values."""
    time, heads, size = 24, 4, 16
    qkv = numbers((2, time, 3, heads, size), FLOAT32)
    scores = np.full((2, heads, time, time), np.nan, FLOAT32)
    row = 3 * heads * size
    for sample in range(2):
        kernel = product(
            time, time, size, transposed=(False, True), batch=heads,
            ld=(row, row, time), batch_strides=(size, size, time * time),
            offsets=(sample * time * row, sample * time * row + heads * size,
                     sample * heads * time * time),
        )  # fmt: skip
        call(table_of(kernel), qkv, qkv, scores)
    expected = np.einsum("bthd,bshd->bhts", qkv[:, :, 0], qkv[:, :, 1])
    np.testing.assert_allclose(scores, expected, atol=1e-4)


@roads
@dtypes
@layouts
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values_reach_their_row_and_column(layout, dtype, special):
    for m, n, k in [(9, 35, 40), (1, 35, 40), (35, 1, 40), (40, 40, 300)]:
        a, b = np.zeros((m, k), dtype), np.zeros((k, n), dtype)
        a[-1, k // 2] = special  # times zeros: NaN
        left, right = stored(a, layout[0] == "T"), stored(b, layout[1] == "T")
        kernel = product(
            m, n, k, dtype, transposed=(layout[0] == "T", layout[1] == "T"),
            ld=(left.shape[1], right.shape[1], n),
        )  # fmt: skip
        c = call(table_of(kernel), left, right, np.empty((m, n), dtype))
        assert np.isnan(c[-1]).all()
        assert (c[:-1] == 0).all()


def at_the_end_of_a_page(values):
    """A copy that ends where memory that may not be touched begins, or None."""
    pages = -(-values.nbytes // PAGE) + 1
    memory = mmap.mmap(-1, pages * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(start + (pages - 1) * PAGE, PAGE, 0):
        return None
    first = (pages - 1) * PAGE - values.nbytes
    found = np.frombuffer(memory, values.dtype, values.size, first)
    found = found.reshape(values.shape)
    found[...] = values
    return found


@pytest.mark.skipif(sys.platform == "win32", reason="there is no mprotect")
@roads
@dtypes
@layouts
def test_nothing_behind_the_matrices_is_read(layout, dtype):
    for m, n, k in [(5, 19, 7), (1, 9, 21), (21, 1, 9), (33, 37, 35), (3, 2, 90)]:
        a, b = numbers((m, k), dtype), numbers((k, n), dtype, 1)
        left = at_the_end_of_a_page(stored(a, layout[0] == "T"))
        right = at_the_end_of_a_page(stored(b, layout[1] == "T"))
        c = at_the_end_of_a_page(np.ones((m, n), dtype))
        kernel = product(
            m, n, k, dtype, transposed=(layout[0] == "T", layout[1] == "T"),
            ld=(left.shape[1], right.shape[1], n), beta=1.0,
        )  # fmt: skip
        call(table_of(kernel), left, right, c)
        np.testing.assert_allclose(c, a @ b + 1, atol=1e3 * ROUNDING[dtype])


@dtypes
@layouts
def test_the_order_and_grouping_of_parts_change_no_bit(layout, dtype):
    for m, n, k in [
        (32, 512, 60), (400, 96, 128), (96, 400, 128), (100, 120, 600), (1100, 3, 900),
        (900, 8, 700),
    ]:  # fmt: skip
        a, b = numbers((m, k), dtype), numbers((k, n), dtype, 1)
        left, right = stored(a, layout[0] == "T"), stored(b, layout[1] == "T")
        kernel = product(
            m, n, k, dtype, transposed=(layout[0] == "T", layout[1] == "T"),
            ld=(left.shape[1], right.shape[1], n),
        )  # fmt: skip
        table = table_of(kernel)
        items = int(table[blas.ITEMS])
        assert items > 1
        once = call(table, left, right, np.full((m, n), np.nan, dtype))
        ranges = [(i, i + 1) for i in reversed(range(items))]
        parts = [
            call(table, left, right, np.full((m, n), np.nan, dtype), [item])
            for item in ranges
        ]
        written = np.count_nonzero(~np.isnan(parts), axis=(1, 2))
        assert written.all()
        assert written.sum() == m * n
        again = call(table, left, right, np.full((m, n), np.nan, dtype), ranges)
        assert once.tobytes() == again.tobytes()


def test_the_pieces_stand_alone():
    """Machine code that names Numba's memory cannot be linked before Numba uses it."""
    sources = [tile_driver._gemm]
    makers = list(product_leaves._LEAVES.values())
    sources += [
        make(number)
        for make in (
            *makers,
            *kernels._KERNELS.values(),
        )
        for number in (product_leaves.as_float32, product_leaves.as_float64)
    ]
    for source in sources:
        stored = internals.compile_module(ir_of(source, "product"))
        assert b"NRT_" not in stored.code


def test_threads_change_no_bit():
    with sg.Graph():
        x, y = sg.input("x", (300, 500)), sg.input("y", (500, 260))
        f = sg.compile((x @ y, x.T @ (x @ y), (x @ y) @ y.T), inputs=[x, y])
    data = {"x": numbers((300, 500), FLOAT32), "y": numbers((500, 260), FLOAT32, 1)}
    before = sg.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            sg.set_num_threads(threads)
            results.append([value.tobytes() for value in f(**data)])
    finally:
        sg.set_num_threads(before)
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_share_products_of_layers_evenly(workers):
    """Each takes the next part when it has finished one."""
    shapes = itertools.product([64, 200, 784, 1000], [256, 512, 777], [300, 800])
    for m, n, k in (*shapes, (256, 64, 1600), (512, 192, 64)):
        part = tile_driver.parts_of(m, n, k)
        done = [0] * workers
        for i, j in itertools.product(range(0, m, part[0]), range(0, n, part[1])):
            size = min(part[0], m - i) * min(part[1], n - j)
            done[done.index(min(done))] += size
        assert max(done) <= 1.17 * m * n / workers, (m, n, k, part)


def test_what_is_large_goes_to_openblas():
    small, large = product(160, 128, 64), product(2000, 2000, 2000)
    assert tile_driver.describe(small, {})[blas.FUNCTION] == 0
    table = tile_driver.describe(large, {})
    assert table[blas.FUNCTION] == blas.address_of(FLOAT32)
    functions = tile_driver.addresses(
        np.array([tile_driver.describe(small, {}), table])
    )
    assert functions.tolist() == [tile_driver.kernel_address(), blas.kernel_address()]


def test_few_columns_do_not_take_tiles():
    """In registers of 64 bytes; what is small, or fills half of one, does."""
    if vector_bytes() != 64:
        pytest.skip("requires registers of 64 bytes")
    tiles, dots, back, two = range(4)
    half = vector_bytes() // 8
    for (m, n, k), transposed, expected in [
        ((256, 2, 256), False, dots), ((256, half, 256), False, dots),
        ((256, 2, 256), True, back), ((256, half, 256), True, back),
        ((256, half + 1, 256), False, tiles), ((256, half + 1, 256), True, tiles),
        ((256, 1, 256), False, tiles), ((16, 2, 16), False, tiles),
        ((1000, 2, 5), False, tiles), ((1000, 2, 5), True, tiles),
        ((2, 256, 256), False, two), ((2, 256, 256), True, two),
        ((2, 16, 256), False, tiles), ((3, 256, 256), False, tiles),
    ]:  # fmt: skip
        table = blas.shape_of(product(m, n, k, transposed=(transposed, False)), {})
        assert narrow_products.strategy(table) == expected, (m, n, k, transposed)
        found = tile_driver.described(table)
        if expected in (dots, back):
            assert bool(found[tile_driver.AT_DOTS]) == (expected == dots)
            assert bool(found[tile_driver.AT_BACK]) == (expected == back)


@pytest.mark.parametrize(
    ("size", "transposed", "in_strips"),
    [
        ((1024, 64, 2000), True, True), ((1024, 64, 200), True, False),
        ((64, 512, 2000), True, False), ((1024, 64, 2000), False, False),
    ],
)  # fmt: skip
def test_rows_pass_in_strips_where_a_is_transposed_and_deep(
    size, transposed, in_strips
):
    """And where parts of C are wider than a tile, which would read A again."""
    m, n, k = size
    kernel = product(*size, transposed=(transposed, False), ld=(m, n, n))
    table = table_of(kernel if transposed else product(*size))
    assert (table[tile_driver.STRIP] == plan_of().high) == in_strips


def test_small_products_are_computed_in_one_call():
    if not plan_of().masks:
        pytest.skip("requires masks")
    numbers_of = (kernels.BY_ROWS, kernels.BY_DOTS, kernels.TURNED, kernels.TILED)
    by_rows, by_dots, turned, tiled = (kernels.small_address(n, 4) for n in numbers_of)
    for (m, n, k), layout, expected in [
        ((16, 16, 4), "NN", by_rows), ((4, 16, 16), "TN", by_rows),
        ((16, 16, 1), "NT", by_rows), ((16, 1, 16), "TN", by_rows),
        ((1, 1, 16), "NN", by_rows), ((16, 1, 16), "NN", by_dots),
        ((1, 16, 16), "NT", by_dots), ((16, 16, 4), "NT", turned),
        ((16, 4, 16), "TT", turned), ((2, 64, 64), "NT", 0), ((1, 64, 64), "NN", 0),
        ((64, 64, 64), "NN", tiled), ((4, 4, 0), "NN", 0), ((32, 64, 64), "NT",
        tiled), ((64, 64, 200), "TN", tiled), ((64, 32, 300), "TN", 0), ((128,
        128, 128), "NN", 0), ((15, 96, 96), "NT", 0),
    ]:  # fmt: skip
        transposed = layout[0] == "T", layout[1] == "T"
        ld = m if transposed[0] else k, k if transposed[1] else n, n
        table = table_of(product(m, n, k, transposed=transposed, ld=ld))
        assert table[blas.DIRECT] == expected
    assert table_of(product(16, 16, 4, batch=2))[blas.DIRECT] == tiled
    assert tile_driver.describe(product(16, 16, 4), {}, 8)[blas.DIRECT] == tiled


@dtypes
@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize(("m", "n", "k"), [(35, 45, 30), (16, 64, 64), (24, 8, 9)])
def test_parts_by_rows_are_the_whole(m, n, k, layout, dtype):
    a, b = numbers((m, k), dtype), numbers((k, n), dtype, 1)
    right = stored(b, layout[1] == "T")
    kernel = product(
        m, n, k, dtype, transposed=(False, layout[1] == "T"),
        ld=(k, right.shape[1], n),
    )  # fmt: skip
    table = tile_driver.describe(kernel, {}, 8)
    items = int(table[blas.ITEMS])
    assert items == -(-m // 8)
    parts = [(item, item + 1) for item in reversed(range(items))]
    found = call(table, a, right, np.full((m, n), np.nan, dtype), parts)
    np.testing.assert_allclose(found, a @ b, atol=1e3 * ROUNDING[dtype])
    at_once = call(table, a, right, np.full((m, n), np.nan, dtype))
    assert found.tobytes() == at_once.tobytes()


@dtypes
@layouts
def test_offsets_of_small_products(layout, dtype):
    for m, n, k in [(9, 17, 5), (1, 9, 21), (21, 1, 9), (5, 3, 1), (1, 1, 33)]:
        a, b = numbers((m, k), dtype), numbers((k, n), dtype, 1)
        left, right = stored(a, layout[0] == "T"), stored(b, layout[1] == "T")
        kernel = product(
            m, n, k, dtype, transposed=(layout[0] == "T", layout[1] == "T"),
            ld=(left.shape[1], right.shape[1], n), offsets=(3, 5, 7),
        )  # fmt: skip
        padded = [
            np.concatenate([np.full(gap, np.nan, dtype), side.ravel()])
            for gap, side in ((3, left), (5, right))
        ]
        c = call(table_of(kernel), *padded, np.full(7 + m * n, GUARD, dtype))
        assert (c[:7] == GUARD).all()
        np.testing.assert_allclose(
            c[7:].reshape(m, n), a @ b, atol=1e3 * ROUNDING[dtype]
        )


def test_what_is_turned_fits_into_the_scratch_memory():
    assert small_products.MOST_BYTES <= tile_driver.PANEL_BYTES
    for dtype, size in ((FLOAT32, 30), (FLOAT64, 60)):
        table = table_of(
            product(2, size, 256, dtype, transposed=(False, True), ld=(256, 256, size))
        )
        assert table[blas.DIRECT] == 0
    check(30, 4, 256, FLOAT64, "NT")
    check(2, 1000, 16, FLOAT64, "NT")


def test_products_with_vectors_stay_here_whatever_their_size():
    assert choose_product.ours(1, 20000, 20000, 4)
    assert choose_product.ours(20000, 1, 20000, 8)


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["x86-64-v2", "haswell"])
def test_on_other_processors(cpu, tmp_path):
    """All of the above, compiled for processors with fewer or narrower registers."""
    environment = dict(
        os.environ, NUMBA_CPU_NAME=cpu, NUMBA_CPU_FEATURES="",
        STATICGRAD_CACHE_DIR=str(tmp_path),
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", __file__],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
