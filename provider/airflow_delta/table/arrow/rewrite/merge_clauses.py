"""The clauses of a MERGE in the worker: which applies to a row, and the rows that result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.merge import DELETE, INSERT, NOT_MATCHED, NOT_MATCHED_BY_SOURCE, UPDATE, MergeArguments, MergeClause
from airflow_delta.contract.merge_columns import (
    Assigned,
    absent_fields,
    check_types,
    evolved_schema,
    known_path,
    put,
    refused_merge,
    star_columns,
)
from airflow_delta.contract.zones import zoneless_values
from airflow_delta.exceptions import DeltaUnsupportedOperationException
from airflow_delta.log.arrow.arrays import array, repeated
from airflow_delta.log.expressions.sql_text import quote_name
from airflow_delta.log.schema.types import DataType, StructType, arrow_type, as_nullable, struct_of, type_to_json
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.arrow.align import empty_as_null
from airflow_delta.table.arrow.defaults import Counter, default_value
from airflow_delta.table.arrow.rewrite.conversions import Conversions, Converted
from airflow_delta.table.arrow.rewrite.copied_rows import copied_rows
from airflow_delta.table.arrow.rewrite.new_values import Values, decided, stored_values, with_fields
from airflow_delta.table.arrow.row_checks import check_not_null, needs_spark, row_checks
from airflow_delta.table.expressions.row_expression import RowExpression, columns_of, columns_under

if TYPE_CHECKING:
    from airflow_delta.table.arrow.rewrite.attempt import WorkerRewrite
    from airflow_delta.table.arrow.rewrite.merge_source import SourceRows
    from airflow_delta.table.expressions.row_expression import Resolve

TARGET, SOURCE = "target.", "source."
"""What the columns of rows of the table and of the source begin with where both are in one batch."""


class RowClauses:
    """The clauses of a request, bound to its table and its source.

    :ivar table: the table's schema; ``work.target`` is the schema afterwards, with new columns of the source.
    :ivar all_move: a partition column gets another type, in which its values may have other texts: also of rows that are copied.
    :ivar stay: rows that are updated stay in the partition of their file.
    """

    def __init__(self, work: WorkerRewrite, source: SourceRows, arguments: MergeArguments) -> None:
        self._work, self._request, self._source = work, work.request, source
        self._arguments = arguments
        self.all = arguments.clauses
        self.table: StructType = work.reader.schema
        definition = TableDefinition.of_rows(work.request.schema_string or "", work.request.partition_columns)
        evolved = evolved_schema(work.request, self.all, definition.struct, source.schema)
        self._target_json = evolved
        if evolved is not definition.struct:
            work.target = struct_of(evolved)
        self.all_move = False
        self._olds = self._old_values()
        of_table, of_source = columns_of(self.table), columns_of(source.struct)
        self.of_source = columns_under(of_source, arguments.source_alias, SOURCE)
        self.of_target = columns_under(of_table, arguments.target_alias, TARGET)
        self._ids = [field.name for field in work.stored.fields[len(work.target.fields) :]]
        self.both = _either(self.of_target, self.of_source, work.request)
        self._conditions: dict[int, RowExpression | None] = {}
        self._values: dict[int, Assigned] = {}
        for number, clause in enumerate(self.all):
            self._bind(number, clause)
        self._counters = {rule.column.lower(): Counter(rule, work.request) for rule in self._counted}
        in_path = {name.lower() for name in work.request.partition_columns}
        self._partitions = [field.name for field in work.target if field.name.lower() in in_path]
        set_or_generated = {name.lower() for name in work.request.rules.generated}.union(*self._updates.values())
        self.stay = not self.all_move and not in_path & set_or_generated
        if not self.stay and (columns := zoneless_values(work.plan)):
            raise needs_spark(
                work.request,
                f"has partitions whose {next(iter(columns))} lacks a time zone, and rows go to other partitions: it is in the "
                "zone of Spark's session",
            )
        self._checks = row_checks(work.request, evolved, work.target)
        self._copied = copied_rows(work.request, evolved, self._checks)
        self._generated: dict[str, Values] = {}
        for name, text in work.request.rules.generated.items():
            generated = work.target.find(name)
            if generated is not None:
                why = f"has the generated column {generated.name} ({text})"
                self._generated[generated.name] = stored_values(
                    text, generated.name, generated.data_type, columns_of(work.target), work.request, why
                )

    # -- which clause ---------------------------------------------------------------------------------------------------------

    def of(self, *kinds: str, action: str | None = None) -> list[int]:
        """Return the numbers of the clauses of some kinds, in order."""
        return [i for i, c in enumerate(self.all) if c.kind in kinds and (action is None or c.action == action)]

    def columns(self, numbers: Iterable[int]) -> set[str]:
        """Return the columns of the batch that the conditions of clauses read."""
        return {name for i in numbers if (condition := self._conditions[i]) is not None for name in condition.columns}

    def decide(self, rows: pa.RecordBatch, numbers: Sequence[int]) -> pa.Array:
        """Return the number of the first clause whose condition is true for each row; null if there is none.

        As in Spark, a condition is evaluated for the rows that no clause before it takes.
        """
        left = array(range(rows.num_rows), pa.int64())
        found: list[tuple[pa.Array, int]] = []
        for number in numbers:
            condition = self._conditions[number]
            if condition is None:
                found.append((left, number))
                left = left.slice(0, 0)
                break
            true = condition.true(rows if len(left) == rows.num_rows else rows.take(left))
            found.append((left.filter(true), number))
            left = left.filter(pc.invert(true))
        clauses = [repeated(number, len(at), pa.int8()) for at, number in found] + [pa.nulls(len(left), pa.int8())]
        at = pa.concat_arrays([*(at for at, _ in found), left])
        return pa.concat_arrays(clauses).take(pc.sort_indices(at))

    # -- the rows -------------------------------------------------------------------------------------------------------------

    def updated(self, rows: pa.RecordBatch, both: pa.RecordBatch, number: int) -> pa.RecordBatch:
        """Return rows of the table with the values that a clause sets; other values stay.

        :param rows: the columns of files.
        :param both: the same rows, and those of the source that they match.
        """
        values = self._updates[number]
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        found: dict[str, pa.Array] = {}
        for field in self._work.target:
            set_by = values.get(field.name.lower())
            if set_by is not None:
                found[field.name] = set_by(both)
            else:
                found[field.name] = self._olds[field.name](rows)
        for name, is_version in zip(self._ids, (False, True), strict=False):
            found[name] = pa.nulls(rows.num_rows, pa.int64()) if is_version else columns[name]
        return self._checked(found, values)

    def inserted(self, both: pa.RecordBatch, number: int) -> pa.RecordBatch:
        """Return the rows that a clause makes of rows of the source."""
        values = self._inserts[number]
        found: dict[str, pa.Array] = {}
        for field in self._work.target:
            folded = field.name.lower()
            if folded in values:
                found[field.name] = values[folded](both)
            elif folded in self._counters:
                found[field.name] = self._counters[folded].take(both.num_rows)
            elif folded in self._defaults:
                found[field.name] = self._defaults[folded](both)
            else:
                found[field.name] = pa.nulls(both.num_rows, arrow_type(as_nullable(field.data_type)))
        found |= {name: pa.nulls(both.num_rows, pa.int64()) for name in self._ids}
        return self._checked(found, values)

    def unchanged(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the table with the columns that it gets."""
        if self._work.target is self.table:
            return rows
        columns = [old(rows) for old in self._olds.values()] + [rows.column(name) for name in self._ids]
        return pa.RecordBatch.from_arrays(columns, names=[*self._olds, *self._ids])

    def copied(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the same for rows that are written again, each checked against the table's rules."""
        return self._copied(self.unchanged(rows))

    def _old_values(self) -> dict[str, Values]:
        """Return what the table's rows have in the columns afterwards: new columns and fields are null."""
        found: dict[str, Values] = {}
        partitions = {name.lower() for name in self._request.partition_columns}
        for field in self._work.target:
            known = self.table.find(field.name)
            if known is None:
                found[field.name] = _nulls(arrow_type(as_nullable(field.data_type)))
                continue
            if known.name.lower() in partitions and as_nullable(known.data_type) != as_nullable(field.data_type):
                self.all_move = True
            convert = Conversions(self._request, "is merged").between(known.data_type, field.data_type, field.name)
            found[field.name] = _then(methodcaller("column", known.name), convert)
        return found

    @property
    def identities(self) -> tuple[str, ...]:
        """Identity columns that the table assigns in inserted rows."""
        return tuple(rule.column for rule in self._counted)

    def _checked(self, columns: dict[str, pa.Array], explicit: dict[str, Values]) -> pa.RecordBatch:
        request = self._request
        made = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        for name, values in self._generated.items():
            if name.lower() not in explicit:
                columns[name] = values(made)
        for name in self._partitions:
            columns[name] = empty_as_null(columns[name])
        made = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        for field in self._work.target:
            check_not_null(field, columns[field.name], table=request.table, version=request.read_version)
        for check in self._checks:
            check(made)
        return made

    # -- binding --------------------------------------------------------------------------------------------------------------

    def _bind(self, number: int, clause: MergeClause) -> None:
        resolve = {NOT_MATCHED: self.of_source, NOT_MATCHED_BY_SOURCE: self.of_target}.get(clause.kind, self.both)
        why = f"is merged by {clause}"
        condition = None if clause.condition is None else decided(clause.condition, resolve, self._request, why)
        if condition is not None and condition.data_type.name not in ("boolean", "void"):
            raise refused_merge(self._request, f"the condition of {clause} is of type {condition.data_type}, not boolean")
        self._conditions[number] = condition
        if clause.action == DELETE:
            return
        texts: Assigned = {}
        if clause.set is None:
            for name, field in star_columns(self._request, clause, self._target_json, self._source.schema).items():
                text = f"{quote_name(self._arguments.source_alias)}.{quote_name(field['name'])}"
                texts[name] = (text, field["type"])
        else:
            for name, text in clause.set.items():
                path = known_path(self._request, clause, name, self._target_json, self._source.schema)
                put(texts, path, (text, type_to_json(decided(text, resolve, self._request, why).data_type)))
        check_types(self._request, clause, texts, self._target_json)
        self._values[number] = {name: self._value(name, change, clause, resolve, why) for name, change in texts.items()}

    def _value(self, name: str, change: Any, clause: MergeClause, resolve: Resolve, why: str) -> Values:
        field, known = self._work.target.find(name), self.table.find(name)
        assert field is not None, f"the plan has found {name}"
        conversions = Conversions(self._request, why)
        old = None if known is None else methodcaller("column", TARGET + known.name)
        if isinstance(change, dict):
            assert isinstance(field.data_type, StructType), f"the plan has found fields of {name}"

            def leaf(text: tuple[str, Any], path: str, kind: DataType) -> Values:
                return stored_values(text[0], path, kind, resolve, self._request, why)

            kind = known.data_type if known is not None and isinstance(known.data_type, StructType) else StructType(())
            return with_fields(change, field.data_type, old, kind, leaf, field.name, conversions)
        text, given = change
        takes_all = clause.action == UPDATE and clause.set is None
        if takes_all and known is not None and absent_fields(given, type_to_json(known.data_type)):
            value = decided(text, resolve, self._request, why)
            assert isinstance(value.data_type, StructType)
            assert isinstance(known.data_type, StructType)
            assert isinstance(field.data_type, StructType)
            merge = conversions.merged(value.data_type, known.data_type, field.data_type, field.name)
            before = methodcaller("column", TARGET + known.name)
            return lambda rows: merge(value.values(rows), before(rows))
        return stored_values(text, field.name, field.data_type, resolve, self._request, why)

    @property
    def _updates(self) -> dict[int, dict[str, Values]]:
        return {i: values for i, values in self._values.items() if self.all[i].action == UPDATE}

    @property
    def _inserts(self) -> dict[int, dict[str, Values]]:
        return {i: values for i, values in self._values.items() if self.all[i].action == INSERT}

    @property
    def _counted(self) -> list[Any]:
        rules = self._request.rules.identities
        return [rule for rule in rules if any(rule.column.lower() not in values for values in self._inserts.values())]

    @property
    def _defaults(self) -> dict[str, Values]:
        found: dict[str, Values] = {}
        for name, text in self._request.rules.defaults.items() if self._inserts else ():
            field = self._work.target.find(name)
            if field is None:
                continue
            try:
                value = default_value(field.name, text, self._work.target, self._request)
            except DeltaUnsupportedOperationException:
                why = f"has the default {text} of {field.name}"
                found[name.lower()] = stored_values(text, field.name, field.data_type, lambda _: None, self._request, why)
            else:
                found[name.lower()] = _constant(value)
        return found


def _constant(value: pa.Scalar) -> Values:
    return lambda rows: pa.repeat(value, rows.num_rows) if value.is_valid else pa.nulls(rows.num_rows, value.type)


def _nulls(kind: pa.DataType) -> Values:
    return lambda rows: pa.nulls(rows.num_rows, kind)


def _then(values: Values, convert: Converted) -> Values:
    return lambda rows: convert(values(rows))


def _either(one: Resolve, other: Resolve, request: Any) -> Resolve:
    def found(parts: tuple[str, ...]) -> tuple[str, tuple[str, ...], DataType] | None:
        named = [column for column in (one(parts), other(parts)) if column is not None]
        if len(named) > 1:
            raise refused_merge(
                request, f"{'.'.join(parts)} is a column of the table and of the source. Put an alias before it, as in target.id"
            )
        return named[0] if named else None

    return found
