"""Stage rows without Spark: Parquet files in the attempt's own directory, and the report that Spark would give.

What a function may return as rows, as a stream of record batches.

Values of columns that the data lack: defaults and identity columns. Generated columns need Spark.

Rows of a transaction's table, as a stage without Spark reads them.

Rows are checked as on Spark: a condition that is null is violated. What only Spark can evaluate is refused before anything is
written.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.drift import check_contract
from airflow_delta.contract.operations import WriteArguments
from airflow_delta.contract.options import COMPARES, COMPRESSION, writer_option_problem
from airflow_delta.contract.request import NUM_BYTES, NUM_FILES, NUM_ROWS, StageReport, StageRequest
from airflow_delta.contract.schema import MAKE_VARIANTS, broken_rule, refused_rows, variant_columns
from airflow_delta.contract.sql_types import length_problems
from airflow_delta.contract.target import absent_identities, partition_names, target_schema
from airflow_delta.exceptions import (
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    IdentityInsertException,
    PredicateException,
    SchemaMismatchException,
)
from airflow_delta.log.arrow.arrays import array, readable
from airflow_delta.log.expressions import ast
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.schema.types import StructType, arrow_type, as_nullable, struct_of
from airflow_delta.log.statistics.statistics import live_records
from airflow_delta.log.storage.progress import tracked
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.arrow.align import (
    Convert,
    Unstorable,
    aligned,
    check_not_null,
    data_schema,
    empty_as_null,
    to_table_type,
)
from airflow_delta.table.arrow.files import RowWriter
from airflow_delta.table.read.read_table import Rows, check_limit, limited, worker_rows
from airflow_delta.table.read.row_filter import check_decidable, selected
from airflow_delta.table.stage.scan import candidate_files

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import Json
    from airflow_delta.contract.schema import IdentityRule
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.view import TransactionView


Check = Callable[["pa.RecordBatch"], None]

_LIMITED = re.compile(r"char_length\(.*\) > (\d+)", re.DOTALL)
_VALUE_LENGTH = 2000


def row_checks(request: StageRequest, target: Json, schema: StructType) -> list[Check]:
    """Return the checks of the rows of a write; each raises for a batch with a row that breaks its rule.

    :param target: schema of the rows in JSON form.
    :param schema: the same, parsed.
    :raises DeltaUnsupportedOperationException: if the table has a rule that only Spark can check; names it.
    """
    rules, partitions = request.rules, request.partition_columns
    checks: list[Check] = []
    if request.replace_where is not None:
        text = request.predicate or request.replace_where
        predicate = _predicate(request, text, schema, partitions, f"is overwritten by replace_where ({request.replace_where})")
        checks.append(_true(predicate, _outside(request, predicate)))
    for name, text in rules.checks.items():
        predicate = _predicate(request, text, schema, partitions, f"has the CHECK constraint {name} ({text})")
        checks.append(_true(predicate, _violation(request, name, text, predicate)))
    for field in target["fields"]:
        for path, expression, limit in length_problems(field):
            match = _LIMITED.fullmatch(expression)
            if match is None or path != field["name"]:
                raise needs_spark(request, f"limits the length of strings inside column {field['name']} ({path}: {limit})")
            checks.append(_short(request, path, int(match[1]), limit))
    return checks


def needs_spark(request: StageRequest, why: str, how: str = "") -> DeltaUnsupportedOperationException:
    """Return the error of a write that only Spark can do.

    :param how: a sentence on how Spark does it, after a space.
    """
    return request.error(
        DeltaUnsupportedOperationException,
        f"Stage {request.stage} cannot write without Spark: table {request.table} version {request.read_version} {why}. Use "
        f'engine="spark".{how}',
    )


def _predicate(request: StageRequest, text: str, schema: StructType, partitions: Collection[str], why: str) -> Predicate:
    try:
        predicate = Predicate.parse(text, schema, tuple(partitions))
        check_decidable(predicate, request.table, request.read_version)
    except PredicateException as error:
        raise needs_spark(request, f"{why}, which is not evaluated here ({error.message})") from error
    return predicate


def _true(predicate: Predicate, error: Callable[[pa.RecordBatch], DeltaError]) -> Check:
    def check(batch: pa.RecordBatch) -> None:
        wrong = pc.indices_nonzero(pc.invert(selected(predicate, batch)))
        if len(wrong):
            raise error(batch.slice(wrong[0].as_py(), 1))

    return check


def _outside(request: StageRequest, predicate: Predicate) -> Callable[[pa.RecordBatch], DeltaError]:
    return _broken(request, *broken_rule("replace_where", str(request.replace_where)), predicate)


def _violation(request: StageRequest, name: str, text: str, predicate: Predicate) -> Callable[[pa.RecordBatch], DeltaError]:
    return _broken(request, *broken_rule("check", name, text), predicate)


def _broken(
    request: StageRequest, kind: type[DeltaError], what: str, predicate: Predicate
) -> Callable[[pa.RecordBatch], DeltaError]:
    """Return a function that makes the error of a row, with its values of the columns of a predicate."""
    columns: Sequence[str] = list(dict.fromkeys(column.path[0] for column in predicate.columns))

    def error(row: pa.RecordBatch) -> DeltaError:
        values = {column: readable(row.column(column))[0] for column in columns}
        return kind(
            f"{what}: {str(values)[:_VALUE_LENGTH]}{refused_rows(request.table, request.read_version)}",
            table=request.table,
            version=request.read_version,
        )

    return error


def _short(request: StageRequest, name: str, most: int, limit: str) -> Check:
    def check(batch: pa.RecordBatch) -> None:
        longest = pc.max(pc.utf8_length(batch.column(name))).as_py()
        if longest is not None and longest > most:
            error, what = broken_rule("length", name, limit)
            tail = refused_rows(request.table, request.read_version)
            raise error(f"{what}{tail}", table=request.table, version=request.read_version)

    return check


BATCH_ROWS = 131_072
"""Rows that are cast and checked at a time."""


class Source:
    """A stream of record batches; it can be read once.

    :ivar schema: as given.
    """

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema = schema
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)


def source_of(rows: Any, *, whose: str) -> Source:
    """Return rows as a stream.

    A pandas frame keeps what has a name: its columns, then the named levels of its index, as in ``to_parquet``. NaN is null, as
    in PySpark. Other frames give an Arrow stream (``__arrow_c_stream__``: Polars, DuckDB).

    :param whose: for messages.
    :raises DeltaIllegalArgumentException: if they are not rows, a column of a pandas frame mixes types, or a level of
        its index has the name of a column.
    """
    kind = type(rows)
    if kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame":
        frame = _with_named_index(rows, whose)
        try:
            rows = pa.Table.from_pandas(frame, preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DeltaIllegalArgumentException(
                f"{whose} returned a pandas frame that is not a table of typed columns: {error}. Give each column one type "
                "(frame.astype) and a name of its own."
            ) from error
    elif kind.__module__.partition(".")[0] == "polars" and kind.__name__ == "LazyFrame":
        rows = rows.collect()
    if isinstance(rows, pa.RecordBatch):
        return Source(rows.schema, iter([rows]))
    if isinstance(rows, pa.Table):
        return Source(rows.schema, iter(rows.to_batches()))
    if isinstance(rows, pa.RecordBatchReader):
        return Source(rows.schema, iter(rows))
    if hasattr(rows, "__arrow_c_stream__"):
        _refuse_objects(rows, whose)
        try:
            reader = pa.RecordBatchReader.from_stream(rows)
        except pa.ArrowException as error:
            raise DeltaIllegalArgumentException(
                f"{whose} returned a frame with a type that Arrow does not have: {error}. Cast the column (128-bit integers to a "
                "decimal)."
            ) from error
        return Source(reader.schema, iter(reader))
    name = f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__
    hint = ' Return a Spark DataFrame from a stage with engine="spark".' if "pyspark" in kind.__module__ else ""
    raise DeltaIllegalArgumentException(
        f"{whose} returned {name}, expected a pyarrow Table or RecordBatchReader, a pandas or a Polars frame of the rows to "
        f"write.{hint} To stop without writing, raise AirflowSkipException."
    )


def _with_named_index(frame: Any, whose: str) -> Any:
    """Return a pandas frame with the named levels of its index as its last columns."""
    levels = [name for name in frame.index.names if name is not None]
    if not levels:
        return frame
    names = [*map(str, frame.columns), *map(str, levels)]
    if twice := sorted({name for name in map(str, levels) if names.count(name) > 1}):
        raise DeltaIllegalArgumentException(
            f"{whose} returned a pandas frame whose index has the name of another column, or has it twice: {', '.join(twice)}. "
            "Rename it, or leave the index out: frame.reset_index(drop=True)."
        )
    indexed = frame.reset_index(level=levels)  # which puts them first
    return indexed.iloc[:, [*range(len(levels), indexed.shape[1]), *range(len(levels))]]


def _refuse_objects(frame: Any, whose: str) -> None:
    """Refuse columns of Python objects, of which Polars gives Arrow the addresses."""
    if type(frame).__module__.partition(".")[0] != "polars":
        return
    if objects := [name for name, kind in dict(getattr(frame, "schema", {})).items() if str(kind) == "Object"]:
        raise DeltaIllegalArgumentException(
            f"{whose} returned a Polars frame with Python objects in {', '.join(objects)}. Cast the columns to a type."
        )


_NOW = re.compile(r"(?:current_timestamp|now)\s*\(\s*\)|current_timestamp", re.IGNORECASE)


def default_value(name: str, expression: str, schema: StructType, request: StageRequest) -> pa.Scalar:
    """Return the default value of a column.

    :raises DeltaUnsupportedOperationException: if it is not a literal of the column's type, or the present time.
    """
    field = schema.find(name)
    if field is None:
        raise _refusal(name, expression, request)
    out = arrow_type(as_nullable(field.data_type))
    text = expression.strip()
    if text.lower() == "null":
        return pa.nulls(1, out)[0]
    if field.data_type.name == "timestamp" and _NOW.fullmatch(text):
        return array([dt.datetime.now(dt.UTC)], out)[0]
    try:
        return array([_literal(field.name, text, schema)], out)[0]
    except (PredicateException, TypeError, ValueError, OverflowError) as error:
        raise _refusal(name, expression, request) from error


def _literal(name: str, text: str, schema: StructType) -> Any:
    """Return the value of a literal as a value of a column: what the column would be compared with."""
    expression = Predicate.parse(f"{ast.quote_name(name)} <=> ({text})", schema).expression
    if not isinstance(expression, ast.Compare) or expression.operator != "<=>" or expression.column.path != (name,):
        raise ValueError(f"{text} is not a literal")
    if expression.column.data_type.name == "timestamp":
        raise ValueError("its time zone is that of a Spark session")
    return expression.literal.value


def _refusal(name: str, expression: str, request: StageRequest) -> DeltaUnsupportedOperationException:
    return request.error(
        DeltaUnsupportedOperationException,
        f"Column {name} of table {request.table} version {request.read_version} has the default {expression}, which only Spark "
        f'computes. Add the column to the rows, or use engine="spark".',
    )


class Counter:
    """Values of an identity column: whole steps from the first, without gaps."""

    def __init__(self, rule: IdentityRule, request: StageRequest) -> None:
        self._rule = rule
        self._request = request
        self._next = rule.first

    def take(self, rows: int) -> pa.Array:
        """Return the next values.

        :raises IdentityInsertException: if they exceed 64 bits.
        """
        values = [self._next + position * self._rule.step for position in range(rows)]
        self._next += rows * self._rule.step
        try:
            return array(values, pa.int64())
        except OverflowError as error:
            raise self._request.error(
                IdentityInsertException,
                f"The identity column {self._rule.column} has run out of 64-bit values"
                f"{refused_rows(self._request.table, self._request.read_version)}",
            ) from error


def stage_arrow(log: DeltaLog, rows: Any, request: StageRequest) -> StageReport:
    """Write rows for a request and report what was written.

    :param rows: a pyarrow Table or RecordBatchReader, a pandas or Polars frame, or another Arrow stream.
    """
    check_possible(request)
    compression, most_rows = _writer_options(request)
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
    variants = [] if request.schema_string is None else variant_columns(TableDefinition.of_rows(request.schema_string).struct)
    if variants:
        raise needs_spark(request, f"has the variant column {', '.join(variants)}", f" {MAKE_VARIANTS}.")
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
            raise request.error(
                DeltaIllegalArgumentException, f"The stage {request.task_id!r} has {problem} (table {request.table})."
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


def table_rows(
    view: TransactionView, where: str | None = None, *, columns: Sequence[str] | None = None, limit: int | None = None
) -> Rows:
    """Return rows of the table at the version that the transaction reads, or as earlier stages leave it.

    Parameters and errors as for :func:`~airflow_delta.table.read.read_table.read_table`.
    """
    handle, target = view.handle, view.target
    if not view.exists:
        raise handle.error(
            DeltaTableNotFoundException,
            f"Table {handle.table} did not exist when the transaction began, so there is nothing to read. Ask "
            "table.exists first.",
        )
    predicate = None if where is None else view.predicate(where)
    if predicate is not None:
        check_decidable(predicate, handle.table, handle.read_version)
    files = candidate_files(view, predicate)
    if limit is not None:
        sure = [file for file in files if predicate is None or predicate.selects_partition(file.partition_values)]
        check_limit(view.log, handle.read_version, [live_records(file) for file in sure], limit, complete=len(sure) == len(files))
    if not target.is_known:
        target = replace(target, schema_string=view.snapshot.metadata.schema_string)
    version = handle.read_version
    rows = worker_rows(
        view.log, files, metadata=target.metadata, version=version, predicate=predicate, columns=columns, limit=limit
    )
    return limited(rows, view.log, version, limit)
