"""OPTIMIZE and REORG in the worker: the files of each bin become one, as in :mod:`airflow_delta.spark.optimize`."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from airflow_delta.contract.operations import OptimizeArguments
from airflow_delta.contract.request import NUM_BYTES, NUM_FILES, NUM_ROWS, StageReport
from airflow_delta.exceptions import StagingException
from airflow_delta.log.schema.types import StructType, has_floating
from airflow_delta.table.arrow.files import RowWriter
from airflow_delta.table.arrow.rewrite.read_plan import PlanReader
from airflow_delta.table.arrow.row_checks import check_no_variants, needs_spark
from airflow_delta.table.arrow.writer_options import writer_options

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import ScanFile
    from airflow_delta.contract.request import StageRequest
    from airflow_delta.log.delta_log import DeltaLog


def run(log: DeltaLog, request: StageRequest) -> StageReport:
    """Write the bins of the request one after the other, each into its own directory, without partition columns.

    :raises DeltaUnsupportedOperationException: if rows are to be ordered, which only Spark does.
    """
    plan = request.rewrite
    if plan is None or request.schema_string is None:
        raise StagingException(f"{request.operation} of stage {request.stage} was planned without files to rewrite")
    arguments = OptimizeArguments.of(request)
    if arguments.z_order_by or arguments.cluster_by:
        columns = ", ".join(".".join(path) for path in arguments.z_order_by or arguments.cluster_by)
        raise needs_spark(request, f"is to be ordered by {columns}")
    check_no_variants(request)
    reader = PlanReader(log, plan, arguments.row_ids)
    prefix = uuid.uuid4().hex[:8]
    names = [f"{prefix}-{number}" for number in range(len(arguments.bins))]
    written: dict[str, dict[str, int]] = {}
    first_rows: dict[str, list[list[int]]] = {}
    for number, (name, members) in enumerate(zip(names, arguments.bins, strict=True)):
        files = [plan.files[member] for member in members]
        directory = arguments.directories[number] if arguments.directories else ""
        written[name], counts = _write_bin(log, request, reader, files, name, directory)
        if arguments.record_rows:
            starts = accumulate((counts[file.path] for file in files), initial=0)
            first_rows[name] = [[member, start] for member, start in zip(members, starts, strict=False)]
    return StageReport(
        transaction_id=request.transaction_id,
        stage=request.stage,
        attempt=request.attempt,
        directories=tuple(names),
        path=request.path,
        written=dict(written),
        first_rows=dict(first_rows),
        rewritten_files=tuple(file.path for file in plan.files),
        schema_string=request.schema_string,
        partition_columns=request.partition_columns,
    )


def _write_bin(
    log: DeltaLog, request: StageRequest, reader: PlanReader, files: Sequence[ScanFile], name: str, directory: str
) -> tuple[dict[str, int], Counter[str]]:
    """Write the rows of files, in order, as one file.

    :return: what was written, and the number of rows by path of the old file.
    """
    in_path = {column.lower() for column in request.partition_columns}
    kept = [at for at, field in enumerate(reader.stored) if field.name.lower() not in in_path]
    compression, _ = writer_options(request)

    def writer_of(columns: Sequence[int], unbounded: frozenset[str] = frozenset()) -> RowWriter:
        return RowWriter(
            log.store,
            f"{request.directory}/{name}",
            StructType(tuple(reader.stored.fields[at] for at in columns)),
            (),
            mapped=request.rules.column_mapping != "none",
            compression=compression,
            most_rows=None,
            file_bytes=None,
            unbounded=unbounded,
        )

    # Known before the file is begun: else NaN far down in it would begin another, and the next OPTIMIZE join them again.
    floating = [at for at in kept if has_floating(reader.stored.fields[at].data_type)]
    found: set[str] = set()
    if floating:
        looking, columns = writer_of(floating), [reader.stored.fields[at].name for at in floating]
        for _, rows in reader.columns(columns, files, None):
            found |= looking.nan_columns(rows.select(columns))
    writer = writer_of(kept, frozenset(found))
    counts: Counter[str] = Counter()
    try:
        for file, rows in reader.rows(files):
            writer.write(rows.select(kept), directory)
            counts[file.path] += rows.num_rows
        writer.close()
    finally:
        writer.discard()
    return {NUM_FILES: writer.num_files, NUM_ROWS: writer.num_rows, NUM_BYTES: writer.num_bytes}, counts
