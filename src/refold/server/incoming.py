"""Asked: a request as it came: each key and each item with its own bytes, so that what nobody changes stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from refold.core.items import Item, user_message
from refold.core.jsonio import dump, is_list, is_object, load
from refold.errors import RequestRefused

TRIGGER = "compaction_trigger"
LEAST_THRESHOLD = 1  # tokens
# What the API keeps on its servers under a name, and a gateway does not have.
ELSEWHERE = ("conversation", "prompt", "background")

_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Given(NamedTuple):
    """An item as it is read (a message without a type has one), and its bytes as they came."""

    item: Item
    raw: bytes

    @classmethod
    def of(cls, item: Item) -> Given:
        return cls(item, dump(item))


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request: its keys in order, `input` read as items. `whole`: the body, where nothing in it was changed."""

    keys: dict[str, bytes]
    items: tuple[Given, ...]
    whole: bytes
    model: str = ""
    stream: bool = False
    store: bool = True
    previous: str | None = None
    instructions: str | None = None
    threshold: int | None = None  # tokens above which the input is compacted first
    compacts: bool = False  # the input ended with a trigger, which `items` does not hold

    def value(self, key: str) -> Any:
        """A key's value; None where it is not there. Raises RequestRefused for one that is no JSON after all."""
        return _loaded(self.keys[key], key) if key in self.keys else None

    def told(self) -> dict[str, Any]:
        """Every key but the input, read: what a response object repeats."""
        return {key: self.value(key) for key in self.keys if key != "input"}


# --- reading -----------------------------------------------------------------------------------------------


def read_request(body: bytes, *, needs_model: bool = True, takes_trigger: bool = True) -> Asked:
    """A request's body. Raises RequestRefused (400) that names the key that is wrong."""
    try:
        _ = body.isascii() or body.decode()  # all of it: what is passed on as it is must be a text too
        keys = {key: bytes(raw) for key, raw in _keys(body).items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RequestRefused("We could not parse the JSON body of your request: it must be a JSON object.") from None
    for key in ELSEWHERE:
        if keys.get(key, b"null") not in (b"null", b"false"):
            raise refused(key, f"{key} is not kept by this gateway: send the input itself", "unsupported_parameter")
    items = read_items(keys.get("input"))
    compacts = bool(items) and items[-1].item.get("type") == TRIGGER
    if any(given.item.get("type") == TRIGGER for given in (items[:-1] if takes_trigger else items)):
        raise refused("input", f"{TRIGGER} must be the final input item")
    asked = Asked(
        keys=keys,
        items=items[:-1] if compacts else items,
        whole=body,
        model=_typed(keys, "model", str) or "",
        stream=_typed(keys, "stream", bool) or False,
        store=_typed(keys, "store", bool) is not False,
        previous=_typed(keys, "previous_response_id", str),
        instructions=_typed(keys, "instructions", str),
        threshold=_threshold(keys),
        compacts=compacts,
    )
    _check(asked, needs_model)
    return asked


def _check(asked: Asked, needs_model: bool) -> None:
    if needs_model and not asked.model:
        raise refused("model", "Missing required parameter: 'model'.", "missing_required_parameter")
    if asked.keys.get("input", b"null") == b"null" and asked.previous is None:
        raise refused("input", "Missing required parameter: 'input'.", "missing_required_parameter")
    tools = asked.value("tools")
    if tools is not None and not (is_list(tools) and all(map(is_object, tools))):
        raise refused("tools", "Invalid type for 'tools': expected a list of objects.", "invalid_type")


def read_items(raw: bytes | None) -> tuple[Given, ...]:
    """The items of `input`: a list, or a text that the user says. Raises RequestRefused."""
    if raw is None or raw == b"null":
        return ()
    if raw.startswith(b'"'):
        text = _loaded(raw, "input")
        return (Given.of(user_message(text)),)
    try:
        pieces = [bytes(piece) for piece in _list(raw)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise refused(
            "input", "Invalid type for 'input': expected a string or a list of items.", "invalid_type"
        ) from None
    return tuple(_item(piece, number) for number, piece in enumerate(pieces))


def _item(raw: bytes, number: int) -> Given:
    where = f"input[{number}]"
    item = _loaded(raw, where)
    if not is_object(item):
        raise refused(where, f"Invalid type for '{where}': expected an object.", "invalid_type")
    kind = item.get("type")
    if kind is None and isinstance(item.get("role"), str):
        item = {**item, "type": "message"}
    elif not isinstance(kind, str) or not kind:
        raise refused(f"{where}.type", f"Missing required parameter: '{where}.type'.", "missing_required_parameter")
    if item.get("role") is not None and not isinstance(item["role"], str):
        raise refused(f"{where}.role", f"Invalid type for '{where}.role': expected a string.", "invalid_type")
    if item["type"] == "message" and item.get("role") is None:
        raise refused(f"{where}.role", f"Missing required parameter: '{where}.role'.", "missing_required_parameter")
    return Given(item, raw)


def _loaded(raw: bytes, where: str) -> Any:
    try:
        return load(raw)[0]
    except ValueError as error:
        raise refused(where, f"Invalid value for '{where}': {error}.", "invalid_value") from None


def _typed(keys: Mapping[str, bytes], key: str, kind: type[Any]) -> Any:
    raw = keys.get(key)
    if raw is None or raw == b"null":
        return None
    value = _loaded(raw, key)
    if not isinstance(value, kind):
        name = {str: "a string", bool: "a boolean"}[kind]
        raise refused(key, f"Invalid type for '{key}': expected {name}.", "invalid_type")
    return value


def _threshold(keys: Mapping[str, bytes]) -> int | None:
    """The threshold of `context_management`, in tokens. Raises RequestRefused for another kind of it."""
    raw, key = keys.get("context_management"), "context_management"
    if raw is None or raw == b"null":
        return None
    entries = _loaded(raw, key)
    if not is_list(entries) or not all(map(is_object, entries)):
        raise refused(key, f"Invalid type for '{key}': expected a list of objects.", "invalid_type")
    found = None
    for number, one in enumerate(entries):
        threshold, where = one.get("compact_threshold"), f"{key}[{number}]"
        if one.get("type") != "compaction":
            raise refused(f"{where}.type", f"Invalid value for '{where}.type': expected 'compaction'.", "invalid_value")
        if threshold is None:
            continue
        if not _is_whole(threshold) or threshold < LEAST_THRESHOLD:
            text = f"Invalid value for '{where}.compact_threshold': expected a number of tokens."
            raise refused(f"{where}.compact_threshold", text, "invalid_value")
        found = int(threshold) if found is None else min(found, int(threshold))
    return found


def _is_whole(value: Any) -> bool:
    """Whether JSON says a whole number: 1.0 is one, too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)


def refused(param: str, text: str, code: str | None = None) -> RequestRefused:
    """The 400 for a parameter."""
    return RequestRefused(text, code=code, param=param)


# --- writing -----------------------------------------------------------------------------------------------


def body_of(keys: Mapping[str, bytes], items: Iterable[bytes]) -> bytes:
    """A request's body of these keys, with these items as its `input`, in the place where it stood."""
    told = b"[" + b",".join(items) + b"]"
    named: Sequence[str] = [*keys] if "input" in keys else [*keys, "input"]
    return object_of({key: told if key == "input" else keys[key] for key in named})


def object_of(keys: Mapping[str, bytes]) -> bytes:
    """A JSON object of keys whose values are JSON already."""
    return b"{" + b",".join(dump(key) + b":" + raw for key, raw in keys.items()) + b"}"
