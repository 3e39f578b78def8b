"""Operations: the records of ops, and the functions that users call.

Importing this package defines every op and gives Tensor its operators and methods.
"""

from types import FunctionType
from typing import TYPE_CHECKING

from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Size
from staticgrad.ops import methods, protocol
from staticgrad.ops import random as random
from staticgrad.ops.elementwise.activations import *
from staticgrad.ops.elementwise.arithmetic import *
from staticgrad.ops.elementwise.choice import *
from staticgrad.ops.elementwise.compare import *
from staticgrad.ops.elementwise.division import *
from staticgrad.ops.elementwise.exponentials import *
from staticgrad.ops.elementwise.functions import *
from staticgrad.ops.elementwise.hyperbolic import *
from staticgrad.ops.elementwise.integers import *
from staticgrad.ops.elementwise.logic import *
from staticgrad.ops.elementwise.powers import *
from staticgrad.ops.elementwise.representation import *
from staticgrad.ops.elementwise.signs import *
from staticgrad.ops.elementwise.special import *
from staticgrad.ops.elementwise.trigonometry import *
from staticgrad.ops.leaves import *
from staticgrad.ops.linear import convolution as convolution
from staticgrad.ops.linear import linalg as linalg
from staticgrad.ops.linear import pooling_ops as pooling_ops
from staticgrad.ops.linear.contractions import *
from staticgrad.ops.linear.matrix_products import *
from staticgrad.ops.linear.polynomials import *
from staticgrad.ops.movement import interleave as interleave
from staticgrad.ops.movement.diagonals import *
from staticgrad.ops.movement.filling import *
from staticgrad.ops.movement.grids import *
from staticgrad.ops.movement.indexing import *
from staticgrad.ops.movement.joining import *
from staticgrad.ops.movement.padding import *
from staticgrad.ops.movement.repetition import *
from staticgrad.ops.movement.reshaping import *
from staticgrad.ops.movement.slicing import *
from staticgrad.ops.movement.spaces import *
from staticgrad.ops.movement.windows import *
from staticgrad.ops.promotion import *
from staticgrad.ops.reductions.histograms import *
from staticgrad.ops.reductions.interpolation import *
from staticgrad.ops.reductions.nan_reductions import *
from staticgrad.ops.reductions.reduce import *
from staticgrad.ops.reductions.scans import *
from staticgrad.ops.reductions.segments import *
from staticgrad.ops.reductions.series import *
from staticgrad.ops.reductions.sorting import *
from staticgrad.ops.reductions.statistics import *
from staticgrad.ops.reductions.top_elements import *
from staticgrad.ops.stateful import *

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

_public = {n: f for n, f in globals().items() if isinstance(f, FunctionType)}
if not TYPE_CHECKING:  # type checkers see it from the names that the modules list
    __all__ = sorted(["linalg", "random", *_public])

methods.install(Tensor)
methods.install_sizes(Size)
protocol.fill(_public)
protocol.fill({name: vars(linalg)[name] for name in linalg.__all__}, "linalg.")
