"""The stored bytes of tensors and manifests, and what hostile ones do."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mooncake.store._tensor_format import (
    DTYPES,
    AxisRecord,
    Manifest,
    TensorFormatError,
    TensorHeader,
    dtype_of,
)
from mooncake.store._tensor_parallel import (
    ParallelAxis,
    ReadTarget,
    TensorParallelism,
    axis_records,
    shard_key,
    target_of,
    writer_key,
    writer_of,
)


def header(**changes: object) -> bytearray:
    """A valid object of 2 x 3 float32, with fields overwritten at offsets."""
    raw = bytearray(TensorHeader(dtype_of(0), (2, 3), (2, 3)).pack() + bytes(24))
    for name, value in changes.items():
        form, offset = name.rsplit("_", 1)
        struct.pack_into("<" + form, raw, int(offset), value)
    return raw


def test_the_header_has_the_documented_offsets() -> None:
    axes = (AxisRecord(1, 2, 4, 1, 7, 9),)
    raw = TensorHeader(dtype_of(12), (8, 6), (8, 2), 1, axes).pack()
    assert len(raw) == 304
    assert struct.unpack_from("<IHHiiIIQQ", raw) == (0x4D4F4F4E, 1, 304, 12, 2, 1, 0, 304, 32)
    assert struct.unpack_from("<8q", raw, 40) == (8, 6, 0, 0, 0, 0, 0, 0)
    assert struct.unpack_from("<8q", raw, 104) == (8, 2, 0, 0, 0, 0, 0, 0)
    assert struct.unpack_from("<II", raw, 168) == (1, 0)
    assert struct.unpack_from("<6iq", raw, 176) == (1, 0, 2, 4, 1, 7, 9)
    assert TensorHeader.parse(raw, 336).axes == axes


def test_the_manifest_has_88_bytes_in_the_documented_order() -> None:
    raw = Manifest(dtype_of(2), 1, 4, (2, 8)).pack()
    assert struct.unpack("<IHHiiii8q", raw)[:9] == (0x4D4F4F4E, 1, 0, 2, 2, 1, 4, 2, 8)
    assert Manifest.parse(raw) == Manifest(dtype_of(2), 1, 4, (2, 8))


def test_dtype_codes_are_the_documented_ones() -> None:
    assert [dtype.name for dtype in DTYPES] == [
        *("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
        *("int64", "uint64", "bool", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    ]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"I_0": 1}, "magic"),
        ({"H_4": 2}, "version"),
        ({"H_6": 303}, "header_size"),
        ({"i_8": 15}, "dtype"),
        ({"i_8": -1}, "dtype"),
        ({"i_12": 9}, "ndim"),
        ({"i_12": -1}, "ndim"),
        ({"I_16": 2}, "layout_kind"),
        ({"Q_24": 303}, "data_offset"),
        ({"Q_24": 305}, "ends at byte"),
        ({"Q_24": 2**64 - 1}, "ends at byte"),
        ({"Q_32": 23}, "data_bytes"),
        ({"Q_32": 2**64 - 1}, "data_bytes"),
        ({"q_40": -1}, "global shape"),
        ({"q_40": 2**62}, "shape|data_bytes"),
        ({"q_40": 2**63 - 1, "q_48": 2**63 - 1}, "shape"),
        ({"I_168": 5}, "axis_count"),
        ({"I_168": 1, "i_176": 4}, "axis kind"),
        ({"I_168": 1}, "shard_count"),
        ({"I_168": 1, "i_188": 2, "i_184": 2}, "shard_rank"),
        ({"I_168": 1, "i_188": 2, "i_184": -1}, "shard_rank"),
    ],
)
def test_a_bad_header_field_is_named(change: dict[str, object], field: str) -> None:
    raw = header(**change)
    with pytest.raises(TensorFormatError, match=field):
        TensorHeader.parse(raw, len(raw))


def test_a_short_object_is_refused() -> None:
    with pytest.raises(TensorFormatError, match="303 bytes are too short"):
        TensorHeader.parse(bytes(303), 303)
    with pytest.raises(TensorFormatError, match="ends at byte 328 of an object of 327"):
        TensorHeader.parse(header(), 327)


@pytest.mark.parametrize("change", [{"H_6": 0}, {"I_16": 1, "q_104": 2, "q_112": 3}])
def test_header_size_zero_and_shards_without_axes_are_read(change: dict[str, object]) -> None:
    raw = header(**change)
    assert TensorHeader.parse(raw, len(raw)).shape == (2, 3)


@given(st.binary(min_size=304, max_size=400), st.integers(0, 2**63))
def test_any_bytes_are_a_header_or_a_format_error(raw: bytes, size: int) -> None:
    for tail in (raw, bytes(header())[:8] + raw[8:], bytes(header())[:176] + raw[176:]):
        try:
            parsed = TensorHeader.parse(tail, size)
        except TensorFormatError:
            continue
        assert parsed.total_bytes <= size


@given(st.binary(min_size=88, max_size=88))
def test_any_bytes_are_a_manifest_or_a_format_error(raw: bytes) -> None:
    good = Manifest(dtype_of(0), 0, 2, (4,)).pack()
    for tail in (raw, good[:8] + raw[8:], good[:24] + raw[24:]):
        try:
            parsed = Manifest.parse(tail)
        except TensorFormatError:
            continue
        assert parsed.shape[parsed.split_dim] % parsed.count == 0


@pytest.mark.parametrize(
    ("offset", "value", "field"),
    [(20, 0, "shard_count"), (20, 1025, "shard_count"), (20, 3, "shard_count"), (16, 1, "split")],
)
def test_a_bad_manifest_is_refused(offset: int, value: int, field: str) -> None:
    raw = bytearray(Manifest(dtype_of(0), 0, 2, (4,)).pack())
    struct.pack_into("<i", raw, offset, value)
    with pytest.raises(TensorFormatError, match=field):
        Manifest.parse(bytes(raw))


# --- Axes and keys --------------------------------------------------------------------------


def test_both_spellings_of_axes_and_targets_mean_the_same() -> None:
    axis = ParallelAxis()
    axis.kind, axis.rank, axis.size, axis.split_dim = "tp", 1, 4, 1
    parallelism = TensorParallelism()
    parallelism.axes.append(axis)
    target = ReadTarget()
    target.mode, target.parallelism = "shard", parallelism
    assert target_of(target) == target_of(
        ReadTarget(1, parallelism=TensorParallelism([ParallelAxis(1, 1, 4, split_dim=1)]))
    )
    assert "rank=1" in repr(axis)
    assert "tp" in repr(axis)


def test_keys_name_axes_in_fixed_order() -> None:
    axes = [ParallelAxis("pp", 0, 2), ParallelAxis("tp", 1, 4, split_dim=1), ParallelAxis(0, 0, 2)]
    assert shard_key("w", axis_records(axes)) == "w__dp_0of2__tp_1of4_sd1__pp_0of2"
    assert shard_key("w", axis_records([axes[1]])) == "w_tp_1"
    assert shard_key("w", axis_records([axes[0]])) == "w__pp_0of2"
    assert writer_key("w", writer_of((1, 4, 0))) == "w__writer_1of4_sd0"


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        ([], "1 to 4 axes"),
        ([ParallelAxis(kind, 0, 1) for kind in ("dp", "tp", "ep", "pp", "tp")], "1 to 4 axes"),
        ([ParallelAxis("tp", 0, 1), ParallelAxis("tp", 0, 1)], "repeated"),
        ([ParallelAxis("xp", 0, 1)], "axis kind 'xp' is unknown; allowed: 'dp'"),
        ([ParallelAxis(4, 0, 1)], "axis kind 4"),
        ([ParallelAxis(True, 0, 1)], "axis kind True"),
        ([ParallelAxis("tp", 0, 0)], "size must be positive"),
        ([ParallelAxis("tp", 2, 2)], r"rank 2 is outside \[0, 2\)"),
        ([ParallelAxis("tp", -1, 2)], "rank -1"),
        ([ParallelAxis("tp", 0, 2, split_dim=-1)], "split_dim"),
    ],
)
def test_bad_axes_are_refused_when_used(axes: list[ParallelAxis], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        axis_records(TensorParallelism(axes))


@pytest.mark.parametrize("mode", [3, -1, "half", True])
def test_bad_modes_are_refused(mode: object) -> None:
    with pytest.raises(ValueError, match="read mode"):
        target_of(ReadTarget(mode))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="SHARD needs a parallelism"):
        target_of(ReadTarget("shard"))
