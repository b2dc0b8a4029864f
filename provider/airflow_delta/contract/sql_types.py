"""Spark SQL's types (``STRUCT<x: INT NOT NULL, y: ARRAY<STRING>>``) and column paths, in Spark's JSON form.

Standard library only: Dags name types this way, without a Spark to parse them.

Limits of ``char(n)`` and ``varchar(n)`` columns, which Delta stores as strings with the declared type in their metadata.

The one table of casts between atomic types: which lose nothing, which a column may take over, which are refused.

Types have Spark's JSON names (``integer``, ``decimal(10,2)``). Both sides read it: :mod:`airflow_delta.contract.schema` where a
DataFrame is written, :mod:`airflow_delta.log.features` where schemas are merged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from airflow_delta.contract.payloads import Json
from airflow_delta.exceptions import DeltaAnalysisException

_TOKEN = re.compile(
    r"\s*+(?:(`[^`]*+(?:``[^`]*+)*`(?!`))|('[^'\\]*+(?:\\.[^'\\]*+)*'|\"[^\"\\]*+(?:\\.[^\"\\]*+)*\")|(\w++)|([<>(),:.]))"
)
_PART = re.compile(r"\s*+(?:`((?:[^`]|``)[^`]*+(?:``[^`]*+)*)`(?!`)\s*+|([^`.\s][^`.]*+))(\.|$)")
_NAMES = {
    "tinyint": "byte",
    "byte": "byte",
    "smallint": "short",
    "short": "short",
    "int": "integer",
    "integer": "integer",
    "bigint": "long",
    "long": "long",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}
_SIMPLE = frozenset({"float", "double", "string", "boolean", "binary", "date", "timestamp", "timestamp_ntz", "void", "variant"})


def parse_sql_type(text: str) -> Any:
    """Return a type in Spark's JSON form: a name, or an object with ``type``.

    :param text: Spark SQL, or Spark's JSON form of a type.
    :raises DeltaAnalysisException: if it is not a type that Delta tables have.
    """
    try:
        if text.lstrip().startswith("{"):
            return json.loads(text)
        parser = _Parser(text)
        found = parser.type()
    except RecursionError as error:
        raise DeltaAnalysisException(f"The type {text[:100]!r}... is nested too deeply") from error
    parser.end()
    return found


def parse_column_path(text: str) -> tuple[str, ...]:
    """Return the names of a dotted path; names with dots are in backticks.

    :raises DeltaAnalysisException: if it is not a column path.
    """
    parts: list[str] = []
    at = 0
    while at < len(text) or not parts:
        match = _PART.match(text, at)
        if match is None:
            raise DeltaAnalysisException(f"{text!r} is not a valid column path; put names with dots in backticks")
        parts.append(match[1].replace("``", "`") if match[1] else match[2].rstrip())
        at = match.end()
        if not match[3]:
            return tuple(parts)
    raise DeltaAnalysisException(f"{text!r} is not a valid column path; it ends with a dot")


def column_path_text(path: Sequence[str]) -> str:
    """Return the text of a column path, which :func:`parse_column_path` reads; names that are not plain words in backticks."""
    return ".".join(name if re.fullmatch(r"\w+", name) else f"`{name.replace('`', '``')}`" for name in path)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[int, str]] = []
        at = 0
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.error()
            self.tokens.append((match.lastindex or 0, match[match.lastindex or 0]))
            at = match.end()
        self.at = 0

    def error(self) -> DeltaAnalysisException:
        return DeltaAnalysisException(f"{self.text!r} is not a Spark SQL type of Delta tables, such as BIGINT")

    def peek(self) -> str:
        return self.tokens[self.at][1].lower() if self.at < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        if self.at >= len(self.tokens) or (expected is not None and self.peek() != expected):
            raise self.error()
        self.at += 1
        return self.tokens[self.at - 1][1]

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise self.error()

    def skip(self, *words: str) -> bool:
        taken = tuple(token.lower() for _, token in self.tokens[self.at : self.at + len(words)]) == words
        self.at += len(words) if taken else 0
        return taken

    def type(self) -> Any:
        name = self.take().lower()
        name = _NAMES.get(name, name)
        match name:
            case "array":
                self.take("<")
                element = self.type()
                self.take(">")
                return {"type": "array", "elementType": element, "containsNull": True}
            case "map":
                self.take("<")
                key = self.type()
                self.take(",")
                value = self.type()
                self.take(">")
                return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
            case "struct":
                return self.struct()
            case "decimal":
                if not self.skip("("):
                    return "decimal(10,0)"
                precision, scale = self.number(), self.number() if self.skip(",") else 0
                self.take(")")
                return f"decimal({precision},{scale})"
            case "char" | "varchar":
                self.take("(")
                length = self.number()
                self.take(")")
                return f"{name}({length})"
        if name in ("byte", "short", "integer", "long") or name in _SIMPLE:
            return name
        raise self.error()

    def number(self) -> int:
        text = self.take()
        if not text.isdecimal():
            raise self.error()
        return int(text)

    def struct(self) -> Any:
        self.take("<")
        fields: list[dict[str, Any]] = []
        while not self.skip(">"):
            if fields:
                self.take(",")
            kind, name = self.tokens[self.at] if self.at < len(self.tokens) else (0, "")
            if kind not in (1, 3):
                raise self.error()
            self.at += 1
            self.skip(":")
            field = {"name": name[1:-1].replace("``", "`") if kind == 1 else name, "type": self.type(), "nullable": True}
            if self.skip("not", "null"):
                field["nullable"] = False
            metadata: dict[str, Any] = {}
            if self.skip("comment"):
                metadata["comment"] = re.sub(r"\\(.)", r"\1", self.take()[1:-1])
            fields.append({**field, "metadata": metadata})
        return {"type": "struct", "fields": fields}


DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
"""Metadata of a field: its declared type as SQL spells it, nested types included."""

_MAX_NESTED = 100
_LIMITED = re.compile(r"(?:var)?char\((\d+)\)")
_CHAR = re.compile(r"char\((\d+)\)")
_NAME = re.compile(r"`((?:[^`]|``)+)`|([^:`,<>]+)")


def char_length(field: Json) -> int | None:
    """Return ``n`` of a ``char(n)`` column; ``None`` for every other field.

    Spark compares such a column with literals, and reads it, as if it were filled up with spaces.
    """
    declared = (field.get("metadata") or {}).get(DECLARED)
    match = _CHAR.fullmatch(declared.strip().lower()) if isinstance(declared, str) else None
    return None if match is None else int(match[1])


def length_problems(field: Json) -> Iterator[tuple[str, str, str]]:
    """Yield path, expression and declared type of each limited string: if the expression is true, the string is too long.

    Strings shorter than a ``char`` are not padded, as in Delta's DataFrame writes.
    """
    declared = (field.get("metadata") or {}).get(DECLARED)
    if isinstance(declared, str):
        name = "`" + field["name"].replace("`", "``") + "`"
        yield from _problems(declared, name, field["name"], 0)


def _problems(declared: str, value: str, path: str, depth: int) -> Iterator[tuple[str, str, str]]:
    if depth == 0 and declared.count("<") > _MAX_NESTED:
        raise DeltaAnalysisException(f"The declared type of column {path} is nested too deeply: {declared[:100]}...")
    text = declared.strip()
    if match := _LIMITED.fullmatch(text.lower()):
        yield path, f"char_length({value}) > {match[1]}", text
        return
    variable = f"x{depth}"
    kind, _, rest = text.partition("<")
    parts = list(_split(rest[:-1])) if rest.endswith(">") else []
    match kind.strip().lower(), parts:
        case "array", [element]:
            for where, wrong, limit in _problems(element, variable, f"{path}[element]", depth + 1):
                yield where, f"exists({value}, {variable} -> {wrong})", limit
        case "map", [key, element]:
            for part, function in ((key, "map_keys"), (element, "map_values")):
                label = "key" if function == "map_keys" else "value"
                for where, wrong, limit in _problems(part, variable, f"{path}[{label}]", depth + 1):
                    yield where, f"exists({function}({value}), {variable} -> {wrong})", limit
        case "struct", fields:
            for entry in fields:
                match = _NAME.match(entry)
                if match is not None and entry[match.end() : match.end() + 1] == ":":
                    name = match[1].replace("``", "`") if match[1] else match[2].strip()
                    inner = f"{value}.`{name.replace('`', '``')}`"
                    yield from _problems(entry[match.end() + 1 :], inner, f"{path}.{name}", depth)


def _split(text: str) -> Iterator[str]:
    """Yield the parts of a list of types, split at commas outside brackets and quotes."""
    depth, start, quoted = 0, 0, False
    for at, char in enumerate(text):
        if char == "`":
            quoted = not quoted
        elif quoted:
            continue
        elif char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()


KEEPS = "keeps"
"""Every value can be stored in the other type: no fraction, digit, time of day or instant is lost."""
WIDENS = "widens"
"""The same, and a column may change its type without its files being rewritten (protocol, "Type Widening")."""

DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 20}
"""Decimal digits of integers, as in Spark."""
DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")

_WIDENS = {
    "byte": {"short", "integer", "long", "double"},
    "short": {"integer", "long", "double"},
    "integer": {"long", "double"},
    "float": {"double"},
    "date": {"timestamp_ntz"},
}
_KEEPS = {"byte": {"float"}, "short": {"float"}, "date": {"timestamp"}}
_DIGITS_TO_WIDEN = {"byte": 10, "short": 10, "integer": 10, "long": 20}
# A timestamp as text, or without its zone, depends on a time zone, in which an hour may occur twice. Bytes may not be text.
_TEXT = {"boolean", "date", "timestamp_ntz", "float", "double", *DIGITS}


def cast_of(given: str, target: str) -> str | None:
    """Return :data:`KEEPS`, :data:`WIDENS`, or ``None`` if values of one type could be lost in the other."""
    if given in ("void", target):
        return KEEPS
    one, other = DECIMAL.fullmatch(given), DECIMAL.fullmatch(target)
    if other:
        return _to_decimal(given, one, int(other[1]) - int(other[2]), int(other[2]))
    if target in _WIDENS.get(given, ()):
        return WIDENS
    kept = target in _KEEPS.get(given, ()) or (target == "string" and (one is not None or given in _TEXT))
    return KEEPS if kept else None


def _to_decimal(given: str, one: re.Match[str] | None, room: int, scale: int) -> str | None:
    """Return the answer for a decimal with ``room`` digits before the point."""
    if one:
        return WIDENS if scale >= int(one[2]) and room >= int(one[1]) - int(one[2]) else None
    if given not in DIGITS or room < DIGITS[given]:
        return None
    return WIDENS if room >= _DIGITS_TO_WIDEN[given] else KEEPS
