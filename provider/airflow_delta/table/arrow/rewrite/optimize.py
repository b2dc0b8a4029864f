"""OPTIMIZE and REORG in the worker: files of a bin become one or, ordered, a few, as in :mod:`airflow_delta.spark.optimize`."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.operations import OptimizeArguments
from airflow_delta.contract.request import NUM_BYTES, NUM_FILES, NUM_ROWS, StageReport
from airflow_delta.exceptions import StagingException
from airflow_delta.log.arrow.arrays import scalar
from airflow_delta.log.schema.types import StructType, has_floating, nullable_schema
from airflow_delta.table.arrow.files import OPEN_FILES, RowWriter
from airflow_delta.table.arrow.rewrite.curve import CurveColumns
from airflow_delta.table.arrow.rewrite.ordered_bin import OrderedBin
from airflow_delta.table.arrow.rewrite.read_plan import PlanReader, RowsOfFile
from airflow_delta.table.arrow.row_checks import check_no_variants
from airflow_delta.table.arrow.writer_options import writer_options

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import ScanFile
    from airflow_delta.contract.request import StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.arrow.rewrite.memory import MemoryBound


def run(log: DeltaLog, request: StageRequest, memory: MemoryBound) -> StageReport:
    """Write the bins of the request one after the other, each into its own directory, without partition columns.

    :raises DeltaUnsupportedOperationException: if rows are to be ordered by a column of a type that only Spark orders.
    """
    plan = request.rewrite
    if plan is None or request.schema_string is None:
        raise StagingException(f"{request.operation} of stage {request.stage} was planned without files to rewrite")
    arguments = OptimizeArguments.of(request)
    check_no_variants(request)
    reader = PlanReader(log, plan, arguments.row_ids, memory)
    columns = CurveColumns(request, reader.schema, arguments.z_order_by or arguments.cluster_by)
    prefix = uuid.uuid4().hex[:8]
    names = [f"{prefix}-{number}" for number in range(len(arguments.bins))]
    written: dict[str, dict[str, int]] = {}
    first_rows: dict[str, list[list[int]]] = {}
    for number, (name, members) in enumerate(zip(names, arguments.bins, strict=True)):
        files = [plan.files[member] for member in members]
        rows = _Bin(log, request, reader, files)
        if arguments.outputs[number] > 1:
            rows.order = OrderedBin(reader, columns, files, arguments.outputs[number], hilbert=bool(arguments.cluster_by))
        written[name] = rows.write(name, arguments.directories[number] if arguments.directories else "")
        if arguments.record_rows and rows.order is None:
            starts = accumulate((rows.counts[file.path] for file in files), initial=0)
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


class _Bin:
    """Files that are written again.

    :ivar order: where rows go; ``None``: into one file, in order.
    :ivar counts: how many rows were written, by path of the old file.
    """

    def __init__(self, log: DeltaLog, request: StageRequest, reader: PlanReader, files: Sequence[ScanFile]) -> None:
        self._log, self._request, self._reader, self._files = log, request, reader, files
        in_path = {column.lower() for column in request.partition_columns}
        self._kept = [at for at, field in enumerate(reader.stored) if field.name.lower() not in in_path]
        self._compression, _ = writer_options(request)
        self.order: OrderedBin | None = None
        self.counts: Counter[str] = Counter()

    def write(self, name: str, directory: str) -> dict[str, int]:
        """Write the rows, and return how much that is.

        :param name: directory of the bin, below that of the attempt.
        :param directory: below it.
        """
        unbounded = self._columns_with_nan(name)
        written = {NUM_FILES: 0, NUM_ROWS: 0, NUM_BYTES: 0}
        # Of very many files, as many at a time as are written side by side.
        for first in range(0, len(unbounded), OPEN_FILES):
            writer = self._writer(name, self._kept, unbounded[first : first + OPEN_FILES])
            try:
                for found, parts in self._rows(first, min(OPEN_FILES, len(unbounded) - first)):
                    writer.write(found.rows.select(self._kept), directory, parts)
                    self.counts[found.file.path] += found.rows.num_rows
                writer.close()
            finally:
                writer.discard()
            written[NUM_FILES] += writer.num_files
            written[NUM_ROWS] += writer.num_rows
            written[NUM_BYTES] += writer.num_bytes
        return written

    def _rows(self, first: int, count: int) -> Iterator[tuple[RowsOfFile, pa.Array | None]]:
        """Yield the rows of some new files, and which of these they go to."""
        order = self.order
        for found in self._reader.rows(self._files, positions=order is not None):
            if order is None:
                yield found, None
                continue
            parts = pc.subtract(order.parts(found), scalar(first))
            if order.num_parts > count:
                here = pc.and_(pc.greater_equal(parts, scalar(0)), pc.less(parts, scalar(count)))
                found, parts = RowsOfFile(found.file, found.rows.filter(here)), parts.filter(here)
            if found.rows.num_rows:
                yield found, parts

    def _columns_with_nan(self, name: str) -> list[frozenset[str]]:
        """Return, by new file, the columns in which it has NaN.

        Known before the file is begun: else NaN far down in it would begin another, and the next OPTIMIZE join them again.
        """
        order, fields = self.order, self._reader.stored.fields
        found: list[set[str]] = [set() for _ in range(1 if order is None else order.num_parts)]
        floating = [at for at in self._kept if has_floating(fields[at].data_type)]
        if floating:
            looking, columns = self._writer(name, floating, ()), [fields[at].name for at in floating]
            for some in self._reader.columns([*columns, *(() if order is None else order.columns)], self._files, None):
                rows = some.rows.select(columns)
                if not looking.nan_columns(rows):
                    continue
                parts = None if order is None else order.parts(some)
                for part in (0,) if parts is None else pc.unique(parts).to_pylist():
                    mine = rows if parts is None else rows.filter(pc.equal(parts, scalar(part)))
                    found[part] |= looking.nan_columns(mine)
        return [frozenset(columns) for columns in found]

    def _writer(self, name: str, columns: Sequence[int], unbounded: Sequence[frozenset[str]]) -> RowWriter:
        return RowWriter(
            self._log.store,
            f"{self._request.directory}/{name}",
            # Nothing changes: also a null that another writer has left in a column without.
            nullable_schema(StructType(tuple(self._reader.stored.fields[at] for at in columns))),
            (),
            mapped=self._request.rules.column_mapping != "none",
            compression=self._compression,
            most_rows=None,
            file_bytes=None,
            unbounded=unbounded,
        )
