"""Read a table at a version as a DataFrame: exactly the files of a scan plan, with the partition values of the log.

Rows marked by a deletion vector are left out. Columns are found in files by the table's column mapping. Widened types need no
work here: the Parquet reader of Spark 4 returns the values of older files in the table's type, and Spark 3.5 is refused.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType, StructField, StructType

from airflow_delta.contract.char_lengths import char_length
from airflow_delta.contract.partition_texts import partition_text
from airflow_delta.contract.payloads import WORD_BITS, Json, ScanFile, ScanPlan
from airflow_delta.contract.spark_paths import data_file_uri, escape_glob, is_encoded, normal_form
from airflow_delta.exceptions import StagingException
from airflow_delta.spark.align import spark_name, spark_type
from airflow_delta.spark.layout import Layout
from airflow_delta.spark.older_spark import check_plan, metadata_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


FILE_COLUMN = "__airflow_delta_file"
"""Name of the column with ``_metadata.file_path`` that :func:`read_plan_files` can add."""

MAX_LITERAL_PARTITIONS = 16
"""Maximum number of partitions that are read one by one, with their values as literals; more are joined to the files by path."""

MAX_BROADCAST_WORDS = 4_000_000
"""Maximum number of words of deleted rows (about 70 bytes each) that are broadcast; more are joined by a shuffle."""

ROW_COLUMN = "__airflow_delta_row"
"""Name of the column with the position of the row in its file, from 0, that :func:`read_plan_files` can add."""

_VECTOR = "__airflow_delta_vector"


def read_scan_plan(spark: SparkSession, plan: ScanPlan) -> DataFrame:
    """Return the rows of a scan plan, with the columns of the table's schema in order.

    Partition values come from the plan, never from directory names; columns missing in a file are null.
    """
    df = read_plan_files(spark, plan, plan.files)
    return df if plan.predicate is None else df.where(sf.expr(plan.predicate))


def read_plan_files(
    spark: SparkSession,
    plan: ScanPlan,
    files: Sequence[ScanFile],
    *,
    file_column: bool = False,
    row_column: bool = False,
    marked_rows: bool = False,
) -> DataFrame:
    """Return all rows of some files of a plan that are not deleted.

    :param file_column: add :data:`FILE_COLUMN`.
    :param row_column: add :data:`ROW_COLUMN`.
    :param marked_rows: of files with a deletion vector, return the marked rows instead of the others.
    :raises SparkVersionException: if this is Spark 3.5, and it cannot read them.
    """
    check_plan(plan)
    layout = Layout(plan)
    if not files:
        empty = StructType.fromJson({"type": "struct", "fields": layout.fields})
        for wanted, added in (
            (file_column, StructField(FILE_COLUMN, StringType())),
            (row_column, StructField(ROW_COLUMN, LongType())),
        ):
            empty = empty.add(added) if wanted else empty
        return spark.createDataFrame([], empty)
    out = [f["name"] for f in layout.fields]
    out += [name for wanted, name in ((file_column, FILE_COLUMN), (row_column, ROW_COLUMN)) if wanted]
    whole = [file for file in files if file.deletion_vector is None]
    marked = [file for file in files if file.deletion_vector is not None]
    parts = []
    if whole:
        parts.append(_read(spark, plan, layout, whole, out))
    if marked:
        rows = _read(spark, plan, layout, marked, list(dict.fromkeys([*out, _VECTOR, ROW_COLUMN])))
        kept = _live_rows(spark, plan, marked, rows, how="left_semi" if marked_rows else "left_anti")
        parts.append(kept.select(*map(spark_name, out)))
    return _with_lengths(reduce(lambda a, b: a.unionAll(b), parts), layout)


def _with_lengths(df: DataFrame, layout: Layout) -> DataFrame:
    """Return the rows with partition columns of ``char(n)`` declared as such, as others are: Spark compares them so."""
    for field, _ in layout.partition_columns:
        if char_length(field) is not None:
            df = df.withMetadata(field["name"], field["metadata"])
    return df


# -- files --------------------------------------------------------------------------------------------------------------------


def _read(spark: SparkSession, plan: ScanPlan, layout: Layout, files: Sequence[ScanFile], out: Sequence[str]) -> DataFrame:
    """Return all rows of files.

    :param out: the columns: the table's, :data:`FILE_COLUMN`, the number of the vector, the position of the row in the file. Only
        those needed: Spark reads metadata columns even if they are unused.
    """
    groups: dict[tuple[str | int | None, ...], list[ScanFile]] = defaultdict(list)
    for file in files:
        groups[_constants(layout, file)].append(file)
    if len(groups) > MAX_LITERAL_PARTITIONS:
        return _join_by_path(spark, plan, layout, files, out)
    parts = []
    for (vector, *values), members in groups.items():
        df = _read_parquet(spark, plan, layout, members, out)
        if vector is not None:
            df = df.withColumn(_VECTOR, sf.lit(vector).cast("long"))
        for (field, _), value in zip(layout.partition_columns, values, strict=True):
            df = df.withColumn(field["name"], _typed(sf.lit(value).cast("string"), field))
        parts.append(df.select(*map(spark_name, out)))
    return reduce(lambda a, b: a.unionAll(b), parts)


def _constants(layout: Layout, file: ScanFile) -> tuple[str | int | None, ...]:
    """Return what all rows of a file share: the number of its vector and its partition values."""
    vector = None if file.deletion_vector is None else file.deletion_vector.number
    return (vector, *(partition_text(file.partition_values, key) for _, key in layout.partition_columns))


def _read_parquet(
    spark: SparkSession, plan: ScanPlan, layout: Layout, files: Sequence[ScanFile], out: Sequence[str]
) -> DataFrame:
    if layout.by_id:
        # Not an option of the reader, and looked up when the rows are read. Schemas without ids are read as before.
        spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    paths = [escape_glob(data_file_uri(plan.table, file.path)) for file in files]
    reader = spark.read.schema(StructType.fromJson(layout.stored))
    # The schema is given: nothing is inferred from footers or directory names (recursiveFileLookup turns that off); names ignore
    # case. A missing or damaged file of the log is an error.
    options = {
        "mergeSchema": "false",
        "recursiveFileLookup": "true",
        "ignoreMissingFiles": "false",
        "ignoreCorruptFiles": "false",
    }
    df = reader.options(**options).parquet(*paths)
    metadata = metadata_column(df)  # even if the table has a column of that name
    about = [
        metadata[name].alias(alias) for name, alias in (("file_path", FILE_COLUMN), ("row_index", ROW_COLUMN)) if alias in out
    ]
    return df.select(*layout.columns(), *about)


def _typed(text: Column, field: Json) -> Column:
    if (length := char_length(field)) is not None:  # as Spark reads a char(n) from files
        return sf.when(sf.char_length(text) < length, sf.rpad(text, length, " ")).otherwise(text)
    return text if field["type"] == "string" else text.cast(spark_type(field["type"]))


def _join_by_path(
    spark: SparkSession, plan: ScanPlan, layout: Layout, files: Sequence[ScanFile], out: Sequence[str]
) -> DataFrame:
    key, known = "__airflow_delta_key", "__airflow_delta_known"
    columns = [f"__airflow_delta_partition_{i}" for i in range(len(layout.partition_columns))]
    names = [normal_form(data_file_uri(plan.table, f.path)) for f in files]
    rows = [(name, *_constants(layout, f)) for name, f in zip(names, files, strict=True)]
    texts = [StructField(name, StringType()) for name in columns]
    schema = StructType([StructField(key, StringType()), StructField(_VECTOR, LongType()), *texts])
    values = sf.broadcast(spark.createDataFrame(rows, schema).withColumn(known, sf.lit(True)))
    read = _read_parquet(spark, plan, layout, files, [*out, FILE_COLUMN])
    joined = read.withColumn(key, normal_form_of_names(names)).join(values, on=key, how="left")
    lost = sf.raise_error(sf.concat(sf.lit("A file that was read is not in the scan plan: "), sf.col(FILE_COLUMN)))

    def checked(column: Column) -> Column:
        return sf.when(sf.col(known).isNull(), lost).otherwise(column)

    given = {
        field["name"]: checked(_typed(sf.col(name), field))
        for name, (field, _) in zip(columns, layout.partition_columns, strict=True)
    }
    return joined.withColumns({**given, _VECTOR: checked(sf.col(_VECTOR))}).select(*map(spark_name, out))


def normal_form_of_names(known: Sequence[str]) -> Column:
    """Return the normal form of :data:`FILE_COLUMN`, as :mod:`airflow_delta.contract.spark_paths` makes it.

    It is computed for every row, and decoding costs several times as much as reading.

    :param known: normal forms of the files that are read: names are decoded only if one of them may be encoded.
    """
    name = sf.col(FILE_COLUMN)
    if any(map(is_encoded, known)):
        name = sf.url_decode(sf.replace(name, sf.lit("+"), sf.lit("%2B")))  # a plus sign is not a space in Hadoop's encoding
    colon = sf.locate(":", name)
    after_scheme = sf.substr(name, colon + sf.when(sf.contains(name, sf.lit("://")), 3).otherwise(1))
    return sf.when(sf.startswith(name, sf.lit("/")), name).otherwise(after_scheme)


# -- deletion vectors ---------------------------------------------------------------------------------------------------------


def _live_rows(spark: SparkSession, plan: ScanPlan, files: Sequence[ScanFile], rows: DataFrame, *, how: str) -> DataFrame:
    """Return the rows whose bit is not set (``left_anti``) or is set (``left_semi``) in the words of their file's vector."""
    key, word = "__airflow_delta_word_key", "__airflow_delta_word"
    words = _words(spark, plan, files).toDF(key, word)
    many = sum(f.deletion_vector.num_words for f in files if f.deletion_vector is not None) > MAX_BROADCAST_WORDS
    number = sf.shiftleft(sf.col(_VECTOR), WORD_BITS) + sf.shiftright(sf.col(ROW_COLUMN), 6)
    bit = sf.getbit(sf.col(word), sf.col(ROW_COLUMN).bitwiseAND(63).cast("int"))
    return rows.join(words.hint("merge" if many else "broadcast"), (number == sf.col(key)) & (bit == 1), how)


def _words(spark: SparkSession, plan: ScanPlan, files: Sequence[ScanFile]) -> DataFrame:
    schema = StructType([StructField("key", LongType(), False), StructField("word", LongType(), False)])
    if plan.deleted_rows is not None:
        return spark.read.schema(schema).parquet(escape_glob(f"{plan.table.rstrip('/')}/{plan.deleted_rows}"))
    pairs = []
    for file in files:
        vector = file.deletion_vector
        if vector is None or vector.words is None:
            raise plan.error(
                StagingException,
                f"The scan plan of table {plan.table} says that rows of {file.path} are deleted, but not which. Clear the start "
                "task.",
            )
        first = vector.number << WORD_BITS
        data = zlib.decompress(base64.b64decode(vector.words))
        pairs += [(first + number, word) for number, word in struct.iter_unpack("<qq", data)]
    return spark.createDataFrame(pairs, schema)
