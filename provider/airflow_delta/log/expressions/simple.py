"""Conditions that are compared here: columns with constants, ``IN``, ``BETWEEN``, ``LIKE`` and ``IS``, joined by ``AND``, ``OR``,
``NOT`` and parentheses.

They are read by Spark's own lexical rules, without sqlglot, whose import alone takes longer than what it is for, and which reads
some literals and types in another way. What is not certainly one of these conditions is for Spark
(:mod:`airflow_delta.log.expressions.predicate`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

from airflow_delta.contract.sql_types import parse_sql_type
from airflow_delta.exceptions import DeltaAnalysisException, PredicateException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.expressions import literals
from airflow_delta.log.expressions.ast import (
    FLIPPED,
    And,
    ColumnReference,
    Compare,
    Constant,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
)
from airflow_delta.log.expressions.name_resolution import Columns, UnsupportedError
from airflow_delta.log.expressions.string_literals import STRING, unescaped
from airflow_delta.log.schema.types import PrimitiveType, parse_type

# No possessive quantifier on a group: Python before 3.11.5 matches them wrongly.
_TOKEN = lazy_pattern(
    rf"""(?:[ \t\r\n]|--[^\n\\]*(?=\n|\Z)|/\*(?!\+)(?:(?!/\*|\*/).)*\*/)*(?:
      (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?P<suffix>[bB][dD]|[lLsSyYfFdD])?(?![\w.]))
    | (?P<string>{STRING})
    | `(?P<quoted>(?:[^`]|``)[^`]*+(?:``[^`]*+)*)`(?!`)
    | (?P<word>[^\W\d]\w*+)
    | (?P<operator><=>|<=|>=|<>|!=|==|=|<|>)(?![=<>!])
    | (?P<mark>::|[(),.]|-(?!-))
    | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_TYPED = {
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_LTZ": "timestamp",
    "TIMESTAMP_NTZ": "timestamp_ntz",
}
_CAST_FUNCTIONS = frozenset(
    re.findall(r"\w+", "tinyint smallint int bigint float double decimal string boolean date timestamp binary")
)
_SPELLINGS = {"!=": "<>", "==": "="}
_MAX_PATTERN = 1 << 12
_PATTERN = lazy_pattern(r"(?:[^\\]|\\[_%\\])*", re.DOTALL)
_BOOLEAN = PrimitiveType("boolean")

# Names that are something else to Spark, or may be, unless they are quoted.
_RESERVED = frozenset(
    re.findall(
        r"\w+",
        """
        all and between case cast distinct div else end exists false from ilike in interval is like not null or regexp rlike
        select then true try_cast values when
        """,
    )
)


class _NotSimple(Exception):
    """The text is for Spark."""


Operand = Expression | ColumnReference | literals.TypedLiteral


def parse_simple(text: str, columns: Columns) -> Expression | None:
    """Return the tree of a condition that is compared here, ``None`` for any other text.

    :raises PredicateException: if it compares a column with what is certainly not a value of its type.
    """
    try:
        return _Simple(text, columns).predicate()
    except PredicateException:
        raise
    except (_NotSimple, UnsupportedError, ValueError, RecursionError):
        return None


class _Simple:
    def __init__(self, text: str, columns: Columns) -> None:
        self.text = text
        self.columns = columns
        self.at = self.end = 0
        self.problem: PredicateException | None = None
        self.advance()

    # -- tokens ---------------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        self.end = self.at
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            raise _NotSimple
        self.token = match
        self.kind = "number" if match["number"] else str(match.lastgroup)
        self.value = match[self.kind]
        self.at = match.end()

    @property
    def start(self) -> int:
        """Return where the token begins in the text."""
        return self.token.start(self.kind)

    def take(self) -> str:
        value = self.value
        self.advance()
        return value

    def takes(self, *words: str) -> bool:
        """Step over one of some keywords or marks, if it is next."""
        if self.kind not in ("word", "mark") or self.value.upper() not in words:
            return False
        self.advance()
        return True

    def expect(self, word: str) -> None:
        if not self.takes(word):
            self.leave()

    def leave(self) -> NoReturn:
        raise _NotSimple

    # -- grammar --------------------------------------------------------------------------------------------------------------

    def predicate(self) -> Expression:
        expression = self.condition_of(self.disjunction())
        if self.kind != "end":
            self.leave()
        if self.problem is not None:
            raise self.problem
        return expression

    def disjunction(self) -> Operand:
        return self.joined("OR", Or, lambda: self.joined("AND", And, self.negation))

    def joined(self, word: str, kind: type[And | Or], part: Callable[[], Operand]) -> Operand:
        first = part()
        if self.kind != "word" or self.value.upper() != word:
            return first
        parts = [self.condition_of(first)]
        while self.takes(word):
            parts.append(self.condition_of(part()))
        return kind(tuple(parts))

    def negation(self) -> Operand:
        if self.takes("NOT"):
            return Not(self.condition_of(self.negation()))
        return self.about(self.operand())

    def condition_of(self, operand: Operand) -> Expression:
        """Return an operand as a condition."""
        if isinstance(operand, literals.TypedLiteral):
            if operand.data_type not in (_BOOLEAN, literals.NULL):
                self.leave()
            return Constant(operand.value)
        if isinstance(operand, ColumnReference):
            if operand.data_type != _BOOLEAN:
                self.wrong(f"uses {operand} ({operand.data_type}) as a condition; compare it with a value")
            return Compare("=", operand, Literal(True, operand.data_type))
        return operand

    def about(self, left: Operand) -> Operand:
        if self.kind == "operator":
            operator = self.take()
            return self.comparison(left, _SPELLINGS.get(operator, operator), self.operand())
        if self.takes("IS"):
            return self.negated(self.takes("NOT"), self.is_condition(left))
        if self.kind != "word" or self.value.upper() not in ("NOT", "IN", "BETWEEN", "LIKE"):
            return left
        return self.negated(self.takes("NOT"), self.within(self.column_of(left)))

    def negated(self, negated: bool, condition: Expression) -> Expression:
        return Not(condition) if negated else condition

    def comparison(self, left: Operand, operator: str, right: Operand) -> Expression:
        if isinstance(left, ColumnReference) and isinstance(right, literals.TypedLiteral):
            return self.compare(operator, left, right)
        if isinstance(left, literals.TypedLiteral) and isinstance(right, ColumnReference):
            return self.compare(FLIPPED[operator], right, left)
        if not isinstance(left, literals.TypedLiteral) or not isinstance(right, literals.TypedLiteral):
            self.leave()
        plain = left.data_type == right.data_type and left.data_type.name in ("integer", "long", "string", "boolean")
        if not plain or None in (left.value, right.value) or operator not in ("=", "<>", "<=>"):
            self.leave()
        return Constant((left.value == right.value) != (operator == "<>"))

    def compare(self, operator: str, column: ColumnReference, constant: literals.TypedLiteral) -> Compare:
        value = self.checked(column, None, lambda: literals.coerce(constant, column.data_type), constant.value)
        if operator not in ("=", "<>", "<=>") and literals.is_beyond_long(value, column.data_type):
            self.leave()  # Spark makes it true or false for nulls, too
        return Compare(operator, column, Literal(value, column.data_type))

    def is_condition(self, left: Operand) -> Expression:
        column = self.column_of(left)
        if self.takes("NULL"):
            return IsNull(column)
        if self.takes("DISTINCT"):
            self.expect("FROM")
            return Not(self.compare("<=>", column, self.constant()))
        constant = self.constant()
        if column.data_type != _BOOLEAN or constant.data_type != _BOOLEAN or not constant.is_literal:
            self.leave()
        return self.compare("<=>", column, constant)

    def within(self, column: ColumnReference) -> Expression:
        if self.takes("IN"):
            self.expect("(")
            start, listed = self.start, [self.constant()]
            while self.takes(","):
                listed.append(self.constant())
            values = self.checked(column, start, lambda: literals.coerce_listed(listed, column.data_type)) or [None]
            self.expect(")")
            return In(column, tuple(Literal(value, column.data_type) for value in values))
        if column.char_length is not None:
            self.leave()  # Spark fills it up with spaces, but not what it compares it with here
        if self.takes("BETWEEN"):
            low = self.compare(">=", column, self.constant())
            self.expect("AND")
            return And((low, self.compare("<=", column, self.constant())))
        self.expect("LIKE")
        pattern = self.constant()
        if column.data_type.name != "string" or pattern.data_type.name != "string" or pattern.value is None:
            self.leave()
        if len(pattern.value) > _MAX_PATTERN or not _PATTERN.fullmatch(pattern.value):
            self.leave()
        return Like(column, pattern.value)

    # -- operands -------------------------------------------------------------------------------------------------------------

    def operand(self) -> Operand:
        start = self.start
        operand = self.operand_without_casts()
        while self.takes("::"):
            operand = self.cast(operand, start, self.type(), tries=False)
        return operand

    def operand_without_casts(self) -> Operand:
        if self.takes("("):
            inside = self.disjunction()
            self.expect(")")
            return inside._replace(is_literal=False) if isinstance(inside, literals.TypedLiteral) else inside
        if self.kind == "string":
            return literals.TypedLiteral(self.string(), PrimitiveType("string"))
        if self.kind == "number" or (self.kind == "mark" and self.value == "-"):
            return self.number()
        word = self.value.upper() if self.kind == "word" else ""
        if word in ("TRUE", "FALSE"):
            self.advance()
            return literals.TypedLiteral(word == "TRUE", _BOOLEAN)
        if word == "NULL":
            self.advance()
            return literals.TypedLiteral(None, literals.NULL)
        if word in ("CAST", "TRY_CAST") and self.text[self.at : self.at + 1] == "(":
            return self.cast_call()
        if word.lower() in _CAST_FUNCTIONS and self.text[self.at : self.at + 1] == "(":
            return self.cast_function()
        if (word in _TYPED or word == "X") and (following := _TOKEN.match(self.text, self.at)) and following["string"]:
            return self.typed(word)
        return self.column()

    def column_of(self, operand: Operand) -> ColumnReference:
        if not isinstance(operand, ColumnReference):
            self.leave()
        return operand

    def constant(self) -> literals.TypedLiteral:
        operand = self.operand()
        if not isinstance(operand, literals.TypedLiteral):
            self.leave()
        return operand

    def column(self) -> ColumnReference:
        names = [self.name()]
        while self.takes("."):
            names.append(self.take() if self.kind == "word" else self.name())  # no word is special there
        try:
            return self.columns.resolve(names)
        except PredicateException as error:  # perhaps a keyword; if not, the other parser says that there is no such column
            raise _NotSimple from error

    def name(self) -> str:
        if self.kind == "quoted":
            return self.take().replace("``", "`")
        if self.kind != "word" or self.value.lower() in _RESERVED:
            self.leave()
        return self.take()

    def string(self) -> str:
        """Return the value of one or more string literals, which Spark joins."""
        parts = [unescaped(self.take())]
        while self.kind == "string":
            parts.append(unescaped(self.take()))
        return "".join(parts)

    def number(self) -> literals.TypedLiteral:
        sign = "-" if self.takes("-") else ""
        if self.kind != "number":
            self.leave()
        suffix = self.token["suffix"] or ""
        return literals.number_literal(sign + self.take().removesuffix(suffix), suffix.upper())

    def typed(self, word: str) -> literals.TypedLiteral:
        start = self.start
        self.advance()
        text = unescaped(self.take())
        if word == "X":
            digits = text if len(text) % 2 == 0 else f"0{text}"
            if not re.fullmatch("[0-9a-fA-F]*", digits):
                self.leave()
            return literals.TypedLiteral(bytes.fromhex(digits), PrimitiveType("binary"))
        return self.converted(
            literals.TypedLiteral(text, PrimitiveType("string")), start, PrimitiveType(_TYPED[word]), tries=False
        )

    def cast_call(self) -> Operand:
        start = self.start
        tries = self.take().upper() == "TRY_CAST"
        self.expect("(")
        operand = self.operand()
        self.expect("AS")
        target = self.type()
        self.expect(")")
        return self.cast(operand, start, target, tries=tries)

    def cast_function(self) -> Operand:
        start, target = self.start, parse_type(parse_sql_type(self.take()))
        self.expect("(")
        operand = self.operand()
        self.expect(")")
        return self.cast(operand, start, target, tries=False)

    def type(self) -> Any:
        """Return the type that is next: a name, perhaps with numbers in parentheses."""
        start = self.start
        if self.kind != "word":
            self.leave()
        self.advance()
        if self.takes("("):
            while self.kind == "number" or (self.kind == "mark" and self.value == ","):
                self.advance()
            self.expect(")")
        try:
            return parse_type(parse_sql_type(self.text[start : self.end]))
        except DeltaAnalysisException as error:
            raise _NotSimple from error

    def cast(self, operand: Operand, start: int, target: Any, *, tries: bool) -> literals.TypedLiteral:
        if not isinstance(operand, literals.TypedLiteral):
            self.leave()
        return self.converted(operand, start, target, tries=tries)

    # -- values ---------------------------------------------------------------------------------------------------------------

    def converted(self, constant: literals.TypedLiteral, start: int, target: Any, *, tries: bool) -> literals.TypedLiteral:
        try:
            return literals.cast(constant, target)
        except literals.NotComparableError:
            raise
        except (ValueError, OverflowError) as error:
            if tries:
                self.leave()
            self.wrong(f"contains {self.text[start : self.end]!r}: {error}")
            return literals.TypedLiteral(None, target, is_literal=False)

    def checked(self, column: ColumnReference, start: int | None, convert: Callable[[], Any], shown: Any = None) -> Any:
        try:
            return convert()
        except literals.NotComparableError:
            raise
        except (ValueError, OverflowError) as error:
            what = repr(shown) if start is None else f"({self.text[start : self.end]})"
            self.wrong(f"compares column {column} ({column.data_type}) with {what}: {error}")
            return None

    def wrong(self, what: str) -> None:
        """Keep an error, for the case that the whole text is a condition of this form."""
        self.problem = self.problem or PredicateException(f"The predicate {self.text!r} {what}")
