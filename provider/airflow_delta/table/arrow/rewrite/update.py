"""UPDATE in the worker, step by step as :mod:`airflow_delta.spark.update`."""

from __future__ import annotations

from contextlib import ExitStack
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_delta.contract.operations import UpdateArguments, assignment_tree
from airflow_delta.contract.zones import zoneless_values
from airflow_delta.log.schema.types import StructType
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.arrow.align import empty_as_null
from airflow_delta.table.arrow.rewrite.attempt import WorkerRewrite
from airflow_delta.table.arrow.rewrite.conversions import Conversions
from airflow_delta.table.arrow.rewrite.copied_rows import copied_rows
from airflow_delta.table.arrow.rewrite.new_values import Values, stored_values, with_fields
from airflow_delta.table.arrow.row_checks import check_no_variants, check_not_null, needs_spark, row_checks
from airflow_delta.table.expressions.row_expression import columns_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_delta.contract.payloads import ScanFile
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.arrow.rewrite.memory import MemoryBound


def run(log: DeltaLog, request: StageRequest, memory: MemoryBound) -> StageReport:
    """Set columns in the rows that ``request.predicate`` selects, in all rows without one."""
    check_no_variants(request)
    work = WorkerRewrite(log, request, memory)
    new = _NewRows(work)
    touched = work.marked() if request.deletion_vectors else work.touched()
    work.lap("scanTimeMs")
    if touched:
        _write(work, touched, new)
    work.metrics["numUpdatedRows"] = work.num_rows
    work.lap("rewriteTimeMs")
    return work.report()


def _write(work: WorkerRewrite, touched: Sequence[ScanFile], new: _NewRows) -> None:
    request = work.request
    with ExitStack() as stack:
        write = stack.enter_context(work.writing("new"))
        before = after = None
        if request.rules.change_data:
            before = stack.enter_context(work.writing("change", change_type="update_preimage"))
            after = stack.enter_context(work.writing("change", change_type="update_postimage"))
        copied = not request.deletion_vectors and request.predicate is not None and bool(work.partly(touched))
        copy = stack.enter_context(work.writing("copied")) if copied else None
        for file, rows in work.reader.rows(touched, None if copied else work.selection):
            selected, others = work.parted(rows) if copied else (rows, None)
            if selected.num_rows:
                changed = new.of(selected)
                write(file if new.stay else None, changed)
                if before is not None and after is not None:
                    before(file, selected)
                    after(file if new.stay else None, changed)
            if copy is not None and others is not None:
                copy(file, new.copied(others))


class _NewRows:
    """Rows with new values, computed from the old ones; generated columns are computed from the new ones.

    :ivar stay: the rows stay in the partition of their file.
    :ivar copied: checks rows that do not change.
    """

    def __init__(self, work: WorkerRewrite) -> None:
        request, self._schema = work.request, work.reader.schema
        self._request = request
        values = UpdateArguments.of(request).set
        resolve = columns_of(self._schema)

        def stored(text: str, path: str, kind: Any) -> Values:
            return stored_values(text, path, kind, resolve, request, f"sets {path} to {text!r}")

        self._set: dict[str, Values] = {}
        for name, change in assignment_tree(values).items():
            field = self._schema.find(name)
            assert field is not None, f"the plan has found {name}"
            if isinstance(change, str) or not isinstance(field.data_type, StructType):
                self._set[name] = stored(change, name, field.data_type)
            else:
                old, conversions = methodcaller("column", name), Conversions(request, f"sets fields of {name}")
                self._set[name] = with_fields(_folded(change), field.data_type, old, field.data_type, stored, name, conversions)
        explicit = {value.path[0].lower() for value in values}
        self._generated: dict[str, Values] = {}
        for name, text in request.rules.generated.items():
            field = self._schema.find(name)
            if field is not None and name.lower() not in explicit:
                why = f"has the generated column {field.name} ({text})"
                self._generated[field.name] = stored_values(text, field.name, field.data_type, resolve, request, why)
        in_path = {name.lower() for name in request.partition_columns}
        self.stay = not in_path & {name.lower() for name in (*self._set, *self._generated)}
        if not self.stay and (columns := zoneless_values(work.plan)):
            raise needs_spark(
                request,
                f"has partitions whose {next(iter(columns))} lacks a time zone, and rows go to other partitions: it is in the "
                "zone of Spark's session",
            )
        self._partitions = {field.name for field in self._schema if field.name.lower() in in_path}
        ids = work.reader.stored.fields[len(self._schema.fields) :]
        self._version = ids[1].name if ids else None
        table = TableDefinition.of_rows(request.schema_string or "").struct
        self._checks = row_checks(request, table, self._schema)
        self.copied = copied_rows(request, table, self._checks)
        for name, text in request.rules.generated.items():
            if name.lower() in explicit:
                raise needs_spark(request, f"sets the generated column {name} ({text})")

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the new rows, checked against the rules of the table."""
        request = self._request
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        columns |= {name: values(rows) for name, values in self._set.items()}
        changed = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        columns |= {name: values(changed) for name, values in self._generated.items()}
        for name in self._partitions:
            columns[name] = empty_as_null(columns[name])
        if self._version is not None:  # that of the commit
            columns[self._version] = pa.nulls(rows.num_rows, pa.int64())
        changed = pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema)
        for field in self._schema:
            check_not_null(field, columns[field.name], table=request.table, version=request.read_version)
        for check in self._checks:
            check(changed)
        return changed


def _folded(change: Any) -> Any:
    """Return a tree of changes by names in lower case."""
    return {name.lower(): _folded(inner) for name, inner in change.items()} if isinstance(change, dict) else change
