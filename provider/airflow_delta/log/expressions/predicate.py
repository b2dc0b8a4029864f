"""Predicates on a table: their value, and their parts that decide by partition values or only by data.

As in Delta, the partition part consists of the conjuncts with partition columns only, or with no columns; a disjunction that
mixes partition and data columns belongs to the data part (Delta's ``DeltaTableUtils.splitMetadataAndDataPredicates``).
Conditions that only Spark can evaluate are unknown here, so they keep every file and every partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import PredicateException
from airflow_delta.log.arrow import kernels
from airflow_delta.log.expressions import ast, evaluation
from airflow_delta.log.expressions.parser import parse
from airflow_delta.log.schema.partition_index import NamedValues, PartitionIndex
from airflow_delta.log.schema.partition_values import Instants, parse_partition_value, possible_instants
from airflow_delta.log.schema.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa


__all__ = ["Predicate", "PredicateException", "partition_texts"]


class Predicate:
    """A predicate bound to a table's schema. Make one with :meth:`parse`.

    :param expression: the tree.
    """

    def __init__(self, expression: ast.Expression) -> None:
        self.expression = expression

    @classmethod
    def parse(
        cls,
        text: str,
        schema: StructType,
        partition_columns: Sequence[str] = (),
        *,
        table: str | None = None,
        version: int | None = None,
    ) -> Predicate:
        """Parse a predicate from Spark SQL. Timestamps without a zone are in UTC.

        :param table: URI of the table, for messages.
        :param version: whose schema this is, for messages.
        :raises PredicateException: if it does not parse, names an unknown column, or is not a condition on the columns of a row.
        """
        try:
            return cls(parse(text, schema, partition_columns))
        except PredicateException as error:
            if table is None:
                raise
            known = "" if version is None or version < 0 else f" version {version}"
            message = f"{error.message.rstrip('.')} (table {table}{known})."
            raise PredicateException(message, table=table, version=version) from error.__cause__

    @cached_property
    def text(self) -> str:
        """Return the predicate as Spark SQL with the same meaning in every session."""
        return str(self.expression)

    def __repr__(self) -> str:
        return f"Predicate({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Predicate) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @cached_property
    def columns(self) -> tuple[ast.ColumnReference, ...]:
        """Return the columns it refers to, without duplicates."""
        return tuple(dict.fromkeys(ast.columns(self.expression)))

    @property
    def partition_only(self) -> bool:
        """Return whether partition values alone decide it, without reading rows.

        The decision may still depend on the time zone of the Spark session: see :meth:`selects_partition`.
        """
        return all(column.is_partition for column in self.columns) and not any(ast.opaque(self.expression))

    @cached_property
    def widened(self) -> Predicate:
        """Return a predicate that is true wherever this one can be, without the conditions that only Spark can evaluate."""
        return Predicate(ast.widened(self.expression)) if any(ast.opaque(self.expression)) else self

    @cached_property
    def _parts(self) -> tuple[Predicate | None, Predicate | None]:
        by_partition: list[ast.Expression] = []
        by_data: list[ast.Expression] = []
        for part in ast.conjuncts(self.expression):
            (by_partition if all(c.is_partition for c in ast.columns(part)) else by_data).append(part)
        return (
            Predicate(ast.conjunction(by_partition)) if by_partition else None,
            Predicate(ast.conjunction(by_data)) if by_data else None,
        )

    @property
    def partition_part(self) -> Predicate | None:
        """Return the conjunction of the conjuncts that partition values decide, ``None`` if there are none."""
        return self._parts[0]

    @property
    def data_part(self) -> Predicate | None:
        """Return the conjunction of the other conjuncts, ``None`` if there are none."""
        return self._parts[1]

    @cached_property
    def named_values(self) -> NamedValues:
        """Return the values that it names for partition columns: it is true for rows only that have one of them in each."""
        return ast.named_values(self.expression)

    @cached_property
    def evaluate(self) -> Callable[[evaluation.Row], ast.Truth]:
        """Return a function from a row (values by physical path) to true, false or ``None`` (unknown)."""
        return evaluation.compile_expression(self.expression)

    def matches_partition(self, partition_values: Mapping[str, str | None]) -> bool:
        """Return whether a file with these partition values may have matching rows, judged by the partition part.

        :param partition_values: strings by physical name, as in an ``add`` action; a missing one is null.
        """
        if self.partition_part is None:
            return True
        part = self.partition_part.widened
        return part._may_hold(_row(part.columns, partition_values))

    def selects_partition(self, partition_values: Mapping[str, str | None]) -> bool:
        """Return whether the predicate is true for every row of a file with these partition values.

        For a timestamp without a zone this must be so in every time zone, since the Spark session decides which one applies.

        :param partition_values: as for :meth:`matches_partition`.
        """
        if not self.partition_only:
            return False
        row = _row(self.columns, partition_values)
        if any(isinstance(value, Instants) for value in row.values()):
            return evaluation.holds(self._pushed_down, row, surely=True)
        return self.evaluate(row) is True

    def selects_partitions(self, partitions: Iterable[Mapping[str, str | None]]) -> bool:
        """Return whether the predicate is true for every row of all files that match it (:meth:`matches_partition`).

        :param partitions: their partition values.
        """
        if not self.partition_only:
            return False
        return not self.zone_dependent or all(map(self.selects_partition, partitions))

    @property
    def zone_dependent(self) -> bool:
        """Return whether it refers to a partition column whose values may lack a time zone."""
        return any(column.is_partition and column.data_type.name == "timestamp" for column in self.columns)

    @cached_property
    def _pushed_down(self) -> ast.Expression:
        return ast.push_down_not(self.expression)

    def _may_hold(self, row: evaluation.Row) -> bool:
        if any(isinstance(value, Instants) for value in row.values()):
            return evaluation.holds(self._pushed_down, row, surely=False)
        return self.evaluate(row) is True

    def partition_mask(self, texts: Callable[[str], pa.Array], length: int) -> pa.BooleanArray:
        """Return which files may have matching rows, evaluating each distinct partition once.

        :param texts: returns the strings of a partition column, given its physical name.
        :param length: number of files.
        """
        import pyarrow as pa

        from airflow_delta.log.arrow import arrays

        part = None if self.partition_part is None else self.partition_part.widened
        if part is None or not part.columns:
            keep = part is None or part.evaluate({}) is True
            return arrays.repeated(keep, length)
        encoded = [kernels.dictionary_encode(texts(column.physical_path[0]), null_encoding="encode") for column in part.columns]
        values = [
            [_value(text, column) for text in array.dictionary.to_pylist()]
            for array, column in zip(encoded, part.columns, strict=True)
        ]
        combined = _combined(encoded)
        paths = [column.physical_path for column in part.columns]
        kept = [part._may_hold(dict(zip(paths, _digits(code, values), strict=True))) for code in combined.dictionary.to_pylist()]
        return kernels.take(arrays.array(kept, pa.bool_()), combined.indices)


def partitions_mask(predicates: Sequence[Predicate], texts: Callable[[str], pa.Array], length: int) -> pa.BooleanArray:
    """Return which files may have rows that match any of some predicates, judged by their partition parts.

    Predicates that name values of partition columns are asked only about partitions with these.

    :param texts: as for :meth:`Predicate.partition_mask`. So is ``length``.
    """
    import pyarrow as pa

    from airflow_delta.log.arrow import arrays

    parts = [predicate.partition_part for predicate in predicates]
    names = list(dict.fromkeys(column.physical_path[0] for part in parts if part is not None for column in part.columns))
    if None in parts or not names:
        return arrays.repeated(any(part is None or part.matches_partition({}) for part in parts), length)
    encoded = [kernels.dictionary_encode(texts(name), null_encoding="encode") for name in names]
    values = [array.dictionary.to_pylist() for array in encoded]
    combined = _combined(encoded)
    index = PartitionIndex(dict(zip(names, _digits(code, values), strict=True)) for code in combined.dictionary.to_pylist())
    kept = [False] * len(index.partitions)
    for part in filter(None, parts):
        for at in index.having(part.named_values):
            kept[at] = kept[at] or part.matches_partition(index.partitions[at])
    return kernels.take(arrays.array(kept, pa.bool_()), combined.indices)


def _combined(encoded: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    """Return a number for each combination of values: their indices as digits of a mixed-radix number (see :func:`_digits`)."""
    import pyarrow as pa

    from airflow_delta.log.arrow.arrays import scalar

    codes = kernels.cast(encoded[0].indices, pa.int64())
    for array in encoded[1:]:
        codes = kernels.add(kernels.multiply(codes, scalar(len(array.dictionary))), kernels.cast(array.indices, pa.int64()))
    return kernels.dictionary_encode(codes)


def _value(text: str | None, column: ast.ColumnReference) -> Any:
    return possible_instants(text, column.data_type) or parse_partition_value(text, column.data_type, str(column))


def _row(columns: Sequence[ast.ColumnReference], partition_values: Mapping[str, str | None]) -> dict[tuple[str, ...], Any]:
    return {c.physical_path: _value(partition_values.get(c.physical_path[0]), c) for c in columns}


def _digits(code: int, values: list[list[Any]]) -> list[Any]:
    result: list[Any] = []
    for column in reversed(values):
        code, position = divmod(code, len(column))
        result.append(column[position])
    return result[::-1]


def partition_texts(values: pa.MapArray, name: str) -> pa.Array:
    """Return the strings of one partition column from maps of partition values; null where it is missing."""
    from airflow_delta.log.arrow.arrays import scalar

    wanted = scalar(name)
    if len(values) and not values.null_count:
        start, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        keys, items = values.keys.slice(start, end - start), values.items.slice(start, end - start)
        found = kernels.filter(items, kernels.equal(keys, wanted))
        if len(found) == len(values):  # keys are unique in a map, so every map had one hit
            return found
    return kernels.map_lookup(values, wanted, "first")
