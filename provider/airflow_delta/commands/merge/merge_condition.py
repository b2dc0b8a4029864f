"""The condition of a MERGE: what it asks of the table alone, and which columns of table and source it compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaAnalysisException, PredicateException
from airflow_delta.log.expressions.text import split, tokens_of, tree_of
from airflow_delta.staging.contract import Json

if TYPE_CHECKING:
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.schema.types import StructType


class MergeCondition:
    """A condition over a row of the table and a row of the source.

    A column without an alias is the table's if the table has it; when the source has it as well, Spark refuses it as ambiguous.

    :param text: Spark SQL.
    :raises DeltaAnalysisException: it does not parse, or is no condition for a MERGE.
    """

    def __init__(self, text: str, schema: StructType, target_alias: str, source_alias: str, *, table: str) -> None:
        from sqlglot.errors import SqlglotError

        self._schema = schema
        self._target, self._source = target_alias.lower(), source_alias.lower()
        try:
            check_expression(text, table=table, repeatable=True)
            self.conjuncts = list(_conjuncts(text))
        except SqlglotError as error:
            raise refused(table, f"{text!r} does not parse as Spark SQL: {first_line(error)}") from error

    def of_target(self, parse: Callable[[str], Predicate | None]) -> Predicate | None:
        """Return what the condition asks of the table alone, ``None`` for nothing.

        :param parse: returns the predicate that a text stands for.
        """
        found = []
        for text in self.conjuncts:
            columns = list(self._columns(text))
            if any(side != "target" for side, _ in columns):
                continue
            alone = _without_alias(text, self._target)
            try:
                predicate = parse(alone)
            except PredicateException:  # the table has it read, and Spark says what is wrong with it
                continue
            # The worker reads timestamps in UTC, the session that evaluates the condition in its own time zone.
            if predicate is None or any(column.data_type.name == "timestamp" for column in predicate.columns):
                continue
            found.append(f"({alone})")
        return parse(" AND ".join(found)) if found else None

    def compared(self) -> list[Json]:
        """Return pairs of columns that are equal in rows that match: ``column``, ``source`` (Spark SQL), ``nullSafe``."""
        from sqlglot import exp

        found = []
        for text in self.conjuncts:
            node: Any = _unwrapped(tree_of(text))
            if not isinstance(node, exp.EQ | exp.NullSafeEQ):
                continue
            sides = [_unwrapped(node.this), _unwrapped(node.expression)]
            if not all(isinstance(side, exp.Column) for side in sides):
                continue
            by_side = {self._side(side)[0]: self._side(side)[1] for side in sides}
            names = by_side.get("target", [])
            field = self._schema.find(names[0]) if len(names) == 1 else None
            if field is None or "source" not in by_side:
                continue
            source = ".".join(_quoted(name) for name in by_side["source"])
            found.append({"column": field.name, "source": source, "nullSafe": isinstance(node, exp.NullSafeEQ)})
        return found

    def _columns(self, text: str) -> Iterator[tuple[str, list[str]]]:
        from sqlglot import exp

        for column in tree_of(text).find_all(exp.Column):
            yield self._side(column)

    def _side(self, column: Any) -> tuple[str, list[str]]:
        """Return whose a column is, and its names without the alias."""
        names = [part.name for part in column.parts]
        if len(names) > 1 and names[0].lower() in (self._target, self._source):
            return ("target" if names[0].lower() == self._target else "source"), names[1:]
        return ("target" if self._schema.find(names[0]) is not None else "source"), names


def check_expression(text: str, *, table: str, repeatable: bool = False) -> None:
    """Refuse what no expression of a MERGE may hold: subqueries and aggregates, and in conditions what changes with every look.

    :raises DeltaAnalysisException: it does.
    """
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    from airflow_delta.log.expressions.functions import NOT_DETERMINISTIC, oversized, refused_function

    if (problem := oversized(text)) is not None:
        raise refused(table, f"{text[:100]!r}... {problem}")
    try:
        tree = tree_of(text)
    except SqlglotError as error:
        raise refused(table, f"{text!r} does not parse as Spark SQL: {first_line(error)}") from error
    if tree.find(exp.Query, exp.AggFunc, exp.Window) is not None:
        raise refused(table, f"{text!r} holds a subquery or an aggregate; compute it in the source")
    if (problem := refused_function(text, assigned=not repeatable)) is not None:
        raise refused(table, f"{text!r} {problem}; compute it in the source")
    if repeatable:
        calls = (str(f.name if isinstance(f, exp.Anonymous) else f.sql_name()).lower() for f in tree.find_all(exp.Func))
        changing = next((name for name in calls if name in NOT_DETERMINISTIC), None)
        if changing is not None:
            raise refused(table, f"{text!r} uses {changing}(), which differs with every evaluation; compute it in the source")


def refused(table: str, what: str) -> DeltaAnalysisException:
    """Return the error of a MERGE that cannot be planned."""
    return DeltaAnalysisException(f"MERGE into table {table}: {what}.", table=table)


def first_line(error: Exception) -> str:
    """Return what a parser says, without its picture of the text."""
    return str(error).splitlines()[0].replace("\x1b[4m", "").replace("\x1b[0m", "")


def _conjuncts(text: str) -> Iterator[str]:
    pieces = split(text)
    if pieces is None or pieces[0] != "AND":
        yield text
        return
    for part in pieces[1]:
        yield from _conjuncts(part)


def _unwrapped(node: Any) -> Any:
    from sqlglot import exp

    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _without_alias(text: str, alias: str) -> str:
    """Return the text with ``alias.column`` as ``column``, all else word for word."""
    tokens = tokens_of(text)
    for position in range(len(tokens) - 2, -1, -1):
        token, dot = tokens[position], tokens[position + 1]
        after_dot = position > 0 and tokens[position - 1].token_type.name == "DOT"
        if token.text.lower() == alias and dot.token_type.name == "DOT" and not after_dot:
            text = text[: token.start] + text[dot.end + 1 :]
    return text


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
