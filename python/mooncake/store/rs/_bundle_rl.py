"""Calls that RL frameworks make on a bundle transfer: nested dicts, references, results.

A dict is stored as one structured object: arrays, tensors and bytes become members, everything
else goes into the metadata as JSON. There is no pickle: what JSON cannot say is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from .._numpy import np
from .._tensor_format import DTYPE_BY_NAME
from .._tensor_host import HostTensor, check_framework, to_host, to_user
from . import _bundle_manifest as manifests
from ._bundle_read import describe, named_dtype
from ._bundle_types import (
    FieldSchema,
    Progress,
    RemoteBundleRef,
    StructuredObjectPayload,
    StructuredObjectReadSpec,
    StructuredObjectResult,
)

_DEPTH_MAX = 64
_SCALAR_BYTES_MAX = 256
_TREE = "tree"
_ABSENT = object()
_TYPES = ("dict", "dataproto")
_TYPE_NAMES = "'dict' or 'dataproto'"
_DATAPROTO_PARTS = ("batch", "non_tensor_batch", "meta_info")


class RlMethods:
    """Nested dicts and references, on top of the structured object calls."""

    if TYPE_CHECKING:
        key_prefix: str

        def put_structured_object(
            self, payload: StructuredObjectPayload, *args: Any, **kwargs: Any
        ) -> RemoteBundleRef: ...
        def read_spec(self, ref: Any) -> StructuredObjectReadSpec: ...
        def materialize(
            self, spec: StructuredObjectReadSpec, *, progress: Progress | None = None
        ) -> StructuredObjectResult: ...

    def put(
        self,
        value: Any,
        type: str = "dict",
        *,
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: Any = None,
        max_inflight_put: int | None = None,
        progress: Progress | None = None,
    ) -> RemoteBundleRef:
        """Store a nested dict, or an object with ``batch``, ``non_tensor_batch``, ``meta_info``.

        Args:
            value: leaves may be arrays, tensors, bytes, numbers, strings, booleans, None; arrays
                of objects may hold strings and numbers.
            type: "dict", or "dataproto" for an object with the three attributes.
            partition, chunk_bytes, policy, max_inflight_put, progress: as ``put_bundle``.

        Raises:
            TypeError: a leaf that cannot be stored; its path is named.
            ValueError: an unknown type, or nesting deeper than 64.
            RuntimeError: a write failed; nothing is left.

        Example:
            >>> ref = transfer.put({"tokens": array, "step": 7})    # doctest: +SKIP
        """
        if type == "dataproto":
            value = _parts(value)
        elif type != "dict":
            raise ValueError(f"type must be {_TYPE_NAMES}, not {type!r}")
        if not isinstance(value, Mapping):
            raise TypeError(f"a dict is needed, not {value.__class__.__name__}")
        members: dict[str, Any] = {}
        tree = _encode(value, members, "", 0)
        payload = StructuredObjectPayload({"layout": type, _TREE: tree}, members)
        return self.put_structured_object(
            payload, partition, chunk_bytes, policy, max_inflight_put, progress=progress
        )

    def put_dataproto(
        self,
        value: Any,
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: Any = None,
        max_inflight_put: int | None = None,
        *,
        schema: Iterable[FieldSchema] | None = None,
        progress: Progress | None = None,
    ) -> RemoteBundleRef:
        """``put`` of an object with ``batch``, ``non_tensor_batch`` and ``meta_info``.

        Args:
            schema: what its fields have to be, if given.
            partition, chunk_bytes, policy, max_inflight_put, progress: as ``put_bundle``.

        Raises:
            TypeError, ValueError, RuntimeError: as ``put``.
            ValueError: a field that does not fit the schema; named.

        Example:
            >>> ref = transfer.put_dataproto(data, schema=[FieldSchema("batch/ids", "int64")])
        """
        value = _parts(value)
        check_schema(value, schema)
        return self.put(
            SimpleNamespace(**value),
            "dataproto",
            partition=partition,
            chunk_bytes=chunk_bytes,
            policy=policy,
            max_inflight_put=max_inflight_put,
            progress=progress,
        )

    def put_legacy_dict(
        self,
        value: Mapping[Any, Any],
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: Any = None,
        max_inflight_put: int | None = None,
        *,
        schema: Iterable[FieldSchema] | None = None,
        progress: Progress | None = None,
    ) -> RemoteBundleRef:
        """``put`` of a nested dict, under the name that older programs call.

        Args:
            schema: what its fields have to be, if given.
            partition, chunk_bytes, policy, max_inflight_put, progress: as ``put_bundle``.

        Raises:
            TypeError, ValueError, RuntimeError: as ``put``.
            ValueError: a field that does not fit the schema; named.

        Example:
            >>> ref = transfer.put_legacy_dict({"tokens": array})   # doctest: +SKIP
        """
        check_schema(value, schema)
        return self.put(
            value,
            "dict",
            partition=partition,
            chunk_bytes=chunk_bytes,
            policy=policy,
            max_inflight_put=max_inflight_put,
            progress=progress,
        )

    def get(
        self,
        ref: Any,
        type: str | None = None,
        *,
        framework: str | None = None,
        progress: Progress | None = None,
    ) -> dict[Any, Any]:
        """Read what ``put`` stored.

        Args:
            type: the one that was given to ``put``, to be checked; None: either.
            framework: for what was a tensor: "torch" or "numpy"; None: torch where it is installed.

        Returns:
            The nested dict; for "dataproto" a dict of the three parts, from which the framework
            builds its own object. The arrays own their memory.

        Raises:
            KeyError, ValueError, RuntimeError: as ``materialize``.

        Example:
            >>> transfer.get(ref)["step"]                           # doctest: +SKIP
            7
        """
        framework = check_framework(framework)
        if type not in (None, *_TYPES):
            raise ValueError(f"type must be {_TYPE_NAMES}, not {type!r}")
        result = self.materialize(self.read_spec(ref), progress=progress)
        layout = result.metadata["layout"]
        if type is not None and layout != type:
            raise ValueError(f"the object was stored as {layout!r}, not as {type!r}")
        tree = result.metadata.get(_TREE)
        value = _decode(tree, result.objects, framework, 0)
        if not isinstance(value, dict):
            raise ValueError("the object was not stored by put()")
        return value

    def export_ref(self, ref: RemoteBundleRef) -> dict[str, Any]:
        """A reference as a JSON-able dict, to send to another process.

        Example:
            >>> json.dumps(transfer.export_ref(ref))                # doctest: +SKIP
        """
        return {"manifest_key": ref.manifest_key, "manifest": ref.manifest}

    def import_ref(self, exported: Any) -> RemoteBundleRef:
        """The reference in what ``export_ref`` gave, checked; a dict, or its JSON text.

        Raises:
            TypeError, ValueError: not a valid reference under this ``key_prefix``.

        Example:
            >>> ref = transfer.import_ref(received)                 # doctest: +SKIP
        """
        if isinstance(exported, (str, bytes, bytearray)):
            raw = exported.encode() if isinstance(exported, str) else exported
            exported = manifests.load("the reference", raw)
        _, raw_manifest = manifests.ref_parts(exported)
        manifest = manifests.parse(self.key_prefix, raw_manifest)
        key = f"{self.key_prefix}/{manifest.object_id}/manifest"
        if manifests.ref_parts(exported)[0] not in (None, key):
            raise ValueError(f"manifest_key does not match the manifest's {key!r}")
        return RemoteBundleRef(key, manifests.to_json(manifest))

    def release_result(self, result: Any) -> None:
        """Drop the members of a result; their memory is freed when nobody else holds them.

        Example:
            >>> transfer.release_result(result)                     # doctest: +SKIP
        """
        objects = result.objects if isinstance(result, StructuredObjectResult) else result
        objects.clear()


def _parts(value: Any) -> dict[str, dict[str, Any]]:
    return {name: _part(getattr(value, name)) for name in _DATAPROTO_PARTS}


def _part(value: Any) -> Any:
    """A part of a dataproto as a plain dict; tensor dicts have items()."""
    if value is None:
        return {}
    return {str(name): item for name, item in value.items()}


def check_schema(value: Any, schema: Iterable[FieldSchema] | None) -> None:
    """Refuse a nested dict that does not have the fields it should have.

    Raises:
        ValueError: a field that is missing, no array, of another type or shape; with its path.

    Example:
        >>> check_schema({"a": 1}, [FieldSchema("a"), FieldSchema("b", required=False)])
    """
    for field in schema or ():
        at: Any = value
        for name in field.name.split("/"):
            at = at.get(name, _ABSENT) if isinstance(at, Mapping) else _ABSENT
        if at is _ABSENT:
            if field.required:
                raise ValueError(f"field {field.name!r} is missing")
            continue
        if field.dtype is not None:
            wanted, got = _type_name(field.dtype), _type_name(getattr(at, "dtype", None))
            if wanted != got:
                raise ValueError(f"field {field.name!r} has type {got}, not {wanted}")
        if field.shape is not None:
            shape = tuple(getattr(at, "shape", ()))
            good = len(shape) == len(field.shape) and hasattr(at, "shape")
            if not good or any(w not in (None, g) for w, g in zip(field.shape, shape)):
                raise ValueError(f"field {field.name!r} has shape {shape}, not {field.shape}")


def _type_name(dtype: Any) -> str:
    """The name that NumPy and torch types of one kind share."""
    if isinstance(dtype, type):
        dtype = np.dtype(dtype)
    return str(getattr(dtype, "name", dtype)).rsplit(".", 1)[-1]


def _encode(value: Any, members: dict[str, Any], path: str, depth: int) -> Any:
    """The JSON node of a value: [kind, ...]; bulk data goes to ``members``."""
    if depth > _DEPTH_MAX:
        raise ValueError(f"{path or 'the dict'} is nested deeper than {_DEPTH_MAX}")
    if isinstance(value, np.generic):  # Some are also floats or strings of Python.
        return _scalar(value, members, path)
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["value", value]
    if isinstance(value, Mapping):
        items = [
            [_key(name, path), _encode(item, members, f"{path}/{name}", depth + 1)]
            for name, item in value.items()
        ]
        return ["dict", items]
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return [
            kind,
            [_encode(item, members, f"{path}/{at}", depth + 1) for at, item in enumerate(value)],
        ]
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{path}: a masked array cannot be stored: its mask would be lost")
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        nodes = [_encode(item, members, path, depth + 1) for item in value.reshape(-1).tolist()]
        return ["objects", list(value.shape), nodes]
    if isinstance(value, np.ndarray):
        return ["array", _member(members, value)]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ["bytes", _member(members, bytes(value))]
    if hasattr(value, "data_ptr") or hasattr(value, "__dlpack__"):
        host = to_host(path, value)
        return ["tensor", _member(members, host.data), host.dtype.name, list(host.shape)]
    raise TypeError(f"{path}: a {type(value).__name__} cannot be stored")


def _scalar(value: Any, members: dict[str, Any], path: str) -> Any:
    """Short ones go into the tree: a member each would cost a round trip each."""
    array = np.asarray(value)
    dtype = describe(path, array)["dtype"]
    if array.nbytes > _SCALAR_BYTES_MAX:
        return ["scalar", _member(members, array)]
    return ["scalar", dtype, array.tobytes().hex()]


def _member(members: dict[str, Any], value: Any) -> str:
    name = f"m{len(members)}"
    members[name] = value
    return name


def _key(name: Any, path: str) -> Any:
    if name is None or isinstance(name, (bool, int, float, str)):
        return name
    raise TypeError(f"{path}: a key of type {type(name).__name__} cannot be stored")


def _decode(node: Any, objects: dict[str, Any], framework: str, depth: int) -> Any:
    if depth > _DEPTH_MAX or not isinstance(node, list) or len(node) < 2:
        raise ValueError("the object was not stored by put(), or is damaged")
    kind, body = node[0], node[1]
    try:
        if kind == "value":
            return body
        if kind == "dict":
            return {key: _decode(item, objects, framework, depth + 1) for key, item in body}
        if kind in ("list", "tuple"):
            items = [_decode(item, objects, framework, depth + 1) for item in body]
            return tuple(items) if kind == "tuple" else items
        if kind == "objects":
            items = [_decode(item, objects, framework, depth + 1) for item in node[2]]
            array = np.empty(len(items), dtype=object)
            array[:] = items
            return array.reshape(body)
        if kind == "scalar" and len(node) > 2:
            return np.frombuffer(bytes.fromhex(node[2]), named_dtype("scalar", body), 1)[0]
        if kind == "scalar":
            return objects[body][()]
        if kind in ("array", "bytes"):
            return objects[body]
        if kind == "tensor":
            host = HostTensor(objects[body], DTYPE_BY_NAME[node[2]], tuple(node[3]))
            return to_user(host, framework)
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"the stored dict is damaged: {error}") from error
    raise ValueError(f"the stored dict has an unknown node {kind!r}")
