"""Z-order: rows that are close in several columns go into the same file.

Each column is split into ranges of about equally many rows, with boundaries from a sample. The numbers of a row's ranges, with
their bits interleaved, are its place on the Z-curve; Spark's range partitioning splits the curve into files (like Delta's
``ZOrderClustering``, which has its own expressions). Plain Spark SQL, without Python functions or Delta's jar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from airflow_delta.spark.align import spark_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_RANGE_BITS = 10
"""Bits of a range's number: Delta splits a column into 1000 ranges (``optimize.zorder.mdcNumRangeIds``)."""

SAMPLES_PER_RANGE = 40
_SEED = 20_130_101
_TEXT_PREFIX = 128


def along_z_curve(rows: DataFrame, columns: Sequence[tuple[str, ...]], num_files: int, num_rows: int | None) -> DataFrame:
    """Return the rows in ``num_files`` partitions along the Z-curve.

    :param columns: paths, the most important one first.
    :param num_rows: number of rows, if known.
    """
    from pyspark.sql import functions as sf

    bits = min(MAX_RANGE_BITS, 63 // len(columns))
    keys = [f"__airflow_delta_key_{number}" for number in range(len(columns))]
    ids = [f"__airflow_delta_range_{number}" for number in range(len(columns))]
    place, noise = "__airflow_delta_place", "__airflow_delta_noise"
    with_keys = rows.withColumns({key: _comparable(rows, path) for key, path in zip(keys, columns, strict=True)})
    boundaries = _boundaries(with_keys.select(*keys), keys, 1 << bits, num_rows)
    types = dict(with_keys.select(*keys).dtypes)
    with_ids = with_keys.withColumns(
        {name: _range_of(sf.col(key), types[key], boundaries[key], bits) for name, key in zip(ids, keys, strict=True)}
    )
    placed = with_ids.withColumns({place: _interleaved([sf.col(name) for name in ids], bits), noise: sf.rand(_SEED)})
    # The noise separates rows of the same place, so that no file gets all rows of a frequent value.
    return placed.repartitionByRange(num_files, sf.col(place), sf.col(noise)).select(*[spark_name(name) for name in rows.columns])


def _comparable(rows: DataFrame, path: tuple[str, ...]) -> Column:
    """Return a column as a long, double or string of the same order."""
    from pyspark.sql import functions as sf

    column = sf.col(".".join(map(spark_name, path)))
    kind = rows.select(column.alias("c")).dtypes[0][1]
    if kind in ("tinyint", "smallint", "int", "bigint"):
        return column.cast("long")
    if kind == "boolean":
        return column.cast("int").cast("long")
    if kind in ("float", "double") or kind.startswith("decimal"):
        return column.cast("double")
    if kind == "date":
        return sf.unix_date(column).cast("long")
    if kind == "timestamp":
        return sf.unix_micros(column)
    if kind == "timestamp_ntz":
        text = ".".join(map(spark_name, path))
        return sf.expr(f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01 00:00:00', {text})")
    if kind == "binary":
        return sf.hex(sf.substring(column, 1, _TEXT_PREFIX))
    return sf.substring(column.cast("string"), 1, _TEXT_PREFIX)


def _boundaries(keys: DataFrame, names: Sequence[str], ranges: int, num_rows: int | None) -> dict[str, list[Any]]:
    """Return, by column, distinct values in order that split it into ranges of about equally many rows."""
    from pyspark.sql import functions as sf

    wanted = ranges * SAMPLES_PER_RANGE
    if num_rows is None:
        num_rows = keys.count()
    sample = keys if num_rows <= wanted else keys.sample(fraction=wanted / num_rows, seed=_SEED)
    # Without nulls, which are below every boundary.
    collected = sample.agg(*[sf.array_sort(sf.collect_list(name)).alias(name) for name in names])
    row = collected.select(*[_cuts(sf.col(name), ranges).alias(name) for name in names]).collect()[0]
    return {name: [value for value in row[name] if value == value] for name in names}  # JSON has no NaN


def _cuts(values: Column, ranges: int) -> Column:
    """Return the values of a sorted list that split it into ranges."""
    from pyspark.sql import functions as sf

    def cut(number: Column) -> Column:
        return sf.get(values, (number * sf.size(values) / ranges).cast("int"))

    found = sf.transform(sf.sequence(sf.lit(1), sf.lit(ranges - 1)), cut)
    return sf.array_distinct(sf.filter(found, lambda value: value.isNotNull()))


def _range_of(key: Column, kind: str, boundaries: Sequence[Any], bits: int) -> Column:
    """Return the number of boundaries at or below a value, by binary search; a null is below all."""
    from pyspark.sql import functions as sf

    if not boundaries:
        return sf.lit(0).cast("long")
    finite = [value for value in boundaries if value not in (float("inf"), float("-inf"))]
    sorted_values = sf.from_json(sf.lit(json.dumps(finite)), f"array<{kind}>")
    steps = sf.array(*[sf.lit(1 << bit) for bit in reversed(range(bits))])

    def further(position: Column, step: Column) -> Column:
        reached = position + step
        return sf.when((reached <= len(finite)) & (sf.get(sorted_values, reached - 1) <= key), reached).otherwise(position)

    return sf.aggregate(steps, sf.lit(0), further).cast("long")


def _interleaved(ids: Sequence[Column], bits: int) -> Column:
    """Return the numbers with their bits interleaved, the highest bit of the first number highest."""
    from pyspark.sql import functions as sf

    parts = []
    for bit in range(bits):
        for number, column in enumerate(ids):
            one = sf.shiftright(column, bit).bitwiseAND(sf.lit(1).cast("long"))
            parts.append(sf.shiftleft(one, bit * len(ids) + len(ids) - 1 - number))
    return reduce(lambda left, right: left.bitwiseOR(right), parts)
