"""Functions of strings: positions count code points, as in Spark."""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.arrow.arrays import scalar
from airflow_delta.log.expressions.like import like_pattern
from airflow_delta.log.schema.types import BOOLEAN, INTEGER, LONG, STRING, PrimitiveType
from airflow_delta.table.expressions.coercion import exactly, to_type, typed_text, whole
from airflow_delta.table.expressions.parts import TypedPart, by_row, by_value, made, strict
from airflow_delta.table.expressions.problems import NotDecided, RowNotDecided

BINARY = PrimitiveType("binary")
_MAX_INT = (1 << 31) - 1
_MAX_PATTERN = 1 << 12
_MAX_PADDED = 1 << 20
_SURE_CASE = 0x180  # letters before it have had their case in all versions of Unicode; see _special
_SPECIAL = frozenset("\u0130\u0131\u0149\u017f\u00b5")


def concatenated(operands: Sequence[TypedPart]) -> TypedPart:
    """Return the part ``concat(operands)``, all of which are evaluated."""
    if not operands:
        raise NotDecided("concat needs a string")
    if all(part.data_type == BINARY for part in operands):
        raise NotDecided("binary values are not joined here")
    parts = [to_type(part, STRING) for part in operands]

    def compute(rows: Any) -> pa.Array:
        return pc.binary_join_element_wise(*(part.compute(rows) for part in parts), scalar(""))

    return made(STRING, compute, parts)


def mapped(function: Any, operand: TypedPart, *, fails: bool = False) -> TypedPart:
    """Return the part that a function makes of each distinct string."""
    return strict(
        STRING, lambda values: by_value(function, values, pa.string()), typed_text(operand), fails=fails, present_only=fails
    )


def upper(operand: TypedPart) -> TypedPart:
    """Return the part ``upper(operand)``."""
    return mapped(lambda text: _checked_case(text).upper(), operand, fails=True)


def lower(operand: TypedPart) -> TypedPart:
    """Return the part ``lower(operand)``."""
    return mapped(lambda text: _checked_case(text).lower(), operand, fails=True)


def _checked_case(text: str) -> str:
    if not text.isascii() and not all(map(_has_sure_case, text)):
        raise RowNotDecided(f"the letters of {text[:100]!r} may have another case in Spark's version of Unicode")
    return text


@lru_cache(maxsize=1 << 12)
def _has_sure_case(letter: str) -> bool:
    if ord(letter) < _SURE_CASE:
        return letter not in _SPECIAL
    return letter.upper() == letter.lower() == letter and unicodedata.category(letter) not in ("Cn", "Mn", "Lu", "Ll", "Lt", "Lm")


def length(operand: TypedPart) -> TypedPart:
    """Return the part ``length(operand)``: characters of a string, bytes of a binary value."""
    if operand.data_type == BINARY:
        return strict(INTEGER, pc.binary_length, operand)
    return strict(INTEGER, pc.utf8_length, typed_text(operand))


def substring(text: TypedPart, position: TypedPart, count: TypedPart | None = None) -> TypedPart:
    """Return the part ``substring(text, position, count)``."""
    parts = [typed_text(text), whole(position), *([] if count is None else [whole(count)])]
    return by_row(STRING, _substring, *parts)


def _substring(text: str, position: int, count: int = _MAX_INT) -> str:
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    end = min(start + count, _MAX_INT)
    return text[max(start, 0) : end] if end > max(start, 0) else ""


def left(text: TypedPart, count: TypedPart) -> TypedPart:
    """Return the part ``left(text, count)``."""
    return by_row(STRING, lambda value, most: value[: max(most, 0)], typed_text(text), whole(count))


def right(text: TypedPart, count: TypedPart) -> TypedPart:
    """Return the part ``right(text, count)``."""
    return by_row(STRING, lambda value, most: value[-most:] if most > 0 else "", typed_text(text), whole(count))


def replaced(text: TypedPart, search: TypedPart, replacement: TypedPart | None = None) -> TypedPart:
    """Return the part ``replace(text, search, replacement)``."""
    parts = [typed_text(text), typed_text(search), *([] if replacement is None else [typed_text(replacement)])]
    return by_row(STRING, lambda value, old, new="": value.replace(old, new) if old else value, *parts)


def padded(text: TypedPart, count: TypedPart, filling: TypedPart, *, before: bool) -> TypedPart:
    """Return the part ``lpad`` or ``rpad``."""

    def pad(value: str, most: int, fill: str) -> str:
        if most > _MAX_PADDED:
            raise RowNotDecided(f"strings of {most} characters are not made here")
        missing = most - len(value)
        if missing <= 0 or not fill:
            return value[: max(most, 0)]
        filled = (fill * (missing // len(fill) + 1))[:missing]
        return filled + value if before else value + filled

    return by_row(STRING, pad, typed_text(text), whole(count), typed_text(filling), fails=True)


def trimmed_text(operand: TypedPart, *, start: bool, end: bool) -> TypedPart:
    """Return the part ``trim``, ``ltrim`` or ``rtrim``, of spaces only."""
    kernel = pc.utf8_trim if start and end else pc.utf8_ltrim if start else pc.utf8_rtrim
    return strict(STRING, lambda values: kernel(values, characters=" "), typed_text(operand))


def reversed_text(operand: TypedPart) -> TypedPart:
    """Return the part ``reverse(operand)`` of a string."""
    return mapped(lambda text: text[::-1], operand)


def position_in(text: TypedPart, search: TypedPart) -> TypedPart:
    """Return the part ``instr(text, search)``."""
    return by_row(INTEGER, lambda value, wanted: value.find(wanted) + 1, typed_text(text), typed_text(search))


def starts(text: TypedPart, search: TypedPart) -> TypedPart:
    """Return the part ``startswith(text, search)``."""
    return by_row(BOOLEAN, str.startswith, typed_text(text), typed_text(search))


def ends(text: TypedPart, search: TypedPart) -> TypedPart:
    """Return the part ``endswith(text, search)``."""
    return by_row(BOOLEAN, str.endswith, typed_text(text), typed_text(search))


def contains(text: TypedPart, search: TypedPart) -> TypedPart:
    """Return the part ``contains(text, search)``."""
    return by_row(BOOLEAN, str.__contains__, typed_text(text), typed_text(search))


# -- LIKE ---------------------------------------------------------------------------------------------------------------------


def like(text: TypedPart, pattern: TypedPart, escape: TypedPart | None = None, *, folded: bool = False) -> TypedPart:
    """Return the part ``text LIKE pattern``, or ``ILIKE`` if letters are compared without their case.

    :raises NotDecided: if the pattern is not a literal, or not a pattern to Spark.
    """
    if pattern.columns or pattern.data_type != STRING or (value := pattern.constant) is None:
        raise NotDecided("LIKE takes a literal pattern here")
    mark = "\\" if escape is None else str(escape.constant)
    if len(mark) != 1 or mark in "%_" or len(value) > _MAX_PATTERN:
        raise NotDecided(f"LIKE takes neither the escape character {mark!r} nor long patterns here")
    quoted = re.escape(mark)
    if not re.fullmatch(f"(?:[^{quoted}]|{quoted}[_%{quoted}])*", value, re.DOTALL):
        raise NotDecided(f"the pattern {value!r} escapes other characters than wildcards")
    if folded:
        try:
            value = _checked_case(value).lower()
        except RowNotDecided as error:
            raise NotDecided(str(error)) from error
        text = lower(text)
    matches = like_pattern(_with_backslashes(value, mark)).matches
    return strict(BOOLEAN, lambda values: by_value(matches, values, pa.bool_()), typed_text(text))


def _with_backslashes(pattern: str, mark: str) -> str:
    if mark == "\\":
        return pattern
    return re.sub(rf"{re.escape(mark)}(.)|\\", lambda found: "\\" + (found[1] or "\\"), pattern, flags=re.DOTALL)


# -- digests ------------------------------------------------------------------------------------------------------------------


def digest(operand: TypedPart, name: str) -> TypedPart:
    """Return the part ``md5(operand)`` and the like, of a string or a binary value."""

    def computed(value: str | bytes) -> str:
        return hashlib.new(name, value.encode() if isinstance(value, str) else value, usedforsecurity=False).hexdigest()

    return strict(STRING, lambda values: by_value(computed, values, pa.string()), exactly(operand, STRING, BINARY))


def sha2(operand: TypedPart, width: TypedPart) -> TypedPart:
    """Return the part ``sha2(operand, width)``."""
    names = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}
    if width.columns or (name := names.get(width.constant)) is None:
        raise NotDecided("sha2 takes one of 0, 224, 256, 384 and 512 bits here")
    return digest(operand, name)


def checksum(operand: TypedPart) -> TypedPart:
    """Return the part ``crc32(operand)``."""

    def computed(value: str | bytes) -> int:
        return zlib.crc32(value.encode() if isinstance(value, str) else value)

    return strict(LONG, lambda values: by_value(computed, values, pa.int64()), exactly(operand, STRING, BINARY))
