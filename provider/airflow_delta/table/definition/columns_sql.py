"""Columns in SQL: ``id BIGINT GENERATED ALWAYS AS IDENTITY, day DATE NOT NULL COMMENT 'of the flight'``.

The text is split into tokens of Spark's dialect; expressions are kept verbatim, as in Delta. Nothing is guessed: anything
that is not in the grammar below is an error.
"""

from __future__ import annotations

import re
from typing import Any

from airflow_delta.contract.delta_names import GENERATION_EXPRESSION
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.expressions.text import SqlSyntaxError, tokens_of
from airflow_delta.log.features.constraints import CURRENT_DEFAULT
from airflow_delta.log.features.identity_columns import ALLOW_EXPLICIT_INSERT, START, STEP
from airflow_delta.log.schema.types import struct_of, to_json
from airflow_delta.log.table_definition import TableDefinition

Json = dict[str, Any]

_TYPES = {
    "bigint": "long",
    "long": "long",
    "int": "integer",
    "integer": "integer",
    "smallint": "short",
    "short": "short",
    "tinyint": "byte",
    "byte": "byte",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "boolean": "boolean",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "variant": "variant",
}
_DECIMALS = ("decimal", "dec", "numeric")
_LENGTHS = ("char", "character", "varchar")


def schema_of_columns(columns: str) -> str:
    """Return Spark's JSON form of a schema, which may be given as such or as the columns of CREATE TABLE.

    Columns have Spark's types, and optionally ``NOT NULL``, ``DEFAULT``, ``GENERATED ALWAYS AS (expression)``, ``GENERATED
    ALWAYS | BY DEFAULT AS IDENTITY [(START WITH n INCREMENT BY n)]`` and ``COMMENT``.
    """
    if columns.lstrip().startswith("{"):
        return to_json(TableDefinition.of_rows(columns).schema)
    return to_json(struct_of(_Columns(columns).parse()))


class _Columns:
    def __init__(self, text: str) -> None:
        self._text = text
        try:
            self._tokens = tokens_of(text)
        except SqlSyntaxError as error:
            raise self._error(f"is not valid SQL: {error}", len(text)) from error
        self._next = 0

    def parse(self) -> Json:
        fields = [self._column()]
        while self._take(","):
            fields.append(self._column())
        if self._next < len(self._tokens):
            raise self._error(f"has {self._word()!r} where a comma or the end is expected")
        return {"type": "struct", "fields": fields}

    # -- tokens ----------------------------------------------------------------------------------------------------------------

    def _error(self, what: str, at: int | None = None) -> DeltaAnalysisException:
        if at is None:
            at = self._tokens[self._next].start if self._next < len(self._tokens) else len(self._text)
        return DeltaAnalysisException(
            f"The list of columns {what}, at position {at}: {self._text[max(at - 30, 0) : at + 30]!r}. Write it like the columns "
            "of CREATE TABLE, or give the schema in Spark's JSON form."
        )

    def _kind(self) -> str:
        return self._tokens[self._next].token_type.name if self._next < len(self._tokens) else ""

    def _word(self) -> str:
        """Return the next token in lower case; empty at the end and for strings and quoted names, which are not keywords."""
        if self._kind() in ("", "STRING", "IDENTIFIER"):
            return ""
        return str(self._tokens[self._next].text).lower()

    def _take(self, *words: str) -> bool:
        """Take a sequence of words, or nothing."""
        before = self._next
        for word in words:
            if self._word() != word:
                self._next = before
                return False
            self._next += 1
        return True

    def _expect(self, *words: str) -> None:
        if not self._take(*words):
            raise self._error(f"lacks {' '.join(words).upper()}")

    def _string(self) -> str:
        if self._kind() != "STRING":
            raise self._error("lacks a string in quotes")
        token = self._tokens[self._next]
        self._next += 1
        if self._kind() == "STRING":
            raise self._error("has two strings side by side; write a quote within a string as \\'")
        return str(token.text)

    def _number(self) -> int:
        sign = -1 if self._take("-") else 1
        if self._kind() != "NUMBER" or not re.fullmatch(r"\d+", self._word()):
            raise self._error("lacks a whole number")
        self._next += 1
        return sign * int(self._tokens[self._next - 1].text)

    def _name(self) -> str:
        if self._kind() == "IDENTIFIER":
            name = str(self._tokens[self._next].text)
        else:
            text = str(self._tokens[self._next].text) if self._kind() not in ("", "STRING", "NUMBER") else ""
            name = text if re.fullmatch(r"\w+", text) else ""
        if not name:
            raise self._error("lacks the name of a column")
        self._next += 1
        return name

    # -- grammar ---------------------------------------------------------------------------------------------------------------

    def _column(self) -> Json:
        name = self._name()
        field: Json = {"name": name, "type": self._type(), "nullable": True, "metadata": {}}
        metadata: Json = field["metadata"]
        while self._next < len(self._tokens) and self._word() != ",":
            if self._take("not", "null"):
                field["nullable"] = False
            elif self._take("comment"):
                self._once(metadata, comment=self._string())
            elif self._take("default"):
                self._once(metadata, **{CURRENT_DEFAULT: self._expression()})
            elif self._take("generated"):
                self._generated(metadata)
            else:
                raise self._error(f"has {self._word()!r} after the type of {name}")
        return field

    def _once(self, metadata: Json, **given: Any) -> None:
        if given.keys() & metadata.keys():
            raise self._error("repeats an option of a column")
        metadata.update(given)

    def _generated(self, metadata: Json) -> None:
        explicit = self._take("by", "default")
        if not explicit:
            self._expect("always")
        self._expect("as")
        if self._take("identity"):
            given = {"start": 1, "increment": 1}
            if self._take("("):
                while not self._take(")"):
                    key = "start" if self._take("start", "with") else "increment"
                    if key == "increment":
                        self._expect("increment", "by")
                    given[key] = self._number()
                    self._take(",")
            self._once(metadata, **{START: given["start"], STEP: given["increment"], ALLOW_EXPLICIT_INSERT: explicit})
            return
        if explicit:
            raise self._error("has GENERATED BY DEFAULT without AS IDENTITY")
        self._expect("(")
        first = self._next
        depth = 1
        while depth:
            if self._next >= len(self._tokens):
                raise self._error("has an unclosed bracket")
            depth += {"(": 1, ")": -1}.get(self._word(), 0)
            self._next += 1
        self._once(metadata, **{GENERATION_EXPRESSION: self._slice(first, self._next - 1)})

    def _expression(self) -> str:
        """Return the text of a DEFAULT: everything up to the next option outside of brackets."""
        first, depth = self._next, 0
        while self._next < len(self._tokens):
            word = self._word()
            ends = word in (",", "comment", "generated", "default") or (word == "not" and self._follows("null"))
            if depth == 0 and self._next > first and ends:
                break
            depth += {"(": 1, ")": -1}.get(word, 0)
            self._next += 1
        if self._next == first:
            raise self._error("has a DEFAULT without a value")
        return self._slice(first, self._next)

    def _follows(self, word: str) -> bool:
        after = self._next + 1
        return after < len(self._tokens) and str(self._tokens[after].text).lower() == word

    def _slice(self, first: int, end: int) -> str:
        if end <= first:
            raise self._error("has an empty expression")
        return self._text[self._tokens[first].start : self._tokens[end - 1].end + 1]

    def _type(self) -> Any:
        word = self._word()
        self._next += 1
        if word == "array":
            self._expect("<")
            element = self._type()
            self._expect(">")
            return {"type": "array", "elementType": element, "containsNull": True}
        if word == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        if word == "struct":
            self._expect("<")
            fields = [self._nested()]
            while self._take(","):
                fields.append(self._nested())
            self._expect(">")
            return {"type": "struct", "fields": fields}
        if word in _DECIMALS:
            precision, scale = 10, 0
            if self._take("("):
                precision = self._number()
                scale = self._number() if self._take(",") else 0
                self._expect(")")
            return f"decimal({precision},{scale})"
        if word in _LENGTHS:
            self._expect("(")
            length = self._number()
            self._expect(")")
            return f"{'varchar' if word == 'varchar' else 'char'}({length})"
        if word not in _TYPES:
            self._next -= 1
            raise self._error(f"has {word!r} where a type is expected")
        return _TYPES[word]

    def _nested(self) -> Json:
        name = self._name()
        self._take(":")
        field: Json = {"name": name, "type": self._type(), "nullable": True, "metadata": {}}
        if self._take("not", "null"):
            field["nullable"] = False
        if self._take("comment"):
            field["metadata"]["comment"] = self._string()
        return field
