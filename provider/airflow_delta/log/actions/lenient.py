"""JSON values of other types where the protocol has strings, read as Delta Spark reads them.

Some writers put numbers, booleans or nulls into ``metaData.configuration``, partition values, tags or statistics. Spark's JSON
reader gives a field of type string the JSON text of any value. Only what the strict decoder refuses is read this way: it costs
nothing while a log is well-formed.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

_Fix = Callable[[msgspec.Raw], Any]
_known: dict[Any, dict[str, _Fix]] = {}
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    """Decode a struct; its maps of strings and its optional strings, at any depth, may have any values.

    :raises msgspec.DecodeError: if it does not have the form of the struct even so.
    """
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        try:
            texts = msgspec.json.encode(_with_texts(data, _fixes(decoder.type)))
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise error from None
        return decoder.decode(texts)


def decode_lines(decoder: msgspec.json.Decoder[Any], data: bytes) -> list[Any]:
    """Decode one struct per line, as :func:`decode` does.

    :raises msgspec.DecodeError: if a line does not have the form of the struct.
    """
    try:
        return decoder.decode_lines(data)
    except msgspec.DecodeError:
        return [decode(decoder, line) for line in data.split(b"\n") if line.strip()]


def _with_texts(data: msgspec.Raw | bytes, fixes: Mapping[str, _Fix]) -> dict[str, Any]:
    fields: dict[str, Any] = _object.decode(data)
    for name in fields.keys() & fixes.keys():
        fields[name] = fixes[name](fields[name])
    return fields


def _fixes(struct: Any) -> dict[str, _Fix]:
    """Return what is done to the fields of a struct, by their names in JSON."""
    if (known := _known.get(struct)) is not None:
        return known
    found = {field.encode_name: _fix(field.type) for field in msgspec.structs.fields(struct)}
    _known[struct] = {name: fix for name, fix in found.items() if fix is not None}
    return _known[struct]


def _fix(kind: Any) -> _Fix | None:
    alternatives = _alternatives(kind)
    own = [part for part in alternatives if part is not types.NoneType]
    if len(own) != 1:
        return None
    (kind,) = own
    if kind is str:  # what identifies something (a path, an id) is a string or damage
        return _text if types.NoneType in alternatives else None
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return lambda raw: raw if _is_null(raw) else _with_texts(raw, _fixes(kind))
    if typing.get_origin(kind) is dict and str in _alternatives(typing.get_args(kind)[1]):
        return _texts
    return None


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union else (kind,)


def _text(raw: msgspec.Raw) -> Any:
    given = bytes(raw)
    return raw if given.startswith(b'"') or _is_null(raw) else given.decode()


def _texts(raw: msgspec.Raw) -> Any:
    return raw if _is_null(raw) else {key: _text(value) for key, value in _object.decode(raw).items()}


def _is_null(raw: msgspec.Raw) -> bool:
    return bytes(raw) == b"null"
