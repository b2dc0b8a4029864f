"""Which columns of a file hold NaN, and what a note in its footer says of the others.

Arrow leaves NaN out of the bounds in a footer, and Spark, to which it is the greatest number, would skip its rows by them. So
columns with NaN have no bounds, and the note says that those of the others are complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc


def columns_with_nan(rows: pa.Table) -> frozenset[str]:
    """Return the paths, as in Parquet, of the columns with a NaN; lists and maps have no bounds."""

    def found(values: pa.Array | pa.ChunkedArray, path: str) -> Iterator[str]:
        if pa.types.is_struct(values.type):
            for number, field in enumerate(values.type):
                yield from found(pc.struct_field(values, [number]), f"{path}.{field.name}")
        elif pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
            yield path

    return frozenset(path for name, column in zip(rows.schema.names, rows.columns, strict=True) for path in found(column, name))


def count_nulls(rows: pa.Table, paths: Collection[str]) -> Counter[str]:
    """Return the number of nulls of some columns, by their path in Parquet; a null struct counts in each of its fields."""

    def found(values: pa.Array | pa.ChunkedArray, path: str) -> Iterator[tuple[str, int]]:
        if pa.types.is_struct(values.type):
            for number, field in enumerate(values.type):
                yield from found(pc.struct_field(values, [number]), f"{path}.{field.name}")
        elif path in paths:
            yield path, values.null_count

    counts: Counter[str] = Counter()
    for name, column in zip(rows.schema.names, rows.columns, strict=True) if paths else ():
        for path, nulls in found(column, name):
            counts[path] += nulls
    return counts


def leaf_columns(fields: Iterable[pa.Field], prefix: str = "") -> Iterator[str]:
    """Yield the paths, as in Parquet, of all columns."""
    for each in fields:
        path, kind = f"{prefix}{each.name}", each.type
        if pa.types.is_struct(kind):
            yield from leaf_columns(kind, f"{path}.")
        elif pa.types.is_map(kind):
            yield from leaf_columns((kind.key_field, kind.item_field), f"{path}.key_value.")
        elif pa.types.is_list(kind):
            yield from leaf_columns((kind.value_field,), f"{path}.list.")
        else:
            yield path
