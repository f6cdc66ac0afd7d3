"""Tensors of any library as flat bytes in host memory, and back."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._numpy import np
from ._tensor_format import (
    DTYPE_BY_NAME,
    NDIM_MAX,
    AxisRecord,
    DType,
    byte_count,
)
from ._tensor_parallel import shard_shape

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

_UNSIGNED = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class HostTensor:
    """Row-major elements in host memory; ``data`` keeps their owner alive."""

    data: Bytes
    dtype: DType
    shape: tuple[int, ...]


class _Memory:
    """Lets NumPy look at an address; the array keeps this object, which keeps the owner."""

    def __init__(self, address: int, size: int, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, False),
        }


def memory_view(address: int, size: int, owner: Any = None) -> Bytes:
    """``size`` bytes at ``address`` as an array, without a copy.

    Example:
        >>> memory_view(0, 0).size
        0
    """
    if size == 0:
        return np.empty(0, dtype=np.uint8)
    view: Bytes = np.asarray(_Memory(address, size, owner))
    return view


def read_memory(address: int, size: int) -> bytes:
    """Copy at most 4096 bytes from an address that a caller gave; a bad one does not fault.

    Raises:
        ValueError: the memory cannot be read.

    Example:
        >>> read_memory(0, 8)
        Traceback (most recent call last):
        ValueError: 8 bytes at 0x0 cannot be read
    """
    out, into = os.pipe()
    try:
        # The kernel answers EFAULT where a load of ours would kill the process.
        if _libc.write(into, ctypes.c_void_p(address), ctypes.c_size_t(size)) != size:
            raise ValueError(f"{size} bytes at 0x{address:x} cannot be read")
        return os.read(out, size)
    finally:
        os.close(out)
        os.close(into)


def is_number(value: Any) -> bool:
    """Whether a value is one whole number, as an address is, and no array of one.

    Example:
        >>> is_number(np.uint64(8)), is_number(np.array(8))
        (True, False)
    """
    if isinstance(value, (int, np.integer)):
        return True
    arrays = ("data_ptr", "__dlpack__", "__array_interface__", "__array__")
    return hasattr(value, "__index__") and not any(hasattr(value, name) for name in arrays)


def to_host(key: str, tensor: Any) -> HostTensor:
    """Contiguous host bytes of a tensor; a copy only when it is elsewhere or not contiguous.

    Args:
        key: for the error text.
        tensor: torch tensor (or its data_ptr/numel/element_size/shape/dtype duck), NumPy array,
            DLPack object in host memory, or another buffer-protocol object.

    Raises:
        TypeError: not a tensor.
        ValueError: an element type or a number of dimensions that the format lacks.

    Example:
        >>> to_host("k", np.zeros((2, 3), np.int16)).shape
        (2, 3)
    """
    if not isinstance(tensor, np.ndarray) and hasattr(tensor, "data_ptr"):
        host = _from_torch(key, tensor)
    else:
        host = _from_array(key, _as_array(key, tensor))
    if len(host.shape) > NDIM_MAX:
        raise ValueError(f"{key!r}: {len(host.shape)} dimensions, at most {NDIM_MAX} are possible")
    return host


def _from_torch(key: str, tensor: Any) -> HostTensor:
    dtype = _dtype_named(key, str(tensor.dtype).rsplit(".", 1)[-1])
    # A view may only say "conjugated" or "negated" of memory that holds something else.
    for step in ("detach", "resolve_conj", "resolve_neg"):
        if hasattr(tensor, step):
            tensor = getattr(tensor, step)()
    if not _on_host(tensor):
        tensor = tensor.cpu()
    if not tensor.is_contiguous():
        if not hasattr(tensor, "contiguous"):
            raise ValueError(f"{key!r}: the tensor is not contiguous")
        tensor = tensor.contiguous()
    size = int(tensor.numel()) * int(tensor.element_size())
    shape = tuple(int(dim) for dim in tensor.shape)
    if size != byte_count(dtype, shape):
        raise ValueError(f"{key!r}: {size} bytes do not match {dtype.name} of shape {shape}")
    return HostTensor(memory_view(int(tensor.data_ptr()), size, tensor), dtype, shape)


def _on_host(tensor: Any) -> bool:
    return bool(getattr(getattr(tensor, "device", None), "type", "cpu") == "cpu")


def _is_plain_memory(tensor: Any) -> bool:
    return hasattr(tensor, "data_ptr") and bool(tensor.is_contiguous()) and _on_host(tensor)


def _as_array(key: str, tensor: Any) -> npt.NDArray[Any]:
    if isinstance(tensor, np.ma.MaskedArray):
        raise TypeError(f"{key!r}: a masked array would lose its mask")
    if isinstance(tensor, (np.ndarray, np.generic)):
        return np.asarray(tensor)
    if hasattr(tensor, "__dlpack__"):
        try:
            return np.from_dlpack(tensor)
        except (BufferError, RuntimeError, TypeError) as error:
            # NumPy's DLPack has no bfloat16; the library's own conversion may.
            if hasattr(tensor, "__array__"):
                return _own_conversion(key, tensor)
            raise ValueError(f"{key!r}: the DLPack tensor is not usable: {error}") from error
    try:
        return np.asarray(memoryview(tensor))
    except TypeError as error:
        raise TypeError(
            f"{key!r}: a tensor, an array or a buffer is needed, not {type(tensor).__name__}"
        ) from error


def _own_conversion(key: str, tensor: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(tensor)
    except Exception as error:
        raise ValueError(f"{key!r}: the tensor is not in host memory: {error}") from error


def _from_array(key: str, array: npt.NDArray[Any]) -> HostTensor:
    dtype = _dtype_named(key, array.dtype.name)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    flat: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return HostTensor(flat, dtype, array.shape)


def _dtype_named(key: str, name: str) -> DType:
    dtype = DTYPE_BY_NAME.get(name)
    if dtype is None:
        raise ValueError(
            f"{key!r}: element type {name} is not supported; possible: {', '.join(DTYPE_BY_NAME)}"
        )
    return dtype


def cut(key: str, whole: HostTensor, axis: AxisRecord) -> HostTensor:
    """Shard ``axis.rank`` of ``axis.count`` along ``axis.split_dim``, contiguous.

    Raises:
        ValueError: as ``shard_shape``.

    Example:
        >>> whole = to_host("k", np.arange(4, dtype=np.uint8))
        >>> cut("k", whole, AxisRecord(1, 1, 2)).data.tolist()
        [2, 3]
    """
    shape = shard_shape(key, whole.shape, axis)
    if axis.count == 1:
        return whole
    length = shape[axis.split_dim]
    elements = whole.data.view(_UNSIGNED[whole.dtype.itemsize]).reshape(whole.shape)
    index = [slice(None)] * len(shape)
    index[axis.split_dim] = slice(axis.rank * length, (axis.rank + 1) * length)
    part = np.ascontiguousarray(elements[tuple(index)])
    return HostTensor(part.reshape(-1).view(np.uint8), whole.dtype, shape)


@functools.cache
def torch_present() -> bool:
    """Whether torch can be imported; it is not imported for that."""
    return importlib.util.find_spec("torch") is not None


def check_framework(framework: str | None) -> str:
    """ "torch" or "numpy"; None means torch where it is installed.

    Raises:
        ValueError: another name, or torch that is not installed.

    Example:
        >>> check_framework("numpy")
        'numpy'
    """
    if framework is None:
        return "torch" if torch_present() else "numpy"
    if framework not in ("torch", "numpy"):
        raise ValueError(f"framework must be 'torch' or 'numpy', not {framework!r}")
    if framework == "torch" and not torch_present():
        raise ValueError("framework='torch' needs torch, which is not installed")
    return framework


def to_user(host: HostTensor, framework: str) -> Any:
    """The tensor object for a caller, over ``host.data`` without a copy.

    NumPy has no bfloat16 and no float8: with ml_dtypes installed its types are used, without it
    the raw bits come as uint16 and uint8.

    Example:
        >>> to_user(to_host("k", np.float32([1, 2])), "numpy").tolist()
        [1.0, 2.0]
    """
    if framework == "numpy":
        return host.data.view(numpy_dtype(host.dtype)).reshape(host.shape)
    torch = importlib.import_module("torch")
    dtype = getattr(torch, host.dtype.name, None)
    if dtype is None:
        raise ValueError(f"this torch has no {host.dtype.name}; use framework='numpy'")
    if host.data.size == 0:
        return torch.empty(host.shape, dtype=dtype)
    return torch.from_numpy(host.data).view(dtype).reshape(host.shape)


def numpy_dtype(dtype: DType) -> npt.DTypeLike:
    try:
        return np.dtype(dtype.name)
    except TypeError:
        pass
    if importlib.util.find_spec("ml_dtypes") is not None:
        named: npt.DTypeLike = getattr(importlib.import_module("ml_dtypes"), dtype.name)
        return named
    return np.dtype(_UNSIGNED[dtype.itemsize])


def check_destination(key: str, destination: Any, dtype: DType, shape: Sequence[int]) -> None:
    """Refuse a destination that the tensor does not fit exactly, before anything is copied.

    Raises:
        ValueError: shape or element type differ, or it is read-only; names the key.
    """
    if tuple(destination.shape) != tuple(shape):
        raise ValueError(
            f"{key!r}: the destination has shape {tuple(destination.shape)}, "
            f"the tensor {tuple(shape)}"
        )
    name = str(getattr(destination.dtype, "name", destination.dtype)).rsplit(".", 1)[-1]
    raw = isinstance(destination, np.ndarray) and name == f"uint{8 * dtype.itemsize}"
    if name != dtype.name and not (raw and dtype.code >= DTYPE_BY_NAME["bfloat16"].code):
        raise ValueError(f"{key!r}: the destination has type {name}, the tensor {dtype.name}")
    if isinstance(destination, np.ndarray) and not destination.flags.writeable:
        raise ValueError(f"{key!r}: the destination is read-only")


def copy_out(key: str, host: HostTensor, destination: Any) -> Any:
    """Copy a tensor into the caller's tensor, of any strides and device, and return that.

    Raises:
        ValueError: as ``check_destination``.

    Example:
        >>> copy_out("k", to_host("k", np.int8([5])), np.zeros(1, np.int8)).tolist()
        [5]
    """
    check_destination(key, destination, host.dtype, host.shape)
    if isinstance(destination, np.ndarray):
        destination[...] = host.data.view(destination.dtype).reshape(host.shape)
    elif hasattr(destination, "copy_"):
        # Autograd forbids to write into a parameter itself.
        plain = destination.detach() if hasattr(destination, "detach") else destination
        plain.copy_(to_user(host, "torch"))
    elif _is_plain_memory(destination):
        memory_view(int(destination.data_ptr()), host.data.size)[...] = host.data
    else:
        raise TypeError(f"{key!r}: cannot write into a {type(destination).__name__}")
    return destination
