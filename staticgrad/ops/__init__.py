"""The operations: records that say all about an op, and the functions that users call.

Importing this package defines every op and gives Tensor its operators and methods.
"""

from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Size
from staticgrad.ops import methods, protocol, random
from staticgrad.ops.activations import (
    clip,
    heaviside,
    isclose,
    logaddexp,
    nan_to_num,
    relu,
    softplus,
)
from staticgrad.ops.arithmetic import (
    absolute,
    add,
    multiply,
    negative,
    positive,
    sign,
    subtract,
)
from staticgrad.ops.choice import maximum, minimum, where
from staticgrad.ops.compare import (
    equal,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    not_equal,
)
from staticgrad.ops.division import (
    divide,
    floor_divide,
    reciprocal,
    remainder,
    true_divide,
)
from staticgrad.ops.fill import (
    arange,
    eye,
    full,
    full_like,
    identity,
    linspace,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from staticgrad.ops.functions import (
    ceil,
    cos,
    erf,
    exp,
    expm1,
    floor,
    log,
    log1p,
    rint,
    round,
    rsqrt,
    sigmoid,
    sin,
    sqrt,
    tanh,
)
from staticgrad.ops.indexing import one_hot, scatter_add, take, take_along_axis
from staticgrad.ops.leaves import constant, input, parameter, state
from staticgrad.ops.logic import (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    invert,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
)
from staticgrad.ops.place import concatenate, hstack, pad, stack, vstack
from staticgrad.ops.powers import power, square
from staticgrad.ops.products import dot, matmul, outer
from staticgrad.ops.promote import as_tensor, astype, stop_gradient
from staticgrad.ops.reduce import all, any, max, min, prod, sum
from staticgrad.ops.shape import (
    broadcast_arrays,
    broadcast_to,
    expand_dims,
    matrix_transpose,
    moveaxis,
    ravel,
    reshape,
    squeeze,
    swapaxes,
    transpose,
)
from staticgrad.ops.slicing import array_split, flip, split
from staticgrad.ops.stateful import by_mode, update
from staticgrad.ops.statistics import (
    argmax,
    argmin,
    average,
    log_softmax,
    logsumexp,
    mean,
    softmax,
    std,
    var,
)

abs = absolute
amax, amin = max, min
bitwise_not = invert
concat = concatenate
mod = remainder
permute_dims = transpose
pow = power

__all__ = [
    "abs", "absolute", "add", "all", "amax", "amin", "any", "arange", "argmax",
    "argmin", "array_split", "as_tensor", "astype", "average", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "broadcast_arrays", "broadcast_to",
    "by_mode", "ceil", "clip", "concat", "concatenate", "constant", "cos", "divide",
    "dot", "equal", "erf", "exp", "expand_dims", "expm1", "eye", "flip", "floor",
    "floor_divide", "full", "full_like", "greater", "greater_equal", "heaviside",
    "hstack", "identity", "input", "invert", "isclose", "isfinite", "isinf", "isnan",
    "less", "less_equal", "linspace", "log", "log1p", "log_softmax", "logaddexp",
    "logical_and", "logical_not", "logical_or", "logical_xor", "logsumexp", "matmul",
    "matrix_transpose", "max", "maximum", "mean", "min", "minimum", "mod", "moveaxis",
    "multiply", "nan_to_num", "negative", "not_equal", "one_hot", "ones", "ones_like",
    "outer", "pad", "parameter", "permute_dims", "positive", "pow", "power", "prod",
    "random", "ravel", "reciprocal", "relu", "remainder", "reshape", "rint", "round",
    "rsqrt", "scatter_add", "sigmoid", "sign", "sin", "softmax", "softplus", "split",
    "sqrt", "square", "squeeze", "stack", "state", "std", "stop_gradient", "subtract",
    "sum", "swapaxes", "take", "take_along_axis", "tanh", "transpose", "true_divide",
    "update", "var", "vstack", "where", "zeros", "zeros_like",
]  # fmt: skip

methods.install(Tensor)
methods.install_sizes(Size)
protocol.fill(globals(), __all__)
