"""DLPack: exchange of GPU memory between libraries.

A capsule named "dltensor" holds a DLManagedTensor: where elements lie, their type,
shape and strides, and a function that gives the memory back, which who took the capsule
calls once. Taking it renames the capsule to "used_dltensor".
Source: https://dmlc.github.io/dlpack/latest (the structures of version 0, which all
producers give unless they are asked for another).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from staticgrad.ir.types import DType

CUDA = 2
"""The kind of device, kDLCUDA."""

_KINDS = {0: "int", 1: "uint", 2: "float", 6: "bool"}
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_NAME, _USED = b"dltensor", b"used_dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
# By address: a capsule that is being destroyed must not become a Python object again.
_BY_ADDRESS = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_pointer = _BY_ADDRESS(("PyCapsule_GetPointer", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)


@dataclass(frozen=True, slots=True)
class Taken:
    """Contents of a capsule; strides are in elements, None for C order.

    `release` gives the memory back.
    """

    address: int
    dtype: DType | None
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    release: Callable[[], None]


def taken(capsule: Any) -> Taken:
    """Take the tensor out of a capsule, which cannot be used again."""
    place = _api.PyCapsule_GetPointer(capsule, _NAME)
    managed = _Managed.from_address(place)
    tensor = managed.tensor
    _api.PyCapsule_SetName(capsule, _USED)
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = None
    if tensor.strides:
        strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim))

    def release() -> None:
        if managed.deleter:
            _DELETER(managed.deleter)(place)

    address = (tensor.data or 0) + tensor.byte_offset
    return Taken(address, _dtype(tensor), shape, strides, release)


def _dtype(tensor: _Tensor) -> DType | None:
    kind = _KINDS.get(tensor.code)
    if kind is None or tensor.lanes != 1:
        return None
    return np.dtype("bool" if kind == "bool" else f"{kind}{tensor.bits}")


def given(address: int, dtype: DType, shape: tuple[int, ...], owner: object) -> Any:
    """Return a capsule of memory in C order that `owner` keeps alive."""
    record = _Managed()
    tensor = record.tensor
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    tensor.data, tensor.device_type, tensor.device = address, CUDA, 0
    tensor.ndim, tensor.lanes = len(shape), 1
    tensor.code, tensor.bits = _CODES[dtype.kind], 8 * dtype.itemsize
    tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    record.deleter = ctypes.cast(_forget_native, ctypes.c_void_p)
    place = ctypes.addressof(record)
    _lent[place] = (record, sizes, owner)
    end = ctypes.cast(_destroyed_native, ctypes.c_void_p)
    return _api.PyCapsule_New(place, _NAME, end)


_lent: dict[int, tuple[object, ...]] = {}
"""Owners of lent memory, by the address of the capsule's tensor."""


def _forget(place: int) -> None:
    _lent.pop(place, None)


def _destroyed(capsule: int) -> None:
    """Free the contents of a capsule that nobody took."""
    if _is_valid(capsule, _NAME):
        _forget(_pointer(capsule, _NAME))


_forget_native, _destroyed_native = _DELETER(_forget), _DELETER(_destroyed)
for _native in (_forget_native, _destroyed_native):
    # never freed: others may give memory back when this module is gone already
    _api.Py_IncRef(ctypes.py_object(_native))
