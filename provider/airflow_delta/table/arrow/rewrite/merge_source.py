"""The source of a MERGE in the worker: all of its rows in memory, and what they have in the columns that are compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.casts import DIGITS
from airflow_delta.contract.key_values import MAX_CHARACTERS, MAX_ROWS, MAX_TEXT, KeyValues, same_exact_type
from airflow_delta.contract.merge_columns import check_source_names
from airflow_delta.log.arrow.values import to_pylist
from airflow_delta.log.schema.types import StructType, arrow_type, as_nullable, struct_of
from airflow_delta.table.arrow.align import aligned, to_table_type
from airflow_delta.table.arrow.data_schema import data_schema
from airflow_delta.table.arrow.source import source_of

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import Json
    from airflow_delta.contract.request import StageRequest
    from airflow_delta.table.arrow.rewrite.memory import MemoryBound


class SourceRows:
    """The rows of a source, in the types that Spark would give them.

    :param rows: a pyarrow Table or RecordBatchReader, a pandas or Polars frame, or another Arrow stream.
    :ivar schema: of the source, in JSON form.
    :ivar rows: in one batch.
    :raises DeltaUnsupportedOperationException: if they take more memory than they may.
    """

    def __init__(self, rows: Any, request: StageRequest, memory: MemoryBound) -> None:
        whose = f"The source of {request.task_id!r}"
        if isinstance(rows, pa.Table | pa.RecordBatch):
            memory.check(rows.nbytes, f"{whose} ({rows.num_rows:,} rows)")
        source = source_of(rows, whose=whose)
        self.schema: Json = data_schema(source.schema, whose=whose) if source.declared is None else source.declared
        check_source_names(request, self.schema)
        self.struct: StructType = struct_of(self.schema)
        types = [(field, arrow_type(as_nullable(field.data_type))) for field in self.struct]
        converts = [
            to_table_type(given.type, field.data_type, field.data_type)
            for given, field in zip(source.schema, self.struct, strict=True)
        ]
        out = pa.schema([pa.field(field.name, kind) for field, kind in types])
        batches: list[pa.RecordBatch] = []
        size = 0
        count = 0
        for batch in source:
            columns = [
                aligned(batch, field.name, number, converts[number], where="its type", first_row=count)
                for number, (field, _) in enumerate(types)
            ]
            batches.append(pa.RecordBatch.from_arrays(columns, schema=out))
            count += batch.num_rows
            size += batches[-1].nbytes
            memory.check(size, f"{whose} ({count:,} rows, and maybe more)", known=False)
        table = pa.Table.from_batches(batches, out).combine_chunks()
        self.rows: pa.RecordBatch = table.to_batches()[0] if table.num_rows else _no_rows(out)


def reported_keys(keys: Sequence[tuple[Json, Json, bool, pa.Array]]) -> KeyValues | None:
    """Return the values of the compared columns, as a report has them; ``None`` if there are none that can be reported.

    :param keys: of each: the field of the table, that of the source, whether nulls equal nulls, and the source's values. Of
        several for the same column of the table, the first counts.
    """
    exact: dict[str, tuple[Json, bool, pa.Array]] = {}
    for field, given, null_safe, values in keys:
        if same_exact_type(field, given) and _are_exact(values, given["type"]):
            exact.setdefault(field["name"], (given, null_safe, values))
    if not exact:
        return None
    plain = [_plain(values, given["type"]) for given, _, values in exact.values()]
    listed = tuple(dict.fromkeys(zip(*plain, strict=True))) if len(plain[0]) <= MAX_ROWS else None
    if listed is not None and len(json.dumps(listed, ensure_ascii=False)) > MAX_CHARACTERS:
        listed = None
    bounds = [
        [_plain_bound(bound, given["type"]) for bound in (pc.min(values), pc.max(values))] for given, _, values in exact.values()
    ]
    return KeyValues(
        columns=tuple(exact),
        null_safe=tuple(null_safe for _, null_safe, _ in exact.values()),
        low=tuple(low for low, _ in bounds),
        high=tuple(high for _, high in bounds),
        nulls=tuple(values.null_count > 0 for _, _, values in exact.values()),
        rows=listed,
    )


def _are_exact(values: pa.Array, data_type: str) -> bool:
    if data_type == "string":
        longest = pc.max(pc.binary_length(values)).as_py()
        return longest is None or longest <= MAX_TEXT
    if data_type == "date":
        found = pc.min_max(values.cast(pa.int32()))
        return found["min"].as_py() is None or (found["min"].as_py() >= _FIRST_DAY and found["max"].as_py() <= _LAST_DAY)
    return True


_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""Days from the epoch that Python's dates can be: of 0001-01-01 and of 9999-12-31."""


def _plain(values: pa.Array, data_type: str) -> list[Any]:
    """Return values in JSON form."""
    if data_type in DIGITS or data_type == "string":
        return list(to_pylist(values))
    if data_type == "date":
        return [None if value is None else value.isoformat() for value in to_pylist(values)]
    return [None if value is None else format(value, "f") for value in to_pylist(values)]


def _plain_bound(value: pa.Scalar, data_type: str) -> Any:
    return _plain(pa.repeat(value, 1), data_type)[0] if value.is_valid else None


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
