"""Types and constants of the structured object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

DEFAULT_BUNDLE_CHUNK_BYTES = 512 * 1024 * 1024
AUTO_PARALLEL_MIN_BYTES = 4 * 1024 * 1024 * 1024
AUTO_PARALLEL_MIN_CHUNKS = 8
MISSING_OBJECT_ERROR = -704
DUPLICATE_REGISTRATION_ERROR = -600
STRUCTURED_FIELD_SPECS_KEY = "__mooncake_structured_fields__"

PUT_MODES = ("auto", "batch", "parallel")
COPY_MODES = ("auto", "zero_copy", "copy")


@dataclass(frozen=True)
class TransferProgress:
    """What a progress callback is told after each step of a transfer.

    Attributes:
        stage: "put" or "get".
        name: member (or "meta") that was moved last; several members' last one.
        done_bytes, total_bytes: payload bytes of the whole call.
    """

    stage: str
    name: str
    done_bytes: int
    total_bytes: int


Progress = Callable[[TransferProgress], None]


@dataclass(frozen=True)
class BundleTransferPolicy:
    """How payloads are written; checked when used.

    Args:
        max_inflight_put: groups of chunks written at once, >= 1.
        put_mode: "batch" one after the other, "parallel" over threads, "auto" parallel for at
            least 8 chunks and 4 GiB when ``max_inflight_put`` allows it.
        copy_mode: "auto" and "zero_copy" read the caller's memory in place; "copy" stages each
            member in memory of our own first.

    Example:
        >>> BundleTransferPolicy(max_inflight_put=4, put_mode="parallel").put_mode
        'parallel'
    """

    max_inflight_put: int = 1
    put_mode: str = "auto"
    copy_mode: str = "auto"


@dataclass(frozen=True)
class FieldSchema:
    """What a field of a nested dict has to be; checked before anything is written.

    Args:
        name: the field's path, names joined by "/": "batch/ids" in a dataproto.
        dtype: element type of an array or a tensor, a name such as "int64" or an object with one;
            None: any, and no array is needed.
        shape: lengths of its dimensions, None for one of any length; None: any shape.
        required: whether a value without this field is refused.

    Example:
        >>> FieldSchema("batch/ids", "int64", (None, 512)).required
        True
    """

    name: str
    dtype: Any = None
    shape: Sequence[int | None] | None = None
    required: bool = True


@dataclass(frozen=True)
class RemoteBundleRef:
    """Names one stored bundle; JSON-able through ``export_ref``."""

    manifest_key: str
    manifest: dict[str, Any]


@dataclass(frozen=True)
class StructuredObjectPayload:
    """A structured object to write.

    Args:
        metadata: JSON-able mapping; None means empty.
        buffers: member name -> bytes-like object or ndarray.

    Raises:
        TypeError: ``buffers`` is None.

    Example:
        >>> StructuredObjectPayload(buffers={"ids": b"x"}).metadata
        {}
    """

    metadata: Mapping[str, Any] | None = None
    buffers: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.buffers is None:
            raise TypeError("StructuredObjectPayload: buffers must be a mapping, not None")
        if self.metadata is None:
            object.__setattr__(self, "metadata", {})


@dataclass(frozen=True)
class StructuredObjectResult:
    """What a read gives: the metadata (with layout and field specs) and the members by name."""

    metadata: dict[str, Any]
    objects: dict[str, Any]


@dataclass(frozen=True)
class StructuredMemberSlice:
    """Rows ``start:end:step`` of an ndarray member, with Python's clamping; ``axis`` must be 0."""

    axis: int
    start: int | None
    end: int | None
    step: int = 1


@dataclass(frozen=True)
class StructuredObjectReadSpec:
    """What to read of a structured object: some members, some of their rows.

    Example:
        >>> spec = StructuredObjectReadSpec(ref)                    # doctest: +SKIP
        >>> spec = spec.select_members(["tokens"]).slice_member("tokens", 0, 2, 5)  # doctest: +SKIP
    """

    ref: Any
    member_names: tuple[str, ...] | None = None
    member_slices: tuple[tuple[str, StructuredMemberSlice], ...] = field(default=())

    def select_members(self, names: Iterable[str] | None) -> StructuredObjectReadSpec:
        """The same spec for these members only; None means all."""
        if isinstance(names, str):
            raise TypeError("select_members needs a list of names, not one string")
        chosen = None if names is None else tuple(dict.fromkeys(names))
        return replace(self, member_names=chosen)

    def slice_member(
        self, name: str, axis: int, start: int | None, end: int | None, step: int = 1
    ) -> StructuredObjectReadSpec:
        """The same spec with rows of one member; replaces an earlier slice of it.

        Raises:
            ValueError: an axis other than 0, or a step below 1.
        """
        if axis != 0:
            raise ValueError(f"member {name!r}: only axis=0 can be sliced, not axis={axis}")
        if step <= 0:
            raise ValueError(f"member {name!r}: step must be positive, not {step}")
        others = tuple(item for item in self.member_slices if item[0] != name)
        chosen = StructuredMemberSlice(axis, start, end, step)
        return replace(self, member_slices=(*others, (name, chosen)))

    def member_slice(self, name: str) -> StructuredMemberSlice | None:
        """The slice of one member, if it has one."""
        return dict(self.member_slices).get(name)


@dataclass(frozen=True)
class Chunk:
    """One stored value of a payload."""

    key: str
    size: int


@dataclass(frozen=True)
class Payload:
    """One member (or the metadata): its chunks in order."""

    key: str
    size: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class Manifest:
    """A checked manifest."""

    object_id: str
    meta: Payload
    buffers: dict[str, Payload]

    def keys(self) -> list[str]:
        """Keys of every chunk."""
        return [
            chunk.key for payload in [self.meta, *self.buffers.values()] for chunk in payload.chunks
        ]


class Meter:
    """Adds up bytes and tells the callback."""

    def __init__(self, progress: Progress | None, stage: str, total: int) -> None:
        self._progress, self._stage, self._total = progress, stage, total
        self._done = 0

    def add(self, name: str, size: int) -> None:
        """``size`` more bytes are through."""
        self._done += size
        if self._progress is not None:
            self._progress(TransferProgress(self._stage, name, self._done, self._total))


def succeeded(status: Any) -> bool:
    """Whether a status says success: 0 or nothing."""
    return status is None or (not isinstance(status, Sequence) and int(status) == 0)
