"""Runs the very source strings that the CUDA target compiles, without a GPU.

Each thread is a Python generator that stops at every barrier and every collective of a
warp. Threads and blocks take turns in an order drawn from `seed`. Shared memory starts
as NaN, accesses are checked against their memory, and threads of a warp or block that
wait at different places, or left, are an error. Functions of libdevice are NumPy's,
computed in float64.
"""

import ast
import functools
import itertools
import math
import types

import numpy as np
from scipy import special

COLLECTIVES = ("syncthreads", "syncwarp", "shfl_xor_sync")
LANES = 32


class Pointer:
    """Memory as a kernel sees it: a typed view, checked at each access."""

    __slots__ = ("memory", "size")

    def __init__(self, memory):
        self.memory = memory
        self.size = memory.size

    def __getitem__(self, index):
        if not 0 <= index < self.size:
            raise IndexError(f"read of element {index} of {self.size}")
        return self.memory[index]

    def __setitem__(self, index, value):
        if not 0 <= index < self.size:
            raise IndexError(f"write of element {index} of {self.size}")
        self.memory[index] = value


class Yielding(ast.NodeTransformer):
    """Collectives become yields, shared arrays get numbers."""

    def __init__(self):
        self.shared = 0
        self.collectives = 0

    def visit_Call(self, node):
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name.startswith("cuda.") and name[5:] in COLLECTIVES:
            self.collectives += 1
            items = [ast.Constant(name[5:]), *node.args]
            return ast.copy_location(ast.Yield(ast.Tuple(items, ast.Load())), node)
        if name == "cuda.shared.array":
            node.args.insert(0, ast.Constant(self.shared))
            self.shared += 1
        return node


def integer(name):
    dtype = np.dtype(name)
    mask, top = (1 << 8 * dtype.itemsize) - 1, 1 << (8 * dtype.itemsize - 1)
    signed = dtype.kind == "i"

    def convert(x):
        if type(x) is dtype.type:
            return x
        whole = int(x) & mask
        return dtype.type(whole - mask - 1 if signed and whole & top else whole)

    return convert


def by_float64(function):
    """A function of floats, computed in float64 and rounded."""

    def call(*args):
        kind = type(args[0])
        assert all(type(arg) is kind for arg in args), [type(arg) for arg in args]
        assert kind in (np.float32, np.float64), kind
        return kind(function(*(np.float64(arg) for arg in args)))

    return call


def fma(x, y, z):
    """Rounded once, for numbers that float128 holds well enough."""
    wide = np.longdouble
    return float(wide(x) * wide(y) + wide(z))


def lgamma(x):
    try:
        return math.lgamma(x)
    except (OverflowError, ValueError):
        return math.inf


def power(x, y):
    """For scalars NumPy takes the square root, of -inf too, where y is 1/2."""
    return np.power(np.full(2, x), np.full(2, y))[0]


def nextafter(x, y):
    return np.nextafter(x, y)


def bits(integer_type):
    return lambda x: np.array(x).view(integer_type)[()]


FUNCTIONS = {
    **{name: getattr(np, name) for name in (
        "exp exp2 expm1 log log2 log10 log1p sinh cosh tanh sin cos tan hypot sqrt "
        "cbrt floor ceil rint trunc copysign fmod fabs").split()},
    **{name: getattr(np, f"arc{name[1:]}") for name in (
        "asinh acosh atanh asin acos atan atan2").split()},
    "erf": special.erf, "erfc": special.erfc, "erfcx": special.erfcx,
    "erfinv": special.erfinv, "lgamma": lgamma, "pow": power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sinpi": lambda x: np.sin(np.pi * x), "cospi": lambda x: np.cos(np.pi * x),
    "fma": fma,
}  # fmt: skip

LIBDEVICE = types.SimpleNamespace(
    float_as_int=bits(np.int32),
    double_as_longlong=bits(np.int64),
    int_as_float=bits(np.float32),
    longlong_as_double=bits(np.float64),
    popcll=lambda x: np.int32((int(x) % 2**64).bit_count()),
    **{name: by_float64(f) for name, f in FUNCTIONS.items()},
    **{f"{name}f": by_float64(f) for name, f in FUNCTIONS.items()},
    nextafter=nextafter,
    nextafterf=nextafter,
)

NAMES = {
    "libdevice": LIBDEVICE,
    "nan": math.nan,
    "inf": math.inf,
    "float32": np.float32,
    "float64": np.float64,
    **{
        n: integer(n)
        for n in "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
    },
}


class Atomic:
    @staticmethod
    def cas(array, index, old, new):
        before = int(array[index])
        if before == old:
            array[index] = new
        return before

    @staticmethod
    def exch(array, index, new):
        before = int(array[index])
        array[index] = new
        return before

    @staticmethod
    def add(array, index, value):
        before = int(array[index])
        array[index] = before + int(value)
        return before


class Thread:
    """Object that a thread knows as `cuda`."""

    atomic = Atomic
    threadfence = staticmethod(lambda: None)

    def __init__(self, thread, block, block_dim, grid, shared):
        self.threadIdx = types.SimpleNamespace(x=thread)
        self.blockIdx = types.SimpleNamespace(x=block[0], y=block[1])
        self.blockDim = types.SimpleNamespace(x=block_dim)
        self.gridDim = types.SimpleNamespace(x=grid[0], y=grid[1])
        self.shared = types.SimpleNamespace(array=self._array)
        self._shared = shared

    def grid(self, _):
        return self.blockIdx.x * self.blockDim.x + self.threadIdx.x

    def gridsize(self, _):
        return self.blockDim.x * self.gridDim.x

    def _array(self, number, extent, dtype):
        if number not in self._shared:
            poison = np.full(extent, np.nan if dtype in FLOATS else 85)
            kind = dtype if dtype in FLOATS else np.dtype(type(dtype(0)))
            self._shared[number] = Pointer(poison.astype(kind))
        return self._shared[number]


FLOATS = (np.float32, np.float64)


def calling(function):
    """A function of the user's: its result, and whether it raised."""

    def call(*args):
        try:
            return function.function(*args), False
        except Exception:  # noqa: BLE001  whatever the user's function raises
            return 0, True

    return call


@functools.cache
def prepared(text, functions=()):
    """(function of `cuda` and the arguments, whether it yields)."""
    tree = ast.parse(text)
    change = Yielding()
    change.visit(tree)
    function = tree.body[0]
    function.args.args.insert(0, ast.arg("cuda"))
    ast.fix_missing_locations(tree)
    names = NAMES | {f.symbol: calling(f) for f in functions}
    exec(compile(tree, "<kernel>", "exec"), names)  # noqa: S102
    return names[function.name], change.collectives > 0


class Divergence(RuntimeError):
    """Threads that do not meet."""


class Block:
    """The threads of a block, run from meeting to meeting."""

    def __init__(self, threads, rng):
        self.threads = threads
        self.rng = rng
        self.waiting = {}
        self.answers = dict.fromkeys(range(len(threads)))
        self.left = set(range(len(threads)))

    def run(self):
        while self.left:
            for thread in self._next_warp():
                try:
                    answer = self.answers[thread]
                    self.waiting[thread] = self.threads[thread].send(answer)
                except StopIteration:
                    self.left.discard(thread)
            free = self.left - self.waiting.keys()
            if self.left and not self._meet_in_warps() and not free:
                self._meet_all()

    def _next_warp(self):
        """Threads of one warp that can go on, in any order: warps drift apart."""
        free = self.left - self.waiting.keys()
        warps = sorted({thread // LANES for thread in free})
        if not warps:
            return []
        chosen = self.rng.choice(warps)
        order = [thread for thread in sorted(free) if thread // LANES == chosen]
        self.rng.shuffle(order)
        return order

    def _meet_in_warps(self):
        met = False
        for first in range(0, len(self.threads), LANES):
            lanes = range(first, min(first + LANES, len(self.threads)))
            here = [t for t in lanes if t in self.waiting]
            kinds = {self.waiting[t][0] for t in here}
            if not here or kinds == {"syncthreads"}:
                continue
            if len(kinds) > 1 or len(here) < len(lanes):
                raise Divergence(f"lanes wait at {sorted(kinds)}, or have left")
            calls = {t: self.waiting.pop(t) for t in here}
            for t in here:
                self.answers[t] = self._shuffled(calls, t, first)
            met = True
        return met

    @staticmethod
    def _shuffled(calls, thread, first):
        kind, *arguments = calls[thread]
        if kind == "syncwarp":
            return None
        _, _, distance = arguments
        other = calls[first + ((thread - first) ^ distance)]
        return other[2]

    def _meet_all(self):
        if len(self.waiting) != len(self.threads):
            raise Divergence("a block waits for threads that have left")
        self.waiting.clear()
        self.answers = dict.fromkeys(self.left)


def launch(text, grid, block, arguments, seed=0, functions=()):
    """Run a kernel over `grid` (x, y) blocks of `block` threads."""
    function, yields = prepared(text, functions)
    rng = np.random.default_rng(seed)
    blocks = list(itertools.product(range(grid[0]), range(grid[1])))
    rng.shuffle(blocks)
    with np.errstate(all="ignore"):
        for place in blocks:
            shared = {}
            threads = [Thread(t, place, block, grid, shared) for t in range(block)]
            if yields:
                Block([function(t, *arguments) for t in threads], rng).run()
                continue
            rng.shuffle(threads)
            for thread in threads:
                function(thread, *arguments)
