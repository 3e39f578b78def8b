"""Arrays on a GPU: those of other libraries as inputs, ours as outputs.

Others say where their memory is by ``__cuda_array_interface__`` (CuPy, PyTorch, Numba,
JAX) or by DLPack. What they have queued on their stream is waited for.
Source: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html (3).
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.cuda import dlpack
from staticgrad.compiler.cuda.device import Device
from staticgrad.compiler.runtime.arguments import OnDevice
from staticgrad.errors import DTypeError, GraphError
from staticgrad.ir.source import at, here
from staticgrad.ir.types import DType, is_half

Array = npt.NDArray[Any]


class DeviceArray(OnDevice):
    """C-order array on a GPU.

    ``numpy()`` and ``np.asarray`` copy it to the host. Other libraries take it without
    a copy: ``cupy.asarray(y)``, ``torch.as_tensor(y, device="cuda")``,
    ``torch.from_dlpack(y)``. `owner` keeps the memory.
    """

    __slots__ = ("__weakref__", "_device", "_owner", "address", "dtype", "shape")

    def __init__(
        self, device: Device, address: int, dtype: DType, shape: tuple[int, ...],
        owner: object = None,
    ) -> None:  # fmt: skip
        self._device = device
        self._owner = owner
        self.address = address
        self.dtype = dtype
        self.shape = shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len of a DeviceArray without axes")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}{list(self.shape)})"

    def numpy(self) -> Array:
        """Copy the elements to the host, after all work."""
        array: Array = np.empty(self.shape, self.dtype)
        if array.size:
            self._device.read(self.address, array)
        return array

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> Array:
        if copy is False:
            raise ValueError("a DeviceArray is on a GPU: NumPy needs a copy of it")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self._known().str,
            "data": (self.address, False),
            "strides": None,
            "stream": self._device.stream_number,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, 0

    def __dlpack__(self, **_: Any) -> Any:
        """Return a capsule; all work has been waited for, so any stream may read it."""
        self._device.synchronise()
        return dlpack.given(self.address, self._known(), self.shape, self)

    def _known(self) -> DType:
        if is_half(self.dtype) and self.dtype != np.dtype("float16"):
            raise DTypeError(
                f"other libraries require a dtype of NumPy's, got {self.dtype}; cast "
                f"the output with .astype{at(here())}"
            )
        return self.dtype


def new_array(device: Device, dtype: DType, shape: tuple[int, ...]) -> DeviceArray:
    """Return an array with memory of its own, freed with it."""
    address = device.allocate(max(math.prod(shape) * dtype.itemsize, 1))
    array = DeviceArray(device, address, dtype, shape)
    weakref.finalize(array, device.free, address)
    return array


def seen_on(device: Device, name: str, value: Any) -> Any:
    """Return `value` for input `name`: a DeviceArray if on a GPU, else as it is."""
    if isinstance(value, DeviceArray | np.ndarray):
        return value
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _by_interface(device, name, value, interface)
    where = getattr(value, "__dlpack_device__", None)
    if where is None or where()[0] != dlpack.CUDA:
        return value
    found = dlpack.taken(value.__dlpack__())
    if found.dtype is None:
        found.release()
        raise DTypeError(
            f"input {name!r} requires a dtype of NumPy's, got another of "
            f"{type(value).__name__}; cast it first{at(here())}"
        )
    _require_c_order(name, found.shape, found.strides, 1)
    array = DeviceArray(device, found.address, found.dtype, found.shape, value)
    weakref.finalize(array, found.release)
    return array


def _by_interface(
    device: Device, name: str, value: Any, interface: dict[str, Any]
) -> DeviceArray:
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    _require_c_order(name, shape, interface.get("strides"), dtype.itemsize)
    stream = interface.get("stream")
    if stream is not None:
        device.wait_for(stream)
    return DeviceArray(device, interface["data"][0], dtype, shape, value)


def _require_c_order(
    name: str, shape: tuple[int, ...], strides: tuple[int, ...] | None, size: int
) -> None:
    """Raise GraphError for strides other than those of C order."""
    expected = size
    for extent, stride in reversed(list(zip(shape, strides or (), strict=False))):
        if extent > 1 and stride != expected:
            raise GraphError(
                f"input {name!r} requires a contiguous array on the GPU, got strides "
                f"{strides}; make it contiguous there{at(here())}"
            )
        expected *= extent
