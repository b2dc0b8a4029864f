"""Parsing expressions by the precedence of Spark's grammar (``SqlBaseParser.g4``): what is not surely read alike is for Spark."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

from airflow_delta.contract.sql_types import parse_sql_type
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.expressions import literals
from airflow_delta.log.expressions.string_literals import unescaped
from airflow_delta.log.schema.types import BOOLEAN, STRING, DataType, PrimitiveType, parse_type
from airflow_delta.table.expressions.problems import NotDecided
from airflow_delta.table.expressions.syntax import Call, Case, Cast, Field, LiteralValue, Name, Syntax
from airflow_delta.table.expressions.tokens import Token, expression_tokens, number_parts

NULL = LiteralValue(None, literals.NULL)

_TYPED = {
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_LTZ": "timestamp",
    "TIMESTAMP_NTZ": "timestamp_ntz",
}
_LEVELS: tuple[frozenset[str], ...] = (
    frozenset({"=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"}),
    frozenset({"|"}),
    frozenset({"^"}),
    frozenset({"&"}),
    frozenset({"+", "-", "||"}),
    frozenset({"*", "/", "%", "DIV"}),
)
"""Binary operators that bind alike, the loosest first; all associate to the left."""

_SPELLINGS = {"==": "=", "!=": "<>", "DIV": "div"}
_CAST_FUNCTIONS = frozenset(
    "tinyint smallint int bigint float double decimal string boolean date timestamp binary".split()  # noqa: SIM905
)

RESERVED = frozenset(
    re.findall(
        r"\w+",
        """
        all and any between case cast collate current_catalog current_database current_date current_schema current_time
        current_timestamp current_user distinct div else end escape exists false from ilike in interval is like localtimestamp
        not null or over regexp rlike select session_user some then true try_cast user values when
        """,
    )
)
"""Names that are something else to Spark, or may be, unless they are quoted."""


def parse_expression(text: str) -> Syntax:
    """Return what an expression says.

    :raises NotDecided: if it has a form that is not read here; it may still be an expression to Spark.
    """
    parser = ExpressionParser(text)
    found = parser.condition()
    if parser.kind != "end":
        parser.leave()
    return found


class ExpressionParser:
    """Reads the tokens of a text one after the other, from :attr:`at` on."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = expression_tokens(text)
        self.at = 0

    # -- tokens ---------------------------------------------------------------------------------------------------------------

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    @property
    def kind(self) -> str:
        return self.token.kind

    def following(self) -> Token:
        return self.tokens[min(self.at + 1, len(self.tokens) - 1)]

    def advance(self) -> Token:
        token = self.token
        self.at += 1
        return token

    def takes(self, *words: str) -> bool:
        """Step over keywords or marks, if all of them are next."""
        tokens = self.tokens[self.at : self.at + len(words)]
        if [token.folded for token in tokens] != list(words):
            return False
        self.at += len(words)
        return True

    def expect(self, word: str) -> None:
        if not self.takes(word):
            self.leave()

    def leave(self) -> NoReturn:
        raise NotDecided(f"{self.text[self.token.start :][:30] or 'its end'!r} is not read here")

    # -- conditions -----------------------------------------------------------------------------------------------------------

    def condition(self) -> Syntax:
        return self.joined("OR", lambda: self.joined("AND", self.negation))

    def joined(self, word: str, part: Callable[[], Syntax]) -> Syntax:
        parts = [part()]
        while self.takes(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Call(word.lower(), tuple(parts))

    def negation(self) -> Syntax:
        if self.takes("NOT"):
            return Call("not", (self.negation(),))
        return self.about(self.value())

    def about(self, left: Syntax) -> Syntax:
        """Return what is said about a value: ``IS``, ``IN``, ``BETWEEN`` and ``LIKE``, once at most."""
        if self.takes("IS"):
            return self.negated(self.takes("NOT"), self.is_what(left))
        negated = self.token.folded == "NOT" and self.following().folded in ("IN", "BETWEEN", "LIKE", "ILIKE")
        if negated:
            self.advance()
        if self.takes("IN"):
            self.expect("(")
            return self.negated(negated, Call("in", (left, *self.listed())))
        if self.takes("BETWEEN"):
            low = self.value()
            self.expect("AND")
            return self.negated(negated, Call("between", (left, low, self.value())))
        for word in ("LIKE", "ILIKE"):
            if self.takes(word):
                return self.negated(negated, self.like(word.lower(), left))
        return left

    def negated(self, negated: bool, condition: Syntax) -> Syntax:
        return Call("not", (condition,)) if negated else condition

    def is_what(self, left: Syntax) -> Syntax:
        if self.takes("NULL") or self.takes("UNKNOWN"):
            return Call("is null" if self.tokens[self.at - 1].folded == "NULL" else "is unknown", (left,))
        if self.takes("DISTINCT", "FROM"):
            return Call("not", (Call("<=>", (left, self.value())),))
        for word, value in (("TRUE", True), ("FALSE", False)):
            if self.takes(word):
                return Call("is true", (left, LiteralValue(value, BOOLEAN)))
        return self.leave()

    def like(self, name: str, left: Syntax) -> Syntax:
        if self.token.folded in ("ANY", "SOME", "ALL"):
            self.leave()
        pattern = self.value()
        if not self.takes("ESCAPE"):
            return Call(name, (left, pattern))
        if self.kind != "string":
            self.leave()
        return Call(name, (left, pattern, LiteralValue(self.string(), STRING)))

    # -- values ---------------------------------------------------------------------------------------------------------------

    def value(self, level: int = 0) -> Syntax:
        if level == len(_LEVELS):
            return self.signed()
        left = self.value(level + 1)
        while (operator := self.token.folded) in _LEVELS[level]:
            self.advance()
            left = Call(_SPELLINGS.get(operator, operator), (left, self.value(level + 1)))
        return left

    def signed(self) -> Syntax:
        if self.token.folded == "-" and self.following().kind == "number":
            return self.primary()
        for mark, name in (("-", "negative"), ("+", "positive"), ("~", "~")):
            if self.takes(mark):
                return Call(name, (self.signed(),))
        return self.primary()

    def primary(self) -> Syntax:
        found = self.first()
        while True:
            if self.takes("::"):
                found = Cast(found, self.type(), False)
            elif self.takes("."):
                found = Field(found, self.field_name())
            else:
                return found

    def first(self) -> Syntax:
        token, word = self.token, self.token.folded
        if self.takes("("):
            inside = self.condition()
            self.expect(")")
            return inside
        if token.kind == "string":
            return LiteralValue(self.string(), STRING)
        if token.kind == "number" or word == "-":
            return self.number()
        if word in ("TRUE", "FALSE"):
            self.advance()
            return LiteralValue(word == "TRUE", BOOLEAN)
        if self.takes("NULL"):
            return NULL
        if self.takes("CASE"):
            return self.case()
        following = self.following()
        if following.kind == "string" and (word in _TYPED or word == "X"):
            return self.typed(word)
        if token.kind == "word" and following.folded == "(":
            return self.call()
        return self.name()

    def name(self) -> Name:
        token = self.advance()
        if token.kind != "quoted" and (token.kind != "word" or token.value.lower() in RESERVED):
            self.at -= 1
            self.leave()
        parts = [token.value]
        while self.takes("."):
            parts.append(self.field_name())
        return Name(tuple(parts))

    def field_name(self) -> str:
        if self.kind not in ("word", "quoted"):
            self.leave()
        return self.advance().value

    def listed(self) -> list[Syntax]:
        """Return the expressions up to a closing parenthesis."""
        if self.takes(")"):
            return []
        parts = [self.condition()]
        while self.takes(","):
            parts.append(self.condition())
        self.expect(")")
        return parts

    def call(self) -> Syntax:
        name = self.advance().value.lower()
        self.expect("(")
        if name in ("cast", "try_cast"):
            operand = self.condition()
            self.expect("AS")
            target = self.type()
            self.expect(")")
            return Cast(operand, target, name == "try_cast")
        if name == "extract":
            field = self.field_name().lower()
            self.expect("FROM")
            operand = self.condition()
            self.expect(")")
            return Call("extract", (LiteralValue(field, STRING), operand))
        operands = tuple(self.listed())
        if name in _CAST_FUNCTIONS and len(operands) == 1:
            return Cast(operands[0], parse_type(parse_sql_type(name)), False)
        return Call(name, operands)

    def case(self) -> Case:
        operand = None if self.token.folded == "WHEN" else self.condition()
        branches: list[tuple[Syntax, Syntax]] = []
        while self.takes("WHEN"):
            condition = self.condition()
            self.expect("THEN")
            branches.append((condition if operand is None else Call("=", (operand, condition)), self.condition()))
        otherwise = self.condition() if self.takes("ELSE") else None
        self.expect("END")
        if not branches:
            self.leave()
        return Case(tuple(branches), otherwise)

    def type(self) -> DataType:
        start = self.token.start
        if self.kind != "word":
            self.leave()
        self.advance()
        if self.takes("("):
            while self.kind == "number" or self.token.folded == ",":
                self.advance()
            self.expect(")")
        try:
            return parse_type(parse_sql_type(self.text[start : self.tokens[self.at - 1].end]))
        except DeltaAnalysisException as error:
            raise NotDecided(f"nothing is cast to {self.text[start:][:30]!r} here") from error

    # -- literals -------------------------------------------------------------------------------------------------------------

    def string(self) -> str:
        """Return the value of one or more string literals, which Spark joins."""
        parts = []
        while self.kind == "string":
            parts.append(self.read(lambda: unescaped(self.token.value)))
            self.advance()
        return "".join(parts)

    def number(self) -> LiteralValue:
        sign = "-" if self.takes("-") else ""
        digits, suffix = number_parts(self.token.value)
        constant = self.read(lambda: literals.number_literal(sign + digits, suffix))
        self.advance()
        return LiteralValue(constant.value, constant.data_type)

    def typed(self, word: str) -> LiteralValue:
        self.advance()
        text = self.read(lambda: unescaped(self.token.value))
        if word == "X":
            found = LiteralValue(self.read(lambda: bytes.fromhex(_digits(text))), PrimitiveType("binary"))
        else:
            target = PrimitiveType(_TYPED[word])
            found = LiteralValue(self.read(lambda: literals.cast(literals.TypedLiteral(text, STRING), target).value), target)
        self.advance()
        return found

    def read(self, convert: Callable[[], Any]) -> Any:
        try:
            return convert()
        except (ValueError, OverflowError) as error:
            raise NotDecided(f"the literal {self.token.value[:50]} is not read here: {error}") from error


def _digits(text: str) -> str:
    digits = text if len(text) % 2 == 0 else f"0{text}"
    if not re.fullmatch("[0-9a-fA-F]*", digits):
        raise ValueError("it has other characters than hexadecimal digits")
    return digits
