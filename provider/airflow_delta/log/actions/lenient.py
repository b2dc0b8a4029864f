"""JSON values of other types where the protocol has strings or whole numbers, read as Delta Spark reads them.

Some writers put numbers, booleans or nulls into ``metaData.configuration``, partition values, tags or statistics, a null into
``schemaString``, or write a size as ``1234.0``. Spark's JSON reader gives a field of type string the JSON text of any value. Only
what the strict decoder refuses is read this way: it costs nothing while a log is well-formed.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec

from airflow_delta.lazy_patterns import lazy_pattern

_Fix = Callable[[msgspec.Raw], Any]

_known: dict[Any, dict[str, _Fix]] = {}

_Object = dict[str, msgspec.Raw]


@cache
def decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a type. It is made when it is first asked for: that resolves the types of all fields."""
    return msgspec.json.Decoder(kind)


def decode(kind: Any, data: bytes) -> Any:
    """Decode a struct of a type.

    At any depth, maps of strings and optional strings may have any values; integers may be spelled as floats.

    :raises msgspec.DecodeError: if it does not have the form of the struct even so.
    """
    decoder = decoder_of(kind)
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        try:
            texts = msgspec.json.encode(_with_texts(data, _fixes(kind)))
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise error from None
        return decoder.decode(texts)


def decode_lines(kind: Any, data: bytes) -> list[Any]:
    """Decode one struct per line, as :func:`decode` does.

    :raises msgspec.DecodeError: if a line does not have the form of the struct.
    """
    try:
        return decoder_of(kind).decode_lines(data)
    except msgspec.DecodeError:
        return [decode(kind, line) for line in data.split(b"\n") if line.strip()]


def _with_texts(data: msgspec.Raw | bytes, fixes: Mapping[str, _Fix]) -> dict[str, Any]:
    fields: dict[str, Any] = decoder_of(_Object).decode(data)
    for name in fields.keys() & fixes.keys():
        value = fixes[name](fields[name])
        if value is msgspec.UNSET:
            del fields[name]
        else:
            fields[name] = value
    return fields


def _fixes(struct: Any) -> dict[str, _Fix]:
    """Return what is done to the fields of a struct, by their names in JSON."""
    if (known := _known.get(struct)) is not None:
        return known
    found = {field.encode_name: _fix(field.type, has_default=not field.required) for field in msgspec.structs.fields(struct)}
    _known[struct] = {name: fix for name, fix in found.items() if fix is not None}
    return _known[struct]


def _fix(kind: Any, *, has_default: bool) -> _Fix | None:
    alternatives = _alternatives(kind)
    own = [part for part in alternatives if part is not types.NoneType]
    if len(own) != 1:
        return None
    (kind,) = own
    if kind is int:
        return _whole
    if kind is str:  # what identifies something (a path, an id) is a string or damage
        optional = types.NoneType in alternatives
        return _text if optional else (_given if has_default else None)
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


def _given(raw: msgspec.Raw) -> Any:
    return msgspec.UNSET if _is_null(raw) else raw


_NUMBER = lazy_pattern(rb"(-?)(\d{1,19})(?:\.(\d{0,40}))?(?:[eE]\+?(\d{1,2}))?")


def _whole(raw: msgspec.Raw) -> Any:
    """Return the integer that a number with a fraction or an exponent is; what is not one as it is."""
    if (found := _NUMBER.fullmatch(bytes(raw))) is None:
        return raw
    sign, whole, fraction, exponent = (part or b"" for part in found.groups())
    shift = int(exponent or 0)
    digits, rest = whole + fraction[:shift].ljust(shift, b"0"), fraction[shift:]
    return raw if rest.strip(b"0") else int(sign + digits)


def _texts(raw: msgspec.Raw) -> Any:
    return raw if _is_null(raw) else {key: _text(value) for key, value in decoder_of(_Object).decode(raw).items()}


def _is_null(raw: msgspec.Raw) -> bool:
    return bytes(raw) == b"null"
