"""The predicates that most tasks give, parsed without sqlglot, whose import alone takes longer than what they are for.

Comparisons of a column with literals, ``IN``, ``BETWEEN`` and ``IS NULL``, joined by ``AND``, ``OR``, ``NOT`` and parentheses.
What is not certainly one of these is left to :mod:`airflow_delta.log.expressions.parser`, also to say what is wrong with it; a
test compares the trees that both make.
"""

from __future__ import annotations

import decimal
import re
from typing import NoReturn

from airflow_delta.exceptions import PredicateException
from airflow_delta.log.expressions import literals
from airflow_delta.log.expressions.ast import And, Column, Compare, Constant, Expression, In, IsNull, Literal, Not, Or
from airflow_delta.log.expressions.resolve import Columns, UnsupportedError

_TOKEN = re.compile(
    r"""[ \t\r\n]*+(?:
      (?P<number>-?[0-9]++(?:\.[0-9]++)?(?P<suffix>BD|[LD])?(?![\w.]))
    | '(?P<string>[^'\\]*+)'
    | `(?P<quoted>(?:[^`]|``)[^`]*+(?:``[^`]*+)*)`(?!`)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*+)(?![\w`'"])
    | (?P<operator><=>|<=|>=|<>|!=|=|<|>)(?![=<>!])
    | (?P<mark>[(),.])
    | (?P<end>\Z)
    )""",
    re.VERBOSE | re.ASCII,
)
_SUFFIXES = {"L": "integer", "D": "double", "BD": "decimal"}
_TYPED = {"DATE": "date", "TIMESTAMP": "timestamp", "TIMESTAMP_NTZ": "timestamp_ntz"}
_CONSTANTS = {"TRUE": (True, "boolean"), "FALSE": (False, "boolean"), "NULL": (None, "null")}

# Names that mean something else to Spark or to sqlglot, unless they are quoted.
_RESERVED = frozenset(
    re.findall(
        r"\w+",
        """
        all alter analyze and any array as begin between both cache call case cast collate column comment commit
        connect_by_root constraint copy create cross current_catalog current_date current_database current_schema
        current_time current_timestamp current_timezone current_user curdate declare default delete desc describe distinct
        div drop else end escape except execute exists explain extract false fetch filter for from full glob grant group
        having if ilike in inner insert intersect interval into is isnull join kill lateral leading left like limit load
        localtime localtimestamp map merge minus natural next not notnull now null offset on only optimize or order outer
        overlaps partition partitioned_by pivot pragma prepare prior qualify refresh regexp rename replace returning revoke
        right rlike rollback row rows select serdeproperties session_user set show similar some sort struct sysdate
        system_user table tablesample then to trailing true truncate try_cast uncache union unique unknown unpivot update
        use user using vacuum values when where window with xor
        """,
    )
)


class _NotSimple(Exception):
    """The text is for the other parser."""


def parse_simple(text: str, columns: Columns) -> Expression | None:
    """Return the tree of a simple predicate, ``None`` for any other text."""
    try:
        return _Simple(text, columns).predicate()
    except (_NotSimple, UnsupportedError, PredicateException, ValueError, OverflowError, RecursionError):
        return None


class _Simple:
    def __init__(self, text: str, columns: Columns) -> None:
        self.text = text
        self.columns = columns
        self.at = 0
        self.advance()

    # -- tokens ---------------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            raise _NotSimple
        self.token = match
        self.kind = "number" if match["number"] else str(match.lastgroup)
        self.value = match[self.kind]
        self.at = match.end()

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
        expression = self.disjunction()
        if self.kind != "end":
            self.leave()
        return expression

    def disjunction(self) -> Expression:
        parts = [self.conjunction()]
        while self.takes("OR"):
            parts.append(self.conjunction())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def conjunction(self) -> Expression:
        parts = [self.condition()]
        while self.takes("AND"):
            parts.append(self.condition())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def condition(self) -> Expression:
        if self.takes("NOT"):
            self.expect("(")
            return Not(self.closed(self.disjunction()))
        if self.takes("("):
            return self.closed(self.disjunction())
        if self.takes("TRUE"):
            return Constant(True)
        if self.takes("FALSE"):
            return Constant(False)
        return self.about(self.column())

    def closed(self, expression: Expression) -> Expression:
        self.expect(")")
        return expression

    def about(self, column: Column) -> Expression:
        if self.kind == "operator":
            operator = self.take().replace("!=", "<>")
            return Compare(operator, column, self.literal(column))
        if self.takes("IS"):
            negated = self.takes("NOT")
            self.expect("NULL")
            return Not(IsNull(column)) if negated else IsNull(column)
        negated = self.takes("NOT")
        found = self.within(column)
        return Not(found) if negated else found

    def within(self, column: Column) -> Expression:
        if self.takes("IN"):
            self.expect("(")
            listed = [self.literal(column)]
            while self.takes(","):
                listed.append(self.literal(column))
            self.expect(")")
            return In(column, tuple(listed))
        self.expect("BETWEEN")
        low = self.literal(column)
        self.expect("AND")
        return And((Compare(">=", column, low), Compare("<=", column, self.literal(column))))

    def column(self) -> Column:
        names = [self.name()]
        while self.takes("."):
            names.append(self.name())
        return self.columns.resolve(names)

    def name(self) -> str:
        if self.kind == "quoted":
            return self.take().replace("``", "`")
        if self.kind != "word" or self.value.lower() in _RESERVED:
            self.leave()
        return self.take()

    def literal(self, column: Column) -> Literal:
        return Literal(literals.coerce(self.constant(), column.data_type), column.data_type)

    def constant(self) -> literals.Constant:
        if self.kind == "string":
            return literals.Constant(self.take(), "string")
        if self.kind == "number":
            return self.number()
        word = self.value.upper() if self.kind == "word" else ""
        if word in _CONSTANTS:
            self.advance()
            return literals.Constant(*_CONSTANTS[word])
        if word in _TYPED:
            self.advance()
            if self.kind != "string":
                self.leave()
            return literals.cast(literals.Constant(self.take(), "string"), _TYPED[word])
        raise _NotSimple

    def number(self) -> literals.Constant:
        suffix = self.token["suffix"] or ""
        text = self.take().removesuffix(suffix)
        if len(text) > literals.MAX_DIGITS:
            self.leave()
        value = decimal.Decimal(text) if "." in text else int(text)
        constant = literals.Constant(value, "decimal" if "." in text else "integer")
        return literals.cast(constant, _SUFFIXES[suffix]) if suffix else constant
