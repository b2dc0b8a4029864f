"""Which rows a read of the table selected, as far as another commit's files can be tested against it.

Every test is sound: a no is certain, and whatever is not understood may have been read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from airflow_delta.contract.key_values import is_stored_plainly
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.expressions import ast
from airflow_delta.log.expressions.arrow_rows import Values, decides, is_compared_exactly, may_select, row_columns
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.replay.filter import FileFilter
from airflow_delta.log.schema.types import StructType
from airflow_delta.transaction.reads.key_set import KeySet

if TYPE_CHECKING:
    import pyarrow as pa


class RowCondition:
    """The rows that one read selected.

    :param predicate: true for every row that was read; ``None``: it may be any row.
    :param keys: values of which each of these rows has one; a function is called when another commit makes them matter.
    """

    def __init__(self, predicate: Predicate | None, keys: KeySet | Callable[[], KeySet] | None = None) -> None:
        self._given = keys
        self._alone = predicate
        self._expression = ast.Constant(True) if predicate is None else ast.push_down_not(predicate.expression)

    @cached_property
    def _keys(self) -> KeySet | None:
        return self._given() if callable(self._given) else self._given

    @cached_property
    def _predicate(self) -> Predicate | None:
        """What is true for every row that was read, keys included."""
        parts = [] if self._alone is None else [self._alone.expression]
        if self._keys is not None:
            parts.append(self._keys.expression)
        return Predicate(ast.conjunction(parts)) if parts else None

    @property
    def expression(self) -> ast.Expression:
        """A condition that is true for every row that was read."""
        return ast.Constant(True) if self._predicate is None else self._predicate.expression

    @property
    def columns(self) -> list[ast.ColumnReference]:
        """The columns of the table whose values can tell that a row was not read."""
        found = list(row_columns(self._expression))
        return list(dict.fromkeys([*found, *(self._keys.columns if self._keys is not None else ())]))

    @property
    def is_exact(self) -> bool:
        """Whether :meth:`may_select` is certain of every row, if it gets the values of all columns."""
        keys = self._keys
        listed = keys is None or (keys.rows is not None and all(is_compared_exactly(column.data_type) for column in keys.columns))
        return listed and decides(self._expression)

    def fits(self, schema: StructType) -> bool:
        """Tell whether values under a schema mean what they meant to the read: names and types of its columns are as they were.

        Text that does not compare byte by byte (``char``, collations) never fits.
        """
        return self._predicate is None or all(_fits(schema, column) for column in self._predicate.columns)

    def may_hold(self, files: Sequence[AddFile]) -> list[bool]:
        """Return for each file whether its partition and statistics leave open that it has rows that were read."""
        if self._predicate is None:
            return [True] * len(files)
        try:
            kept = {id(file) for file in FileFilter(self._predicate).filter_actions(list(files))}
        except DeltaAnalysisException:  # a partition value that does not parse
            if len(files) == 1:
                return [True]
            return [kept for file in files for kept in self.may_hold([file])]
        return [id(file) in kept for file in files]

    def may_select(self, values: Values, length: int) -> pa.BooleanArray:
        """Return for each row of a file whether it may be one that was read.

        :param values: gives a column in the form of :func:`airflow_delta.log.expressions.arrow_rows.comparable`.
        """
        mask = may_select(self._expression, values, length)
        return mask if self._keys is None else pc.and_(mask, self._keys.may_select(values, length))


def _fits(schema: StructType, column: ast.ColumnReference) -> bool:
    struct: object = schema
    for name, physical in zip(column.path, column.physical_path, strict=True):
        field = struct.find(name) if isinstance(struct, StructType) else None
        if field is None or field.physical_name != physical:
            return False
        if not is_stored_plainly({"metadata": field.metadata}):
            return False
        struct = field.data_type
    return struct == column.data_type
