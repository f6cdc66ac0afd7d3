"""Names and manifests of bundles. JSON only; whatever was read is checked before it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ._bundle_types import Chunk, Manifest, Payload, RemoteBundleRef

VERSION = 1
LAYOUT = "bundle"
MANIFEST_BYTES_MAX = 64 * 1024 * 1024
_BYTES_MAX = 1 << 62


def checked_prefix(prefix: str) -> str:
    """A key prefix without slashes at its ends.

    Raises:
        TypeError, ValueError: not text, empty, or with control characters.

    Example:
        >>> checked_prefix("/demo/structured/")
        'demo/structured'
    """
    if not isinstance(prefix, str):
        raise TypeError(f"key_prefix must be str, not {type(prefix).__name__}")
    stripped = prefix.strip("/")
    if not stripped or not _printable(stripped):
        raise ValueError(f"key_prefix {prefix!r} is empty or has control characters")
    return stripped


def checked_name(what: str, name: Any) -> str:
    """A partition or member name.

    Raises:
        TypeError, ValueError: not text, empty, with a slash or control characters.

    Example:
        >>> checked_name("member", "tokens")
        'tokens'
    """
    if not isinstance(name, str):
        raise TypeError(f"{what} name must be str, not {type(name).__name__}")
    if not name or "/" in name or not _printable(name):
        raise ValueError(f"{what} name {name!r} is empty, or has '/' or control characters")
    return name


def _printable(text: str) -> bool:
    return all(ord(char) >= 32 and ord(char) != 127 for char in text)


def payload_of(key: str, size: int, chunk_bytes: int) -> Payload:
    """The chunks that a payload of ``size`` bytes is stored as.

    Example:
        >>> [chunk.key for chunk in payload_of("k", 5, 4).chunks]
        ['k/chunk/0', 'k/chunk/1']
    """
    if size <= chunk_bytes:
        return Payload(key, size, (Chunk(key, size),))
    chunks = tuple(
        Chunk(f"{key}/chunk/{index}", min(chunk_bytes, size - start))
        for index, start in enumerate(range(0, size, chunk_bytes))
    )
    return Payload(key, size, chunks)


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The manifest as it is stored.

    Example:
        >>> to_json(Manifest("p/1", payload_of("b/p/1/meta", 0, 1), {}))["layout"]
        'bundle'
    """
    return {
        "version": VERSION,
        "layout": LAYOUT,
        "object_id": manifest.object_id,
        "meta": _payload_json(manifest.meta),
        "buffers": {name: _payload_json(part) for name, part in manifest.buffers.items()},
    }


def _payload_json(payload: Payload) -> dict[str, Any]:
    chunks = [{"key": chunk.key, "bytes": chunk.size} for chunk in payload.chunks]
    return {"key": payload.key, "bytes": payload.size, "chunks": chunks}


def dump(value: Any) -> bytes:
    """Compact JSON.

    Raises:
        TypeError: not JSON-able.
    """
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"not JSON-serializable: {error}") from error


def load(what: str, raw: bytes | bytearray | memoryview) -> Any:
    """Parsed JSON.

    Raises:
        ValueError: not JSON, or nested too deeply.
    """
    try:
        return json.loads(bytes(raw).decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not valid JSON: {type(error).__name__}: {error}") from error


def parse(prefix: str, raw: Any) -> Manifest:
    """A checked manifest whose keys all lie below ``<prefix>/<object_id>``.

    Raises:
        ValueError: with the field.

    Example:
        >>> made = Manifest("p/1", payload_of("b/p/1/meta", 0, 1), {})
        >>> parse("b", to_json(made)) == made
        True
    """
    if not isinstance(raw, Mapping):
        raise ValueError(f"bundle manifest must be an object, not {type(raw).__name__}")
    version, layout = raw.get("version"), raw.get("layout")
    if version != VERSION or isinstance(version, bool) or layout != LAYOUT:
        raise ValueError(f"bundle manifest has version {version!r} and layout {layout!r}")
    object_id = raw.get("object_id")
    if not isinstance(object_id, str) or not object_id or not _printable(object_id):
        raise ValueError(f"bundle manifest has a bad object_id: {object_id!r}")
    base = f"{prefix}/{object_id}"
    seen: set[str] = set()
    meta = _parse_payload("meta", f"{base}/meta", raw.get("meta"), seen)
    members = raw.get("buffers")
    if not isinstance(members, Mapping):
        raise ValueError("bundle manifest: buffers must be an object")
    buffers = {
        name: _parse_payload(
            f"member {name!r}", f"{base}/buffer/{checked_name('member', name)}", part, seen
        )
        for name, part in members.items()
    }
    return Manifest(object_id, meta, buffers)


def _parse_payload(what: str, key: str, raw: Any, seen: set[str]) -> Payload:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("chunks"), list):
        raise ValueError(f"bundle manifest: {what} must be an object with key, bytes and chunks")
    if raw.get("key") != key:
        raise ValueError(
            f"bundle manifest: {what} has key {raw.get('key')!r} outside its namespace {key!r}"
        )
    size = _size(what, raw.get("bytes"))
    chunks = []
    for part in raw["chunks"]:
        name = part.get("key") if isinstance(part, Mapping) else None
        inside = isinstance(name, str) and (name == key or name.startswith(f"{key}/chunk/"))
        if not isinstance(name, str) or not inside:
            raise ValueError(
                f"bundle manifest: {what} has chunk {name!r} outside its namespace {key!r}"
            )
        if name in seen:
            raise ValueError(f"bundle manifest: chunk {name!r} is repeated")
        seen.add(name)
        chunks.append(Chunk(name, _size(what, part.get("bytes"))))
    if not chunks or sum(chunk.size for chunk in chunks) != size:
        raise ValueError(f"bundle manifest: the chunks of {what} do not add up to {size} bytes")
    return Payload(key, size, tuple(chunks))


def _size(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _BYTES_MAX:
        raise ValueError(f"bundle manifest: {what} has a bad number of bytes: {value!r}")
    return value


def ref_parts(ref: Any) -> tuple[str | None, Any]:
    """Manifest key and manifest of a reference, as far as it has them.

    Raises:
        TypeError: neither a RemoteBundleRef nor a mapping with one of the two.
    """
    if isinstance(ref, RemoteBundleRef):
        return ref.manifest_key, ref.manifest
    if isinstance(ref, Mapping) and ("manifest" in ref or "manifest_key" in ref):
        key = ref.get("manifest_key")
        if key is not None and not isinstance(key, str):
            raise ValueError(f"manifest_key must be str, not {type(key).__name__}")
        return key, ref.get("manifest")
    raise TypeError("a reference is a RemoteBundleRef, or a dict with manifest or manifest_key")
