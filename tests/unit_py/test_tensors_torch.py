"""Tensor methods with real torch tensors."""

from __future__ import annotations

from typing import Any

import pytest
from fake_store import FakeStore
from mooncake.store.rs.structured_object_store import MooncakeBundleTransfer
from tensor_store import FULL, Buffer, TensorStore, shard, tp

torch = pytest.importorskip("torch", reason="torch is not installed (scripts/test --torch)")
pytestmark = pytest.mark.torch

NAMES = (
    *("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("int64", "uint64", "bool", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
)


def sample(name: str, *shape: int) -> Any:
    """A tensor with other bytes in each element."""
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    count = 1
    for dim in shape:
        count *= dim
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.arange(count * size, dtype=torch.int64) % (2 if name == "bool" else 100)
    return raw.to(torch.uint8).view(dtype).reshape(shape)


def bits(tensor: Any) -> list[int]:
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).tolist()
    return [int(value) for value in raw]


def same(got: Any, wanted: Any) -> None:
    assert isinstance(got, torch.Tensor)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    assert bits(got) == bits(wanted)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(4, 6), (), (1,)])
def test_every_type_comes_back_with_its_bits(name: str, shape: tuple[int, ...]) -> None:
    store, value = TensorStore(), sample(name, *shape)
    assert store.put_tensor("k", value) == 0
    same(store.get_tensor("k"), value)
    into = torch.zeros_like(value)
    assert store.get_tensor("k", tensor=into) is into
    same(into, value)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.parametrize(("writers", "readers"), [(4, 8), (8, 4), (2, 2), (2, 16)])
@pytest.mark.parametrize("dim", [0, 1])
def test_any_ratio_works_with_torch(name: str, writers: int, readers: int, dim: int) -> None:
    store, full = TensorStore(), sample(name, 16, 16)
    for rank in range(writers):
        store.put_tensor_with_parallelism("w", full, parallelism=tp(rank, writers, dim))
    for rank in range(readers):
        wanted = full.chunk(readers, dim)[rank].contiguous()
        same(store.get_tensor_with_parallelism("w", target=shard(rank, readers, dim)), wanted)
        into = torch.empty_like(wanted)
        store.get_tensor_with_parallelism("w", target=shard(rank, readers, dim), tensor=into)
        same(into, wanted)
    same(store.get_tensor_with_parallelism("w", target=FULL), full)


def test_views_gradients_and_strides_are_stored_by_value() -> None:
    store, full = TensorStore(), torch.arange(12.0, requires_grad=True).reshape(3, 4)
    store.put_tensor("t", full.t())
    same(store.get_tensor("t"), full.detach().t().contiguous())
    out = torch.zeros(4, 3).t()
    store.put_tensor("f", full)
    assert store.get_tensor("f", tensor=out) is out
    assert torch.equal(out, full.detach())


def test_a_result_owns_its_memory_and_is_writable() -> None:
    store = TensorStore()
    store.put_tensor("k", torch.ones(3))
    got = store.get_tensor("k")
    store.data.clear()
    got += 1
    assert got.tolist() == [2, 2, 2]


def test_into_results_describe_the_tensor() -> None:
    store, value = TensorStore(), sample("bfloat16", 4, 2)
    store.put_tensor("k", value)
    buffer = Buffer(store, 400)
    result = store.get_tensor_into("k", buffer.ptr, 400)
    assert result is not None
    assert (result.dtype, result.shape, result.data_bytes) == (12, (4, 2), 16)
    start = result.data_ptr - buffer.ptr
    assert buffer.array[start : start + 16].tolist() == bits(value)


def test_the_framework_can_be_chosen() -> None:
    store = TensorStore()
    store.put_tensor("k", torch.ones(3))
    assert isinstance(store.get_tensor("k"), torch.Tensor)
    assert not isinstance(store.get_tensor("k", framework="numpy"), torch.Tensor)


def test_wrong_destinations_and_types_are_refused() -> None:
    store = TensorStore()
    store.put_tensor("k", torch.ones(3))
    for bad in (torch.ones(4), torch.ones(3, dtype=torch.float64)):
        with pytest.raises(ValueError, match="destination"):
            store.get_tensor("k", tensor=bad)
    with pytest.raises(ValueError, match="complex64"):
        store.put_tensor("c", torch.ones(2, dtype=torch.complex64))


def test_nested_dicts_keep_tensors() -> None:
    transfer = MooncakeBundleTransfer(FakeStore(), "rl")
    value = {"ids": sample("int64", 2, 3), "logp": sample("bfloat16", 4), "empty": torch.zeros(0)}
    got = transfer.get(transfer.put(value))
    for name, tensor in value.items():
        same(got[name], tensor)


def test_a_negated_view_is_stored_with_its_sign() -> None:
    store = TensorStore()
    view = torch.complex(torch.arange(4.0), torch.arange(4.0) + 1).conj().imag[:1]
    assert view.is_contiguous() and view.is_neg()
    store.put_tensor("k", view)
    assert store.get_tensor("k").tolist() == [-1.0]


def test_a_parameter_is_a_destination() -> None:
    store = TensorStore()
    store.put_tensor("k", torch.ones(3))
    parameter = torch.nn.Parameter(torch.zeros(3))
    assert store.get_tensor("k", tensor=parameter) is parameter
    assert parameter.tolist() == [1.0, 1.0, 1.0] and parameter.requires_grad
