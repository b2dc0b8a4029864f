"""Stage rows without Spark: Parquet files in the attempt's own directory, and the report that Spark would give."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_delta.contract.drift import check_contract
from airflow_delta.contract.operations import WriteArguments
from airflow_delta.contract.options import COMPARES
from airflow_delta.contract.request import NUM_BYTES, NUM_FILES, NUM_ROWS, StageReport, StageRequest
from airflow_delta.contract.schema import MAKE_VARIANTS
from airflow_delta.contract.target import absent_identities, partition_names, target_schema
from airflow_delta.exceptions import SchemaMismatchException
from airflow_delta.log.schema.types import StructType, arrow_type, as_nullable, struct_of
from airflow_delta.log.storage.progress import tracked
from airflow_delta.table.arrow.align import Convert, Unstorable, aligned, empty_as_null, to_table_type
from airflow_delta.table.arrow.data_schema import data_schema
from airflow_delta.table.arrow.defaults import Counter, default_value
from airflow_delta.table.arrow.files import RowWriter
from airflow_delta.table.arrow.row_checks import check_no_variants, check_not_null, needs_spark, row_checks
from airflow_delta.table.arrow.source import Source, source_of
from airflow_delta.table.arrow.writer_options import writer_options
from airflow_delta.table.files.written_here import WrittenHere

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import Json
    from airflow_delta.log.delta_log import DeltaLog


def stage_arrow(log: DeltaLog, rows: Any, request: StageRequest) -> StageReport:
    """Write rows for a request and report what was written.

    :param rows: a pyarrow Table or RecordBatchReader, a pandas or Polars frame, or another Arrow stream.
    """
    check_possible(request)
    compression, most_rows = writer_options(request)
    source = source_of(rows, whose=f"The stage {request.task_id!r}")
    data = data_schema(source.schema, whose=f"The stage {request.task_id!r}")
    check_contract(data, request)
    target = target_schema(data, request)
    identities = absent_identities(data, request)
    schema = struct_of(target)
    partitions = partition_names(target, request)
    run = uuid.uuid4().hex[:8]
    mapped = request.rules.column_mapping != "none"
    writer = RowWriter(
        log.store,
        f"{request.directory}/{run}",
        schema,
        partitions,
        mapped=mapped,
        compression=compression,
        most_rows=most_rows,
    )
    checks = row_checks(request, target, schema)
    counters = {identity.column: Counter(identity, request) for identity in identities}
    columns = _Columns(source, data, schema, request, counters, partitions)
    try:
        what = f"Writing rows of stage {request.stage} for {request.table}"
        for given in tracked(source, what, unit="rows", count=lambda given: given.num_rows):
            batch = columns.of(given)
            for check in checks:
                check(batch)
            writer.write(batch)
        writer.close()
    finally:
        writer.discard()
    report = StageReport(
        transaction_id=request.transaction_id,
        stage=request.stage,
        attempt=request.attempt,
        directories=(run,),
        path=request.path,
        written={run: {NUM_FILES: writer.num_files, NUM_ROWS: writer.num_rows, NUM_BYTES: writer.num_bytes}},
        identities=tuple(identity.column for identity in identities),
        schema_string=json.dumps(target, separators=(",", ":"), ensure_ascii=False),
        # If the data decide the schema, they also decide the spelling of partition columns.
        partition_columns=tuple(partitions) if request.schema_string is None else request.partition_columns,
    )
    return WrittenHere.of(report, {(f"{run}/{path}", size): footer for (path, size), footer in writer.footers.items()})


def check_possible(request: StageRequest) -> None:
    """Refuse a write that needs Spark whatever the rows are: to compute columns, or to write rows of the table again.

    :raises DeltaUnsupportedOperationException: says what for.
    """
    for name, text in request.rules.generated.items():
        raise needs_spark(request, f"has the generated column {name} ({text})")
    check_no_variants(request, f" {MAKE_VARIANTS}.")
    if request.rewrite is None:
        return
    if WriteArguments.of(request).replace_on is not None:
        raise needs_spark(request, f"is overwritten by {COMPARES}")
    if request.rewrite.files:
        raise needs_spark(
            request,
            f"is overwritten by replace_where ({request.replace_where}), which may select some of the rows of "
            f"{len(request.rewrite.files)} of its files, whose other rows must be written again; only a replace_where on "
            "partition columns selects whole files",
        )


class _Columns:
    """Brings record batches to the columns of the target."""

    def __init__(
        self,
        source: Source,
        data: Json,
        schema: StructType,
        request: StageRequest,
        counters: Mapping[str, Counter],
        partitions: Collection[str],
    ) -> None:
        self._request = request
        self._schema = schema
        self._partitions = partitions
        self._rows = 0
        self._out = pa.schema([pa.field(f.name, arrow_type(as_nullable(f.data_type))) for f in schema])
        self._counters = {name.lower(): counter for name, counter in counters.items()}
        given = struct_of(data)
        at = {field.name.lower(): number for number, field in enumerate(given)}
        self._converts: dict[str, tuple[int, Convert]] = {}
        self._constants: dict[str, pa.Scalar] = {}
        defaults = {name.lower(): text for name, text in request.rules.defaults.items()}
        for field, out in zip(schema, self._out, strict=True):
            folded = field.name.lower()
            if folded in at:
                number = at[folded]
                try:
                    convert = to_table_type(source.schema.field(number).type, given.fields[number].data_type, field.data_type)
                except Unstorable as error:
                    raise request.error(
                        SchemaMismatchException,
                        f"The data to write does not fit table {request.table}: column {field.name} goes from {error}. Nothing "
                        "was written.",
                    ) from None
                self._converts[field.name] = number, convert
            elif folded not in self._counters:
                text = defaults.get(folded)
                self._constants[field.name] = (
                    pa.nulls(1, out.type)[0] if text is None else default_value(field.name, text, schema, request)
                )

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch under the table's names, in its types."""
        request, arrays = self._request, []
        for field in self._schema:
            if field.name in self._converts:
                number, convert = self._converts[field.name]
                values = aligned(batch, field.name, number, convert, where=f"table {request.table}", first_row=self._rows)
            elif field.name in self._constants:
                constant = self._constants[field.name]
                values = pa.repeat(constant, batch.num_rows) if constant.is_valid else pa.nulls(batch.num_rows, constant.type)
            else:
                values = self._counters[field.name.lower()].take(batch.num_rows)
            if field.name in self._partitions:
                values = empty_as_null(values)
            check_not_null(field, values, table=request.table, version=request.read_version)
            arrays.append(values)
        self._rows += batch.num_rows
        return pa.RecordBatch.from_arrays(arrays, schema=self._out)
