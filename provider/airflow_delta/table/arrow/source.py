"""What a function may return as rows, as a stream of record batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from airflow_delta.contract.payloads import Json
from airflow_delta.exceptions import DeltaIllegalArgumentException

BATCH_ROWS = 131_072
"""Rows that are cast and checked at a time."""


class Source:
    """A stream of record batches; it can be read once.

    :ivar schema: as given.
    :ivar declared: in Spark's JSON form, if more is known of the columns than their types.
    """

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], declared: Json | None = None) -> None:
        self.schema = schema
        self.declared = declared
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
    if isinstance(rows, Source):
        return rows
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
