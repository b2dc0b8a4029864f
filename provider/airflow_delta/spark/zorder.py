"""Z-order and clustering: rows that are close in several columns go into the same file.

Each column is split into ranges of about equally many rows, with boundaries from a sample. The numbers of a row's ranges give its
place on a curve: with their bits interleaved, on the Z-curve; for clustered tables, on the Hilbert curve, whose neighbours differ
in one number by one. Spark's range partitioning splits the curve into files (like Delta's ``ZOrderClustering`` and
``HilbertClustering``, which have their own expressions). Plain Spark SQL, without Python functions or Delta's jar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from airflow_delta.contract.curves import SAMPLES_PER_RANGE, TEXT_PREFIX, hilbert_states, range_bits, takes_hilbert
from airflow_delta.spark.align import spark_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SEED = 20_130_101


def along_curve(
    rows: DataFrame, columns: Sequence[tuple[str, ...]], num_files: int, num_rows: int | None, *, hilbert: bool = False
) -> DataFrame:
    """Return the rows in ``num_files`` partitions along a curve.

    :param columns: paths, the most important one first.
    :param num_rows: number of rows, if known.
    :param hilbert: take the Hilbert curve, for 2 to 4 columns; else the Z-curve.
    """
    index = _hilbert_index if takes_hilbert(len(columns), hilbert=hilbert) else _interleaved
    bits = range_bits(len(columns))
    keys = [f"__airflow_delta_key_{number}" for number in range(len(columns))]
    ids = [f"__airflow_delta_range_{number}" for number in range(len(columns))]
    place, noise = "__airflow_delta_place", "__airflow_delta_noise"
    with_keys = rows.withColumns({key: _comparable(rows, path) for key, path in zip(keys, columns, strict=True)})
    boundaries = _boundaries(with_keys.select(*keys), keys, 1 << bits, num_rows)
    types = dict(with_keys.select(*keys).dtypes)
    with_ids = with_keys.withColumns(
        {name: _range_of(sf.col(key), types[key], boundaries[key], bits) for name, key in zip(ids, keys, strict=True)}
    )
    placed = with_ids.withColumns({place: index([sf.col(name) for name in ids], bits), noise: sf.rand(_SEED)})
    # The noise separates rows of the same place, so that no file gets all rows of a frequent value.
    return placed.repartitionByRange(num_files, sf.col(place), sf.col(noise)).select(*[spark_name(name) for name in rows.columns])


def _comparable(rows: DataFrame, path: tuple[str, ...]) -> Column:
    """Return a column as a long, double or string of the same order."""
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
        return sf.hex(sf.substring(column, 1, TEXT_PREFIX))
    return sf.substring(column.cast("string"), 1, TEXT_PREFIX)


def _boundaries(keys: DataFrame, names: Sequence[str], ranges: int, num_rows: int | None) -> dict[str, list[Any]]:
    """Return, by column, distinct values in order that split it into ranges of about equally many rows."""
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

    def cut(number: Column) -> Column:
        return sf.get(values, (number * sf.size(values) / ranges).cast("int"))

    found = sf.transform(sf.sequence(sf.lit(1), sf.lit(ranges - 1)), cut)
    return sf.array_distinct(sf.filter(found, lambda value: value.isNotNull()))


def _range_of(key: Column, kind: str, boundaries: Sequence[Any], bits: int) -> Column:
    """Return the number of boundaries at or below a value, by binary search; a null is below all."""
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
    parts = []
    for bit in range(bits):
        for number, column in enumerate(ids):
            parts.append(sf.shiftleft(_bit(column, bit), bit * len(ids) + len(ids) - 1 - number))
    return reduce(lambda left, right: left.bitwiseOR(right), parts)


def _hilbert_index(ids: Sequence[Column], bits: int) -> Column:
    """Return the place of numbers on the Hilbert curve, by the states of ``hilbert_states`` from the highest bit down."""
    states = hilbert_states(len(ids))
    places, following = (sf.lit([cell[part] for state in states for cell in state]) for part in (0, 1))
    corners = sf.array(*[_interleaved([_bit(column, bit) for column in ids], 1) for bit in reversed(range(bits))])

    def further(at: Column, corner: Column) -> Column:
        cell = (sf.shiftleft(at["state"], len(ids)) + corner).cast("int")
        index = sf.shiftleft(at["index"], len(ids)).bitwiseOR(sf.get(places, cell).cast("long"))
        return sf.struct(index.alias("index"), sf.get(following, cell).cast("long").alias("state"))

    start = sf.struct(sf.lit(0).cast("long").alias("index"), sf.lit(0).cast("long").alias("state"))
    return sf.aggregate(corners, start, further)["index"]


def _bit(column: Column, bit: int) -> Column:
    return sf.shiftright(column, bit).bitwiseAND(sf.lit(1).cast("long"))
