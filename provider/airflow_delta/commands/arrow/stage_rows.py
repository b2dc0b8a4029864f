"""Stage rows without Spark: Parquet files in the attempt's own directory, and the report that Spark would give."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.arrow.align import Convert, Unstorable, aligned, check_not_null, empty_as_null, to_table_type
from airflow_delta.commands.arrow.checks import needs_spark, row_checks
from airflow_delta.commands.arrow.computed import Counter, default_value
from airflow_delta.commands.arrow.data_schema import data_schema
from airflow_delta.commands.arrow.files import RowWriter
from airflow_delta.commands.arrow.source import Source, source_of
from airflow_delta.exceptions import DeltaIllegalArgumentException, SchemaMismatchException
from airflow_delta.log.schema.types import StructType, arrow_type, as_nullable, parse_schema
from airflow_delta.log.storage.progress import tracked
from airflow_delta.staging.computed import absent_identities
from airflow_delta.staging.drift import check_contract
from airflow_delta.staging.report import NUM_BYTES, NUM_FILES, NUM_ROWS, StageReport, StageRequest
from airflow_delta.staging.target import partition_names, target_schema
from airflow_delta.staging.without_spark import COMPARES, COMPRESSION, writer_option_problem
from airflow_delta.staging.write import WriteArguments

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.staging.contract import Json


def stage_arrow(log: DeltaLog, rows: Any, request: StageRequest) -> StageReport:
    """Write rows for a request and report what was written.

    :param rows: a pyarrow Table or RecordBatchReader, a pandas or Polars frame, or another Arrow stream.
    :raises DeltaIllegalArgumentException: if they are nothing of the kind.
    :raises DeltaUnsupportedOperationException: if the table or the write needs Spark; says what for.
    :raises DeltaAnalysisException: if a column has a type that Delta does not have.
    :raises SchemaDriftException: if the stage is strict, and the rows do not have the expected schema.
    :raises SchemaMismatchException: if the rows do not fit the table's schema, or a value does not fit its type.
    :raises InvariantViolationException: if a NOT NULL column would get a null, or a row breaks a constraint of the table.
    :raises IdentityInsertException: if the rows have values for a column that is GENERATED ALWAYS.
    :raises ReplaceWhereMismatchException: if a row does not satisfy the ``replaceWhere`` predicate.
    """
    check_possible(request)
    compression, most_rows = _writer_options(request)
    source = source_of(rows, whose=f"The stage {request.task_id!r}")
    data = data_schema(source.schema, whose=f"The stage {request.task_id!r}")
    check_contract(data, request)
    target = target_schema(data, request)
    identities = absent_identities(data, request)
    schema = parse_schema(json.dumps(target))
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
    return StageReport(
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


def check_possible(request: StageRequest) -> None:
    """Refuse a write that needs Spark whatever the rows are: to compute columns, or to write rows of the table again.

    :raises DeltaUnsupportedOperationException: says what for.
    """
    for name, text in request.rules.generated.items():
        raise needs_spark(request, f"has the generated column {name} ({text})")
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


def _writer_options(request: StageRequest) -> tuple[str, int | None]:
    compression, most_rows = "snappy", None
    for name, value in request.options.items():
        if (problem := writer_option_problem(name, value)) is not None:
            raise DeltaIllegalArgumentException(
                f"The stage {request.task_id!r} has {problem} (table {request.table}).", table=request.table
            )
        if name.lower() == "compression":
            compression = COMPRESSION[str(value).lower()]
        else:
            most_rows = int(value) or None
    return compression, most_rows


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
        import pyarrow as pa

        self._request = request
        self._schema = schema
        self._partitions = partitions
        self._out = pa.schema([pa.field(f.name, arrow_type(as_nullable(f.data_type))) for f in schema])
        self._counters = {name.lower(): counter for name, counter in counters.items()}
        given = parse_schema(json.dumps(data))
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
                    raise SchemaMismatchException(
                        f"The data to write does not fit table {request.table}: column {field.name} goes from {error}. Nothing "
                        "was written.",
                        table=request.table,
                        version=request.read_version,
                    ) from None
                self._converts[field.name] = number, convert
            elif folded not in self._counters:
                text = defaults.get(folded)
                self._constants[field.name] = (
                    pa.nulls(1, out.type)[0] if text is None else default_value(field.name, text, schema, request)
                )

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch under the table's names, in its types."""
        import pyarrow as pa

        request, arrays = self._request, []
        for field in self._schema:
            if field.name in self._converts:
                number, convert = self._converts[field.name]
                values = aligned(batch, field.name, number, convert, where=f"table {request.table}")
            elif field.name in self._constants:
                constant = self._constants[field.name]
                values = pa.repeat(constant, batch.num_rows) if constant.is_valid else pa.nulls(batch.num_rows, constant.type)
            else:
                values = self._counters[field.name.lower()].take(batch.num_rows)
            if field.name in self._partitions:
                values = empty_as_null(values)
            check_not_null(field, values, table=request.table, version=request.read_version)
            arrays.append(values)
        return pa.RecordBatch.from_arrays(arrays, schema=self._out)
