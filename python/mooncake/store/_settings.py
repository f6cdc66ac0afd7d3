"""From the arguments of ``setup`` to settings by name, which the native part checks."""

from __future__ import annotations

import json
import operator
import os
import time
import warnings
from collections.abc import Mapping
from typing import Any

from ._native import native

POSITIONAL = (
    "local_hostname",
    "transport_metadata_url",
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "device_name",
    "metadata_url",
    "engine",
)
_REQUIRED = ("local_hostname", "global_segment_size", "local_buffer_size")
# Accepted for callers of other stores of this API; there is nothing here that they could change.
_IGNORED = ("engine", "ssd_offload_path")
# Accepted while they are false.
_REFUSED = ("enable_ssd_offload",)
_EXPIRES = "expires_at_ms"
_LEASE_MS_MAX = 7 * 24 * 3_600_000
_OTHERS = (*_IGNORED, *_REFUSED, _EXPIRES)

_DICT_SIZE = str(16 << 20)
_DICT_SIZES = {
    "global_segment_size": ("storage_bytes", "MC_STORE_RS_STORAGE_BYTES"),
    "local_buffer_size": ("scratch_bytes", "MC_STORE_RS_SCRATCH_BYTES"),
}
# setup(dict) alone takes these from the environment.
_DICT_ENVIRONMENT = ("MC_STORE_RS_METADATA_URL", "MC_STORE_RS_TRANSPORT_METADATA_URL")


def settings_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, str]]:
    """The settings of one ``setup`` call and the environment to complete them from, as texts."""
    variables = environment()
    if args and isinstance(args[0], Mapping):
        if len(args) > 1 or kwargs:
            raise TypeError("setup() takes either one dict or separate arguments, not both")
        given = _from_dict(args[0], variables)
    else:
        given = _from_arguments(args, kwargs)
        for name in _DICT_ENVIRONMENT:
            variables.pop(name, None)
    for name in _REFUSED:
        if _is_true(given.pop(name, None)):
            raise TypeError(f"setup() does not support {name}={True!r}")
    for name in _IGNORED:
        given.pop(name, None)
    _resolve_lease(given, variables)
    values = {name: _text(name, value) for name, value in given.items() if value is not None}
    return values, variables


def environment() -> dict[str, str]:
    """The variables that settings may come from."""
    prefixes = ("MC_", "MOONCAKE_", "OTEL_")
    return {n: _utf8(n, text) for n, text in os.environ.items() if n.startswith(prefixes)}


def checked_text(method: str, name: str, value: Any) -> str:
    """A text for the native part.

    Raises:
        TypeError: no str; names the argument.
        ValueError: it cannot be encoded as UTF-8.
    """
    if not isinstance(value, str):
        raise TypeError(f"{method}: {name} must be str, got {type(value).__name__}")
    return _utf8(f"{method}: {name}", value)


def _utf8(what: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} is {text!r}, which is not valid UTF-8") from error
    return text


def _from_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if len(args) > len(POSITIONAL):
        raise TypeError(
            f"setup() takes at most {len(POSITIONAL)} positional arguments but {len(args)} were "
            f"given: {', '.join(POSITIONAL)}"
        )
    given = dict(zip(POSITIONAL, args))
    for name, value in kwargs.items():
        if name in given:
            raise TypeError(f"setup() got multiple values for argument {name!r}")
        if not _is_known(name):
            raise TypeError(f"setup() got an unexpected keyword argument {name!r}{_nearest(name)}")
        given[name] = value
    missing = [name for name in _REQUIRED if name not in given]
    if missing:
        raise TypeError(f"setup() missing required arguments: {', '.join(missing)}")
    return given


def _from_dict(config: Mapping[Any, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    given = {}
    for name, value in config.items():
        if not isinstance(name, str):
            raise TypeError(f"setup: keys must be str, got {type(name).__name__}")
        if not _is_known(name):
            warnings.warn(f"setup: unknown key {name!r}{_nearest(name)}", UserWarning, stacklevel=4)
        elif value != "":
            given[name] = value
    if given.get("local_hostname") is None and not environment.get("MOONCAKE_LOCAL_HOSTNAME"):
        raise TypeError("setup: the dict needs a local_hostname")
    for name, (alias, variable) in _DICT_SIZES.items():
        if given.get(name) is None and given.get(alias) is None and not environment.get(variable):
            given[name] = _DICT_SIZE
    return given


def _is_known(name: str) -> bool:
    return name in _OTHERS or native.is_config_name(name)


def _nearest(name: str) -> str:
    nearest = native.nearest_config_name(name)
    return f"; did you mean {nearest!r}?" if nearest else ""


def _is_true(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in ("1", "true", "yes", "on")
    return bool(value)


def _resolve_lease(given: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Turns the moment at which the first lease ends into the time for which leases last."""
    expires = given.pop(_EXPIRES, None)
    if expires in (None, "") and given.get("lease_ttl_ms") is None:
        expires = environment.get("MC_STORE_RS_EXPIRES_AT_MS")
    if expires in (None, ""):
        return
    try:
        moment = int(expires) if isinstance(expires, str) else operator.index(expires)
    except (TypeError, ValueError):
        raise ValueError(
            f"setup: {_EXPIRES} is {expires!r}; allowed: milliseconds since 1970, as an int"
        ) from None
    now = time.time_ns() // 1_000_000
    if moment <= now:
        raise ValueError(f"setup: {_EXPIRES} is {moment}; allowed: after now, which is {now}")
    if moment - now > _LEASE_MS_MAX:
        raise ValueError(
            f"setup: {_EXPIRES} is {moment}; allowed: at most {_LEASE_MS_MAX} ms (7 days) after "
            f"now, which is {now}"
        )
    given["lease_ttl_ms"] = moment - now


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return checked_text("setup", name, value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if name in ("labels", "label"):
        if not isinstance(value, Mapping):
            raise TypeError(f"setup: {name} must be a mapping, got {type(value).__name__}")
        return json.dumps({str(key): str(item) for key, item in value.items()})
    try:
        return str(operator.index(value))
    except TypeError:
        raise TypeError(
            f"setup: {name} must be str, int or bool, got {type(value).__name__}"
        ) from None
