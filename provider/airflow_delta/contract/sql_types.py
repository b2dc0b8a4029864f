"""Spark SQL's types (``STRUCT<x: INT NOT NULL, y: ARRAY<STRING>>``) and column paths, in Spark's JSON form.

Standard library only: Dags name types this way, without a Spark to parse them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.lazy_patterns import lazy_pattern

_TOKEN = lazy_pattern(
    r"\s*(?:(`[^`]*(?:``[^`]*)*`(?!`))|('[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\")|(\w+)|([<>(),:.]))"
)
_PART = lazy_pattern(r"\s*(?:`((?:[^`]|``)[^`]*(?:``[^`]*)*)`(?!`)\s*|([^`.\s][^`.]*))(\.|$)")
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
