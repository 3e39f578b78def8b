"""Record of an operation: its definition in one place.

``define(...)`` puts an Op into the table ``OPS``. Everything that treats an operation
reads this record: the type rules, differentiation, the reference target, the tests, and
the compiler, which asks only for the *kind* of `code` and never for the name.

Rules, all given the attributes of the node as keywords:

* ``shape(*types, **attrs)`` and ``dtype(*types, **attrs)`` give the result's (one of
  each, or a tuple of them when ``outputs`` is not 1). They raise
  ``ShapeError(rule, advice)`` or ``DTypeError(rule, advice)``; op name, types and the
  user's line are added by ``apply``.
* ``vjp(g, y, *xs, **attrs)`` gives one cotangent (or None) per input, made of other
  ops, so that derivatives of any order work. With several outputs g and y are tuples,
  and a g may be None. ``vjp=None`` says that the derivative is zero everywhere.
* ``numpy(*arrays, **attrs)`` computes the result (a tuple when ``outputs`` is not 1).

Three rules are needed only where neither the kind of `code` nor the vjp decides:

* ``jvp(ts, y, *xs, **attrs)`` gives the tangent of y, where ts holds a tangent or None
  per input; or it is a word: "linear" in all float inputs together, "multilinear" in
  each of them, "transposed" for that of the vjp. Otherwise forward.py derives it.
* ``batch(n, *xs, **attrs)`` gives the result for n examples at once: each x has a
  leading axis of n, and so has the result. Otherwise batch_rules.py derives it from the
  kind, and attributes by their names, which mean the same in every op (LEADING there).
* ``interval(*intervals)`` gives the least and the largest float that the result can be,
  from those of the inputs (value_ranges.py); without it, it can be any.

Under mixed precision (amp.py) an op runs in the dtype of its arguments, or, as `amp`
says, a product on operands of "half", and what overflows or loses digits in "float32".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, Literal, ParamSpec, TypeAlias

from staticgrad.ir.expression import Expr, parse
from staticgrad.ir.kind import Kind, Tangent
from staticgrad.ir.size import Dim, Shape

P = ParamSpec("P")
Jvp: TypeAlias = Callable[..., Any] | Tangent
Amp: TypeAlias = Literal["given", "half", "float32"]


class Code:
    """The way in which results are computed: one class per kind of operation."""

    __slots__ = ()

    kind: ClassVar[Kind]


@dataclass(frozen=True, slots=True)
class Leaf(Code):
    """An input, a parameter, a state or a constant."""

    kind = Kind("", stays=True)


@dataclass(frozen=True, slots=True)
class Formula(Code):
    """A kind whose result is an expression of the kernel language (compiler/codegen).

    `template` is its text over ``{0}``, ``{1}``..., the attributes by name, and
    ``{T}``, the constructor of the result's dtype (``{T}(1)`` is one). For float16 and
    bfloat16, which are float32 in registers, ``{T}`` is float32 and ``{S}`` rounds to
    what is stored.
    """

    template: InitVar[str]
    expr: Expr = field(init=False)

    def __post_init__(self, template: str) -> None:
        object.__setattr__(self, "expr", parse(template))


@dataclass(frozen=True, slots=True)
class Elementwise(Formula):
    """One result per element of the broadcast inputs.

    Inputs of one node have one dtype, unless the op says otherwise. `cost` is in
    additions; above 8 a value is stored rather than recomputed. One that `fails` is a
    call of a function of the user's, which may raise.
    """

    kind = Kind("elementwise", "diagonal", fused=True, aligned=True, folded=True)

    cost: int = 1
    fails: bool = False


@dataclass(frozen=True, slots=True)
class IndexCheck(Code):
    """The int64 index that input 0 gives, wrapped to ``0..attrs["extent"]-1``.

    With ``attrs["wrap"]`` negative ones count from the end; one that is out of range is
    an IndexOutOfRange when the graph runs. Gather and Scatter take checked indices
    only.
    """

    kind = Kind("indexing", fused=True, aligned=True, fails=True)


@dataclass(frozen=True, slots=True)
class Position(Code):
    """The element's own index along ``attrs["axis"]``, as the result's dtype."""

    kind = Kind("constant", counted=True)


@dataclass(frozen=True, slots=True)
class Extent(Code):
    """The number that ``attrs["size"]`` is when the graph runs: a weak int64 scalar."""

    kind = Kind("elementwise", counted=True)


@dataclass(frozen=True, slots=True)
class Random(Formula):
    """One pseudo-random number per element, from a key of four uint32 words.

    Its formula is over the words ``{k0} {k1} {k2} {k3}``, ``{i}``, the flat C-order
    index of the element in the result, and the inputs behind the key. The key, input 0,
    may have axes before its words: one key for each place of the result's leading axes,
    and ``{i}`` counts the elements of one key.
    """

    kind = Kind("random", reads=("memory", "values"), fused=True, aligned=True)

    cost: int = 40


@dataclass(frozen=True, slots=True)
class Reduce(Code):
    """``combine`` over the axes ``attrs["axes"]``, which are dropped from the shape."""

    kind = Kind("reduction", "slopes", fused=True, folded=True, accumulates=True)

    combine: Literal["add", "multiply", "maximum", "minimum", "and", "or"]


@dataclass(frozen=True, slots=True)
class Scan(Formula):
    """A running result along ``attrs["axis"]``, of the shape of the inputs.

    ``state = formula(state, *inputs)`` for one element after the other, starting with
    `initial`; ``{0}`` is the state. The result is the state after each element, or,
    where ``attrs["exclusive"]`` is true, before it. `wide`: of float32, the state is
    float64, and what is shown of it rounded.
    """

    kind = Kind("reduction", reads=("memory",), accumulates=True)

    initial: float
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Strided layout: the element at index i is at ``offset + sum(i * strides)``.

    Offset and strides count elements and may be symbolic or negative.
    """

    shape: Shape
    strides: tuple[Dim, ...]
    offset: Dim = 0

    @staticmethod
    def contiguous(shape: Shape) -> Layout:
        """Return the layout of C order."""
        strides: list[Dim] = []
        step: Dim = 1
        for dim in reversed(shape):
            strides.append(step)
            step = step * dim
        return Layout(shape, tuple(reversed(strides)))

    @property
    def is_contiguous(self) -> bool:
        """True if this is C order from offset 0, axes of size 1 aside."""
        plain = Layout.contiguous(self.shape)
        steps = zip(self.shape, self.strides, plain.strides, strict=True)
        return self.offset == 0 and all(n == 1 or a == b for n, a, b in steps)


@dataclass(frozen=True, slots=True)
class View(Code):
    """The same elements, read differently; no arithmetic.

    ``layout(source, shape, **attrs)`` is the result's Layout over the memory that
    `source` describes, or None where no strides can express it (a reshape of a
    transpose), in which case the input is copied first. An attribute "shape" is not
    passed again: it is the result's shape.
    """

    kind = Kind("view", "linear", reads=("strided",), is_view=True, folded=True)

    layout: Callable[..., Layout | None]

    def of(
        self, source: Layout, shape: Shape, attrs: Mapping[str, Any]
    ) -> Layout | None:
        """Return the result's layout, from the input's and the node's attributes."""
        others = {name: value for name, value in attrs.items() if name != "shape"}
        return self.layout(source, shape, **others)


@dataclass(frozen=True, slots=True)
class After(Code):
    """Input 0 as it is, for readers that do not run before input 1 is there."""

    kind = Kind("view", is_view=True)


@dataclass(frozen=True, slots=True)
class Piece:
    """Region of the result, described by `region`, that input number `input` fills."""

    input: int
    region: Layout


@dataclass(frozen=True, slots=True)
class Place(Code):
    """Inputs written into regions of the result (pad, concat, stack, replace).

    ``pieces(shape, *types, **attrs)`` lists them; a later one covers those before.
    Where ``fill(**attrs)`` is not None the rest of the result has that value; where it
    is None the pieces cover the result.
    """

    kind = Kind("view", "linear", reads=("memory",), folded=True)

    pieces: Callable[..., Sequence[Piece]]
    fill: Callable[..., float | int | bool | None]


@dataclass(frozen=True, slots=True)
class Gather(Code):
    """Element of input 0 at a position that input 1 gives along ``attrs["axis"]``.

    With ``attrs["pointwise"]`` true the index has the rank of input 0 and is read at
    the element's own position (take_along_axis); otherwise the axes of the index
    replace the axis (take). Where there is an attribute "window", each index stands for
    that many elements in a row, along one more axis after those of the index. The index
    is the result of an IndexCheck, seen through views only.
    """

    kind = Kind("indexing", "linear", reads=("memory", "values"), fused=True)


@dataclass(frozen=True, slots=True)
class Scatter(Code):
    """Input 0, with input 2 combined into it where input 1 points.

    Inputs are (base, index, updates); axis, pointwise and window are as in Gather: the
    updates are what a gather would take. ``attrs["combine"]`` is "set", "add",
    "multiply", "maximum" or "minimum". Equal indices combine in the order of the index,
    so that "set" keeps the last.
    """

    kind = Kind("indexing", reads=("memory",), accumulates=True)


@dataclass(frozen=True, slots=True)
class Select(Formula):
    """The ``attrs["k"]`` first elements of each row of input 0, and where they were.

    A row is the last axis. The formula says whether value {0} comes before the value
    {1}; equal ones keep their order. Outputs are (values, int64 positions).
    """

    kind = Kind("elementwise", reads=("memory",))


@dataclass(frozen=True, slots=True)
class Sort(Code):
    """Each row of input 0, the last axis, in ascending order, NaN last.

    The result are the values or, if `places`, their int64 places, ascending where
    values are equal.
    """

    kind = Kind("elementwise", reads=("memory",))

    places: bool


@dataclass(frozen=True, slots=True)
class Call(Code):
    """A function of the user's on whole arrays: ``attrs["function"]``, a Foreign.

    The first ``attrs["lead"]`` axes of all inputs and outputs are equal: the function
    is called once for each of their places, on what is behind them. It may raise.
    """

    kind = Kind("elementwise", reads=("dense",), fails=True)


@dataclass(frozen=True, slots=True)
class Shuffle(Formula):
    """A random order of 0..n-1, n the last size of the result, for each key.

    Input 0 are keys as of Random. Position i takes what position j <= i holds, and j
    takes i; j is ``formula(w, i + 1)`` of w, element i of the draw `word`.
    """

    kind = Kind("random", reads=("memory",))

    word: str


@dataclass(frozen=True, slots=True)
class Matmul(Code):
    """``x @ y`` of rank >= 2 both, with equal batch axes."""

    kind = Kind(
        "matmul", "multilinear", reads=("matrix",), folded=True, accumulates=True
    )


@dataclass(frozen=True, slots=True)
class MatmulAdd(Code):
    """``base + x @ y``, the base first; written over the base where it is dead."""

    kind = Kind("matmul", reads=("memory", "matrix"), accumulates=True)


@dataclass(frozen=True, slots=True)
class Convolution(Code):
    """One of three that make each other's derivatives (convolution.py).

    ``result = image * kernels``: `part` says which of them the op makes of the two
    others, given in that order: "result" of (image, kernels), "input" of (result,
    kernels), "weight" of (image, result).
    """

    kind = Kind("matmul", "multilinear", reads=("image",), accumulates=True)

    part: Literal["result", "input", "weight"]


@dataclass(frozen=True, slots=True)
class Pool(Code):
    """One of the ops about the largest elements of windows (pooling_ops.py)."""

    kind = Kind("reduction")

    part: Literal["maximum", "index", "pick", "spread"]


@dataclass(frozen=True, slots=True)
class Mode(Code):
    """Input 0 in train mode, input 1 in eval mode."""

    kind = Kind("control", "linear", stays=True)


ControlForm: TypeAlias = Literal["branch", "loop", "repeat", "replay"]


@dataclass(frozen=True, slots=True)
class Control(Code):
    """Runs the node's nested graphs, whose captures are explicit inputs of the node.

    "branch": input 0, an int64 scalar, says which graph runs on the other inputs.

    "loop": the one graph runs ``attrs["length"]`` times. Its inputs are the position
    (int64), ``attrs["carries"]`` carries, a slice of each of ``attrs["sequences"]``
    sequences, and captures; its outputs the new carries and what is stacked. The node's
    inputs are the same without the position; with ``attrs["reverse"]`` positions run
    from the last to the first.

    "repeat": while the first graph is true of the carries and captures, the second
    gives the new carries, at most ``attrs["limit"]`` times (-1: unbounded). The node's
    outputs are the last carries and the number of times (int64); where
    ``attrs["kept"]`` names carries, then also which of their values are kept (int64,
    see revolve.py) and ``attrs["checkpoints"]`` values of each.

    "replay": the steps of a loop are reversed, the last one first. Input 0 (int64) says
    how many there are; where they are ``attrs["noted"]`` it is followed by what a
    repetition has kept; then come ``attrs["carries"]`` first carries of the loop,
    ``attrs["cotangents"]`` carries of the way back, ``attrs["sequences"]`` sequences of
    ``attrs["length"]`` (0 where there are none) and captures. The first graph gives the
    loop's next carries from the position, its carries, slices and captures; the second
    the next carries of the way back, and what is stacked, from the position, both
    kinds of carries, slices and captures. Outputs are the last carries of the way back
    and the stacks. ``attrs["snapshots"]`` states of the loop are kept at one time.
    """

    kind = Kind("control", reads=("whole",), stays=True)

    form: ControlForm = "branch"


def snapshot_words(snapshots: int) -> int:
    """Return the number of int64 that record a loop's snapshots."""
    return 16 + 3 * snapshots


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample arguments of an op: arrays by position, attributes by keyword.

    `grad` says whether derivatives are checked there (not at kinks or special values).
    `ulp` is the error allowed to the cpu target against `numpy` in float32/float64.
    """

    args: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    grad: bool = True
    ulp: float = 4.0


@dataclass(frozen=True, slots=True)
class Bad:
    """Invalid arguments: the op must raise `error` with a message holding `match`."""

    args: tuple[Any, ...]
    attrs: dict[str, Any]
    error: type[Exception]
    match: str


VARIABLE = 0
"""The number of outputs of an op whose nested graphs decide it.

Its shape and dtype rules are given ``graphs`` as well.
"""


@dataclass(frozen=True, slots=True)
class Op:
    """Operation; see the module docstring for the rules."""

    name: str
    shape: Callable[..., Any]
    dtype: Callable[..., Any]
    vjp: Callable[..., Any] | None
    code: Code
    numpy: Callable[..., Any]
    samples: Callable[[], Sequence[Sample]]
    bad: Callable[[], Sequence[Bad]]
    outputs: int = 1
    jvp: Jvp | None = None
    batch: Callable[..., Any] | None = None
    amp: Amp = "given"
    reached: bool = False  # the vjp is called even if nothing behind it is asked for
    interval: Callable[..., tuple[float, float]] | None = None

    def __repr__(self) -> str:
        return f"Op({self.name})"

    @property
    def tangent(self) -> Jvp:
        """The rule of forward mode: the op's own, or that of its kind."""
        return self.jvp or self.code.kind.tangent


def can_fail(code: Code) -> bool:
    """Whether what has this code may stop a run."""
    return code.kind.fails or (isinstance(code, Elementwise) and code.fails)


OPS: dict[str, Op] = {}


def _defining(make: Callable[P, Op]) -> Callable[P, Op]:
    def define(*args: P.args, **rules: P.kwargs) -> Op:
        """Make an Op and put it into the table; a name can be defined once."""
        op = make(*args, **rules)
        if op.name in OPS:
            raise ValueError(f"op {op.name!r} is already defined")
        OPS[op.name] = op
        return op

    return define


define = _defining(Op)
