"""The operations: records that say all about an op, and the functions that users call.

Importing this package defines every op and gives Tensor its operators and methods.
"""

from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Size
from staticgrad.ops import methods, protocol, random
from staticgrad.ops.elementwise.activations import (
    clip,
    elu,
    gelu,
    heaviside,
    isclose,
    isneginf,
    isposinf,
    leaky_relu,
    logaddexp,
    nan_to_num,
    relu,
    silu,
)
from staticgrad.ops.elementwise.arithmetic import (
    absolute,
    add,
    fabs,
    multiply,
    negative,
    positive,
    sign,
    subtract,
)
from staticgrad.ops.elementwise.choice import maximum, minimum, where
from staticgrad.ops.elementwise.compare import (
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
from staticgrad.ops.elementwise.division import (
    divide,
    floor_divide,
    reciprocal,
    remainder,
    true_divide,
)
from staticgrad.ops.elementwise.exponentials import (
    cbrt,
    exp2,
    float_power,
    log2,
    log10,
    logaddexp2,
    xlogy,
)
from staticgrad.ops.elementwise.functions import (
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
    softplus,
    sqrt,
    tanh,
)
from staticgrad.ops.elementwise.hyperbolic import arccosh, arcsinh, arctanh, cosh, sinh
from staticgrad.ops.elementwise.integers import (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    gcd,
    invert,
    lcm,
    left_shift,
    right_shift,
)
from staticgrad.ops.elementwise.logic import (
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
)
from staticgrad.ops.elementwise.powers import power, square
from staticgrad.ops.elementwise.representation import (
    bitwise_count,
    frexp,
    nextafter,
    spacing,
)
from staticgrad.ops.elementwise.signs import (
    conjugate,
    copysign,
    divmod,
    fix,
    fmax,
    fmin,
    fmod,
    imag,
    ldexp,
    modf,
    real,
    signbit,
    trunc,
)
from staticgrad.ops.elementwise.special import digamma, erfc, erfinv, lgamma, polygamma
from staticgrad.ops.elementwise.trigonometry import (
    angle,
    arccos,
    arcsin,
    arctan,
    arctan2,
    deg2rad,
    hypot,
    rad2deg,
    sinc,
    tan,
)
from staticgrad.ops.leaves import constant, input, parameter, state
from staticgrad.ops.linear import convolution as convolution
from staticgrad.ops.linear import linalg
from staticgrad.ops.linear import pooling_ops as pooling_ops
from staticgrad.ops.linear.contractions import (
    einsum,
    inner,
    kron,
    matvec,
    tensordot,
    vdot,
    vecdot,
    vecmat,
)
from staticgrad.ops.linear.matrix_products import dot, matmul, outer
from staticgrad.ops.linear.polynomials import (
    convolve,
    correlate,
    poly,
    polyadd,
    polyder,
    polyint,
    polymul,
    polysub,
    polyval,
)
from staticgrad.ops.movement import interleave as interleave
from staticgrad.ops.movement.diagonals import (
    diag,
    diag_indices,
    diagflat,
    diagonal,
    trace,
    tri,
    tril,
    tril_indices,
    triu,
    triu_indices,
)
from staticgrad.ops.movement.filling import (
    arange,
    eye,
    full,
    full_like,
    identity,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from staticgrad.ops.movement.grids import (
    cross,
    indices,
    ix_,
    meshgrid,
    ravel_multi_index,
    unravel_index,
    vander,
)
from staticgrad.ops.movement.indexing import (
    one_hot,
    put_along_axis,
    scatter_add,
    take,
    take_along_axis,
)
from staticgrad.ops.movement.joining import (
    append,
    atleast_1d,
    atleast_2d,
    atleast_3d,
    block,
    column_stack,
    concatenate,
    delete,
    dstack,
    hstack,
    insert,
    stack,
    vstack,
)
from staticgrad.ops.movement.padding import pad
from staticgrad.ops.movement.repetition import (
    fliplr,
    flipud,
    repeat,
    roll,
    rot90,
    tile,
)
from staticgrad.ops.movement.reshaping import (
    broadcast_arrays,
    broadcast_to,
    expand_dims,
    matrix_transpose,
    moveaxis,
    ravel,
    reshape,
    rollaxis,
    squeeze,
    swapaxes,
    transpose,
)
from staticgrad.ops.movement.slicing import (
    array_split,
    dsplit,
    flip,
    hsplit,
    split,
    vsplit,
)
from staticgrad.ops.movement.spaces import (
    geomspace,
    linspace,
    logspace,
)
from staticgrad.ops.movement.windows import (
    dynamic_slice,
    dynamic_update_slice,
)
from staticgrad.ops.promotion import as_tensor, astype, result_type, stop_gradient
from staticgrad.ops.reductions.histograms import (
    histogram,
    histogram_bin_edges,
)
from staticgrad.ops.reductions.interpolation import (
    gradient,
    interp,
    isin,
    unwrap,
)
from staticgrad.ops.reductions.nan_reductions import (
    nanargmax,
    nanargmin,
    nanmax,
    nanmean,
    nanmin,
    nanprod,
    nanstd,
    nansum,
    nanvar,
)
from staticgrad.ops.reductions.reduce import all, any, max, min, prod, sum
from staticgrad.ops.reductions.scans import (
    cumprod,
    cumsum,
    cumulative_prod,
    cumulative_sum,
    nancumprod,
    nancumsum,
)
from staticgrad.ops.reductions.segments import (
    bincount,
    digitize,
    searchsorted,
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_sum,
)
from staticgrad.ops.reductions.series import (
    array_equiv,
    copy,
    corrcoef,
    cov,
    diff,
    ediff1d,
    iscomplex,
    isreal,
    select,
    trapezoid,
    unstack,
)
from staticgrad.ops.reductions.sorting import argsort, sort
from staticgrad.ops.reductions.statistics import (
    allclose,
    argmax,
    argmin,
    array_equal,
    average,
    count_nonzero,
    log_softmax,
    logsumexp,
    mean,
    ptp,
    softmax,
    std,
    var,
)
from staticgrad.ops.reductions.top_elements import (
    top_k,
)
from staticgrad.ops.stateful import by_mode, update

abs = absolute
acos, asin, atan, atan2 = arccos, arcsin, arctan, arctan2
acosh, asinh, atanh = arccosh, arcsinh, arctanh
amax, amin = max, min
around = round
bitwise_invert = bitwise_not = invert
bitwise_left_shift, bitwise_right_shift = left_shift, right_shift
concat = concatenate
conj = conjugate
degrees, radians = rad2deg, deg2rad
gammaln = lgamma
mod = remainder
permute_dims = transpose
pow = power

__all__ = [
    "abs", "absolute", "acos", "acosh", "add", "all", "allclose", "amax", "amin",
    "angle", "any", "append", "arange", "arccos", "arccosh", "arcsin", "arcsinh",
    "arctan", "arctan2", "arctanh", "argmax", "argmin", "argsort", "around",
    "array_equal", "array_equiv", "array_split", "as_tensor", "asin", "asinh", "astype",
    "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "average",
    "bincount", "bitwise_and", "bitwise_count", "bitwise_invert", "bitwise_left_shift",
    "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "block",
    "broadcast_arrays", "broadcast_to", "by_mode", "cbrt", "ceil", "clip",
    "column_stack", "concat", "concatenate", "conj", "conjugate", "constant",
    "convolve", "copy", "copysign", "corrcoef", "correlate", "cos", "cosh",
    "count_nonzero", "cov", "cross", "cumprod", "cumsum", "cumulative_prod",
    "cumulative_sum", "deg2rad", "degrees", "delete", "diag", "diag_indices",
    "diagflat", "diagonal", "diff", "digamma", "digitize", "divide", "divmod", "dot",
    "dsplit", "dstack", "dynamic_slice", "dynamic_update_slice", "ediff1d", "einsum",
    "elu", "equal", "erf", "erfc", "erfinv", "exp", "exp2", "expand_dims", "expm1",
    "eye", "fabs", "fix", "flip", "fliplr", "flipud", "float_power", "floor",
    "floor_divide", "fmax", "fmin", "fmod", "frexp", "full", "full_like", "gammaln",
    "gcd", "gelu", "geomspace", "gradient", "greater", "greater_equal", "heaviside",
    "histogram", "histogram_bin_edges", "hsplit", "hstack", "hypot", "identity", "imag",
    "indices", "inner", "input", "insert", "interp", "invert", "isclose", "iscomplex",
    "isfinite", "isin", "isinf", "isnan", "isneginf", "isposinf", "isreal", "ix_",
    "kron", "lcm", "ldexp", "leaky_relu", "left_shift", "less", "less_equal", "lgamma",
    "linalg", "linspace", "log", "log1p", "log2", "log10", "log_softmax", "logaddexp",
    "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor", "logspace",
    "logsumexp", "matmul", "matrix_transpose", "matvec", "max", "maximum", "mean",
    "meshgrid", "min", "minimum", "mod", "modf", "moveaxis", "multiply", "nan_to_num",
    "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmin",
    "nanprod", "nanstd", "nansum", "nanvar", "negative", "nextafter", "not_equal",
    "one_hot", "ones", "ones_like", "outer", "pad", "parameter", "permute_dims", "poly",
    "polyadd", "polyder", "polygamma", "polyint", "polymul", "polysub", "polyval",
    "positive", "pow", "power", "prod", "ptp", "put_along_axis", "rad2deg", "radians",
    "random", "ravel", "ravel_multi_index", "real", "reciprocal", "relu", "remainder",
    "repeat", "reshape", "result_type", "right_shift", "rint", "roll", "rollaxis",
    "rot90", "round", "rsqrt", "scatter_add", "searchsorted", "segment_max",
    "segment_mean", "segment_min", "segment_prod", "segment_sum", "select", "sigmoid",
    "sign", "signbit", "silu", "sin", "sinc", "sinh", "softmax", "softplus", "sort",
    "spacing", "split", "sqrt", "square", "squeeze", "stack", "state", "std",
    "stop_gradient", "subtract", "sum", "swapaxes", "take", "take_along_axis", "tan",
    "tanh", "tensordot", "tile", "top_k", "trace", "transpose", "trapezoid", "tri",
    "tril", "tril_indices", "triu", "triu_indices", "true_divide", "trunc",
    "unravel_index", "unstack", "unwrap", "update", "vander", "var", "vdot", "vecdot",
    "vecmat", "vsplit", "vstack", "where", "xlogy", "zeros", "zeros_like",
]  # fmt: skip

methods.install(Tensor)
methods.install_sizes(Size)
protocol.fill(globals(), __all__)
protocol.fill(vars(linalg), linalg.__all__, "linalg.")
