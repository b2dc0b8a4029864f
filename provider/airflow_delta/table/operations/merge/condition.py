"""The condition of a MERGE: what it asks of the table alone, and which columns it compares."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.merge import ComparedColumns
from airflow_delta.exceptions import PredicateException
from airflow_delta.log.expressions.nodes import column_of, compared_texts, named_columns
from airflow_delta.log.expressions.text import SqlSyntaxError, tokens_of, tree_of
from airflow_delta.log.schema.suggestions import known_names
from airflow_delta.table.operations.merge.clauses import check_expression, refused
from airflow_delta.table.stage.compared_columns import Sides, conjunct_texts

if TYPE_CHECKING:
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.schema.types import DataType, StructType

_SAME_AS_TEXT = ("string", "boolean", "date", "timestamp", "timestamp_ntz")
"""Types that text is always cast to in comparisons. Timestamps are left out elsewhere."""

_DIGITS = {"byte": 2, "short": 4, "integer": 9, "long": 18}
"""Number of digits that always fit."""


class MergeCondition:
    """A condition over a row of the table and a row of the source.

    :param text: Spark SQL.
    :raises DeltaAnalysisException: if it is not valid Spark SQL, or not a condition that a MERGE can have.
    """

    def __init__(self, text: str, schema: StructType, target_alias: str, source_alias: str, *, table: str) -> None:
        self._sides = Sides(schema, target_alias.lower(), source_alias.lower())
        try:
            check_expression(text, table=table, repeatable=True)
            self.conjuncts = list(conjunct_texts(text))
        except SqlSyntaxError as error:
            raise refused(table, f"{text!r} is not valid Spark SQL: {error}") from error
        if (name := self._sides.unknown(self.conjuncts)) is not None:
            known = known_names(name, schema.names)
            raise refused(table, f"{text!r} names the column {name!r}, which the table does not have. {known}")

    def of_target(self, parse: Callable[[str], Predicate | None]) -> Predicate | None:
        """Return what the condition asks of the table alone, ``None`` for nothing.

        :param parse: parses a predicate.
        """
        found = []
        for text in self.conjuncts:
            columns = list(self._columns(text))
            if any(side != "target" for side, _ in columns) or self._compares_text(text):
                continue
            alone = _without_alias(text, self._sides.target)
            try:
                predicate = parse(alone)
            except PredicateException:  # the whole table is read, and Spark reports the error
                continue
            # The worker reads timestamps in UTC, the session that evaluates the condition in its own time zone.
            if predicate is None or any(column.data_type.name == "timestamp" for column in predicate.columns):
                continue
            found.append(f"({alone})")
        return parse(" AND ".join(found)) if found else None

    def compared(self) -> list[ComparedColumns]:
        """Return the columns that are equal in rows that match."""
        return self._sides.compared(self.conjuncts)

    def _compares_text(self, text: str) -> bool:
        """Tell whether another type is compared with text, so that the meaning depends on the ANSI mode.

        Outside of it, IN compares both as text, and other comparisons cast the text. Whole numbers of few digits are the same.
        """
        for literal, others, within in compared_texts(tree_of(text)):
            for other in others:
                data_type = self._type_of(other)
                if within and (data_type is None or data_type.name != "string"):
                    return True
                if data_type is None or data_type.name in _SAME_AS_TEXT:
                    continue
                digits = _DIGITS.get(data_type.name, 0)
                if not digits or re.fullmatch(f"-?[0-9]{{1,{digits}}}", literal) is None:
                    return True
        return False

    def _type_of(self, node: Any) -> DataType | None:
        """Return the type of a column of the table, or of a field of a struct; ``None`` for anything else."""
        column = column_of(node)
        if column is None:
            return None
        found: DataType | None = self._sides.schema
        for name in self._sides.of(column)[1]:
            find = getattr(found, "find", None)
            field = None if find is None else find(name)
            found = None if field is None else field.data_type
        return found

    def _columns(self, text: str) -> Iterator[tuple[str, list[str]]]:
        yield from map(self._sides.of, named_columns(tree_of(text)))


def _without_alias(text: str, alias: str) -> str:
    """Return the text with ``alias.column`` as ``column``, otherwise unchanged."""
    tokens = tokens_of(text)
    for position in range(len(tokens) - 2, -1, -1):
        token, dot = tokens[position], tokens[position + 1]
        after_dot = position > 0 and tokens[position - 1].token_type.name == "DOT"
        if token.text.lower() == alias and dot.token_type.name == "DOT" and not after_dot:
            text = text[: token.start] + text[dot.end + 1 :]
    return text
