"""The source of a MERGE, written once: every pass sees the same rows, even if its plan is not deterministic.

Minimum and maximum of the compared columns, and their partitions, say which rows of the table can match.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from airflow_delta.contract.casts import DIGITS
from airflow_delta.contract.delta_names import PARQUET_FIELD_ID
from airflow_delta.contract.key_values import KeyValues, is_stored_plainly
from airflow_delta.contract.merge import SCRATCH, ComparedColumns
from airflow_delta.contract.merge_columns import check_source_names
from airflow_delta.contract.partition_texts import partition_text
from airflow_delta.contract.payloads import Json, ScanFile
from airflow_delta.contract.schema import find_field
from airflow_delta.contract.spark_paths import escape_glob
from airflow_delta.spark.align import spark_name, spark_type
from airflow_delta.spark.key_values import AS_TEXT, KeyBounds, bounds_of, key_values, measures
from airflow_delta.spark.layout import Layout
from airflow_delta.spark.rewrite import RewriteAttempt
from airflow_delta.spark.written_files import check_read_back, save

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


SOURCE_ROW = "__airflow_delta_source_row"
"""Name of the column that numbers the source rows; null if a row of the table has no match."""

SMALL_CELLS = 4_000_000
"""Maximum number of values in the columns of a source that are broadcast, so that no row of the table is shuffled."""

_WIDE = 4
"""Number of values that a value of variable size counts as."""

_ORDERED = {"date", "string", "timestamp", "timestamp_ntz", "double", "float"}
_FIXED = {*DIGITS, "float", "double", "boolean", "date", "timestamp", "timestamp_ntz"}


class MergeSource:
    """The source rows as written.

    :ivar rows: rows under the alias of the source, with :data:`SOURCE_ROW`.
    :ivar schema: schema of the source, in JSON form.
    :ivar count: number of rows.
    """

    def __init__(self, work: RewriteAttempt, source: DataFrame, alias: str, keys: Sequence[ComparedColumns]) -> None:
        self.alias = alias
        self.schema: Json = source.schema.jsonValue()
        self._work = work
        check_source_names(work.request, self.schema)
        self.rows = self._written(source).alias(alias)
        self._keys = [key for key in keys if self._is_comparable(key)]
        self.count, self._bounds = self._measure()

    def is_small(self, texts: Iterable[str] | None) -> bool:
        """Return whether the columns of expressions can be broadcast.

        :param texts: ``None`` means all columns. Names that are not columns of the source count too: it is an estimate.
        """
        fields = self.schema["fields"]
        if texts is not None:
            words = {word for text in texts for word in re.findall(r"\w+", text.lower())}
            fields = [f for f in fields if words.issuperset(re.findall(r"\w+", f["name"].lower()))]
        cells = 1 + sum(1 if isinstance(f["type"], str) and f["type"] in _FIXED else _WIDE for f in fields)
        return self.count * cells <= SMALL_CELLS

    def possible(self, rows: DataFrame) -> DataFrame:
        """Return the rows of the table that may match, by the bounds of the compared columns."""
        conditions = [self._within(bounds) for bounds in self._bounds]
        return rows.where(reduce(lambda a, b: a & b, conditions)) if conditions else rows

    def possible_files(self, files: Sequence[ScanFile]) -> list[ScanFile]:
        """Return the files whose partitions may match."""
        left = list(files)
        for field, name in Layout(self._work.plan).partition_columns:
            for key in self._keys:
                if key.column.lower() == field["name"].lower() and left:
                    kept = self._named(field, key, {partition_text(file.partition_values, name) for file in left})
                    left = [file for file in left if partition_text(file.partition_values, name) in kept]
        return left

    def keys(self) -> KeyValues | None:
        """Return the values of the compared columns, as a report has them; ``None`` if there are none that can be reported."""
        return key_values(self.rows, self._bounds, self.count, self._work.request, self._path)

    @property
    def _path(self) -> str:
        return f"{self._work.request.path}/{SCRATCH}/{self._work.run}-source"

    def _written(self, source: DataFrame) -> DataFrame:
        """Write the rows and return them. Columns in the files are numbered, since files do not support all names and types."""
        fields = self.schema["fields"]
        stored = [(i, field) for i, field in enumerate(fields) if field["type"] != "void"]
        numbered = [sf.col(spark_name(field["name"])).alias(f"c{i}", metadata={}) for i, field in stored]
        self._num_written = save(source.select(*numbered, sf.monotonically_increasing_id().alias(SOURCE_ROW)), self._path)
        kept = [{**field, "name": f"c{i}", "nullable": True, "metadata": _without_id(field)} for i, field in stored]
        kept.append({"name": SOURCE_ROW, "type": "long", "nullable": True, "metadata": {}})
        schema = StructType.fromJson({"type": "struct", "fields": kept})
        rows = self._work.spark.read.schema(schema).option("mergeSchema", "false").parquet(escape_glob(self._path))
        columns = [
            (sf.lit(None) if field["type"] == "void" else sf.col(f"c{i}")).alias(field["name"]) for i, field in enumerate(fields)
        ]
        return rows.select(*columns, SOURCE_ROW)

    def _is_comparable(self, key: ComparedColumns) -> bool:
        """Return whether values of both columns have the same order, so that bounds of one rule out values of the other."""
        mine, other = self._type(key), find_field(self._work.target, key.column)
        if other is None or not isinstance(mine, str) or not is_stored_plainly(other):
            return False
        if mine in DIGITS and other["type"] in DIGITS:
            return True
        return bool(mine == other["type"]) and (mine in _ORDERED or mine.startswith("decimal"))

    def _type(self, key: ComparedColumns) -> Any:
        """Return the type of a key's source column, ``None`` if only Spark can know."""
        name = key.source
        if name.count("`") != 2:
            return None
        field = find_field(self.schema, name[1:-1])
        return None if field is None or not is_stored_plainly(field) else field["type"]

    def _measure(self) -> tuple[int, list[KeyBounds]]:
        keys = [(key, str(self._type(key))) for key in self._keys]
        wanted = [measure for key, data_type in keys for measure in measures(sf.col(key.source), data_type)]
        columns = {key.source: sf.col(key.source) for key in self._keys}
        count, *measured = self.rows.select(*columns.values()).agg(sf.count("*"), *wanted).collect()[0]
        check_read_back(self._num_written, int(count), self._path, self._work.request)
        return int(count), bounds_of(keys, measured)

    def _within(self, bounds: KeyBounds) -> Column:
        column = sf.col(spark_name(bounds.key.column))
        if bounds.low is None:
            inside = sf.lit(False)
        else:
            literals = [sf.lit(value) for value in (bounds.low, bounds.high)]
            if bounds.data_type == "timestamp":
                literals = [sf.timestamp_micros(literal) for literal in literals]
            elif bounds.data_type in AS_TEXT:
                literals = [literal.cast(bounds.data_type) for literal in literals]
            inside = (column >= literals[0]) & (column <= literals[1])
        return inside | column.isNull() if bounds.key.null_safe and bounds.nulls else inside

    def _named(self, field: Json, key: ComparedColumns, texts: set[str | None]) -> set[str | None]:
        """Return the source's values of a partition column."""
        if len(texts) < 2:
            return texts
        known = self._work.spark.createDataFrame([(text,) for text in texts], StructType([StructField("text", StringType())]))
        value = sf.col("text").cast(spark_type(field["type"]))
        named = self.rows.select(sf.col(key.source).alias("named"))
        same = value.eqNullSafe(sf.col("named")) if key.null_safe else value == sf.col("named")
        return {row[0] for row in known.join(named, same, "left_semi").collect()}


def _without_id(field: Json) -> Json:
    """Return a field's metadata without its id in other files, which two columns may share."""
    return {key: value for key, value in (field.get("metadata") or {}).items() if key != PARQUET_FIELD_ID}
