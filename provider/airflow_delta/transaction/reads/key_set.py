"""The values that a MERGE looks up in the table: rows that equal none of them were not read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.arrow.arrays import array, repeated
from airflow_delta.log.expressions import ast
from airflow_delta.log.expressions.arrow_rows import Values, is_among

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_LISTED = 1000


@dataclass(frozen=True)
class KeySet:
    """The values of some columns in the source of a MERGE. A row of the table can only match if it equals one of them.

    :param columns: columns of the table, of types that :mod:`airflow_delta.log.expressions.arrow_rows` compares exactly.
    :param null_safe: for each column, whether null equals null.
    :param low: least value of each column; ``None`` if the source has none but nulls.
    :param high: greatest value.
    :param nulls: whether the source has nulls in each column.
    :param rows: the values of each row of the source; ``None`` if only the bounds are known.
    """

    columns: tuple[ast.ColumnReference, ...]
    null_safe: tuple[bool, ...]
    low: tuple[Any, ...]
    high: tuple[Any, ...]
    nulls: tuple[bool, ...]
    rows: frozenset[tuple[Any, ...]] | None = None

    @cached_property
    def expression(self) -> ast.Expression:
        """A condition that is true for every row that may match: the bounds of each column, or its values if they are few."""
        return ast.conjunction([self._of_column(position) for position in range(len(self.columns))])

    def may_select(self, values: Values, length: int) -> pa.BooleanArray:
        """Return for each row whether it may match.

        :param values: gives a column in the form of :func:`airflow_delta.log.expressions.arrow_rows.comparable`.
        """
        mask = repeated(True, length)
        if self.rows is None:
            return mask
        known = [values(column) for column in self.columns]
        for position, found in enumerate(known):
            if found is not None:
                mask = pc.and_(mask, self._among(position, found))
        if len(self.columns) == 1 or any(found is None for found in known) or not pc.any(mask).as_py():
            return mask
        chosen = pc.indices_nonzero(mask)  # values of other rows may be none that Python can represent
        left = [found.take(chosen).to_pylist() for found in known if found is not None]
        kept = [False] * length
        for position, row in zip(chosen.to_pylist(), zip(*left, strict=True), strict=True):
            kept[position] = self._matches(row)
        return array(kept, mask.type)

    def _matches(self, row: Sequence[Any]) -> bool:
        return tuple(row) in (self.rows or ())

    def _among(self, position: int, values: pa.Array) -> pa.BooleanArray:
        found = is_among(values, self._listed[position], self.columns[position].data_type)
        if found is None:
            return repeated(True, len(values))
        return pc.or_(found, pc.is_null(values)) if self._matches_null(position) else found

    @cached_property
    def _listed(self) -> list[list[Any]]:
        """The distinct values of each column."""
        found: list[set[Any]] = [set() for _ in self.columns]
        for row in self.rows or ():
            for values, value in zip(found, row, strict=True):
                if value is not None:
                    values.add(value)
        return [list(values) for values in found]

    def _matches_null(self, position: int) -> bool:
        return self.null_safe[position] and self.nulls[position]

    def _of_column(self, position: int) -> ast.Expression:
        column = self.columns[position]
        if self.low[position] is None:
            matches: ast.Expression = ast.Constant(False)
        elif self.rows is not None and len(self._listed[position]) <= _MAX_LISTED:
            matches = ast.In(column, tuple(ast.Literal(value, column.data_type) for value in self._listed[position]))
        else:
            low, high = (ast.Literal(value, column.data_type) for value in (self.low[position], self.high[position]))
            matches = ast.And((ast.Compare(">=", column, low), ast.Compare("<=", column, high)))
        return ast.Or((matches, ast.IsNull(column))) if self._matches_null(position) else matches
