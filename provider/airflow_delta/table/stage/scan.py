"""Plan a read of the table in the worker: the files to read, and the rows deleted from them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from airflow_delta.contract.arguments import RowIds
from airflow_delta.contract.delta_names import ENABLE_ROW_TRACKING, MATERIALIZED_ROW_COMMIT_VERSION, MATERIALIZED_ROW_ID
from airflow_delta.contract.partition_texts import partition_text
from airflow_delta.contract.payloads import WORD_BITS, ScanFile, ScanPlan, ScanVector
from airflow_delta.contract.staging_directory import SCAN_DIRECTORY, transaction_directory
from airflow_delta.exceptions import DeltaAnalysisException, DeltaTableNotFoundException
from airflow_delta.log.actions.deletion_vectors import read_deletion_vectors
from airflow_delta.log.schema.partition_values import parse_partition_value
from airflow_delta.log.statistics.row_counts import live_records, num_records
from airflow_delta.table.stage.spark_uri import spark_uri

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log import AddFile
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.table_definition import TableDefinition
    from airflow_delta.table.stage.view import TransactionView


MAX_INLINE_WORDS = 4096
"""Words of 64 rows that fit into the plan; more go into a file that Spark reads."""


def plan_scan(view: TransactionView, predicate: str | None = None) -> ScanPlan:
    """Plan a read of the table at the version that the transaction reads, or as earlier stages of the transaction leave it.

    The worker prunes partitions, skips files by statistics and decodes deletion vectors: Spark gets the deleted rows in a form
    that it can join. :func:`airflow_delta.spark.read.read_plan_files` returns live rows only, so the copies of a rewrite need no
    deletion vector; the ``remove`` of the rewritten file has the descriptor of its ``add`` (:meth:`AddFile.remove` copies it).

    :raises DeltaTableNotFoundException: if the table does not exist yet.
    :raises VersionNotFoundException: if the log no longer holds the version.
    :raises DeltaFileNotFoundException: if a deletion vector is gone.
    :raises DeltaLogCorruptedException: if a deletion vector is damaged.
    """
    if not view.exists:
        raise view.handle.error(
            DeltaTableNotFoundException,
            f"Table {view.handle.table} did not exist when the transaction began, so there is nothing to read. The commit "
            "creates it: leave out read=, and in a function ask table.exists before table(). Or create it first, with "
            "DeltaCreateTableOperator.",
        )
    parsed = None if predicate is None else view.predicate(predicate)
    return scan_of(view, candidate_files(view, parsed), parsed)


def plan_view(view: TransactionView, predicate: str | None = None) -> ScanPlan:
    """Plan a read of the table, as :func:`plan_scan` does; of no rows if it does not exist yet and its columns are known.

    :raises DeltaTableNotFoundException: if they are not.
    """
    return plan_scan(view, predicate) if view.exists or not view.target.is_known else scan_of(view, [])


def candidate_files(view: TransactionView, predicate: Predicate | None) -> list[AddFile]:
    """Return the files that may hold rows that a predicate selects, after earlier stages.

    What an earlier execution of the transaction has added, and ``rerun_policy="replace"`` takes back, is not there: a stage that
    only adds what is missing would add nothing, and the rows would be lost.
    """
    # A table that an earlier stage defines need not have had the predicate's columns before.
    replaced = any(stage.write.definition for stage in view.stages)
    files = view.snapshot.add_files(predicate) if view.handle.read_version >= 0 and not replaced else []
    if not view.stages and not view.taken_back:
        return files
    live = view.live_files(files)
    return [file for file in live if predicate is None or predicate.matches_partition(file.partition_values)]


def undecided_files(view: TransactionView, predicate: Predicate) -> list[AddFile]:
    """Return the files for which the time zone of the Spark session decides whether a predicate on partitions selects them.

    Their timestamps have no zone; as in Delta, the reader decides what they mean.
    """
    if not predicate.zone_dependent:
        return []
    files = candidate_files(view, predicate)
    return [file for file in files if not predicate.selects_partition(file.partition_values)]


def zone_needed(table: TableDefinition, predicate: Predicate, what: str) -> DeltaAnalysisException:
    """Return the error of an operation on whole partitions that cannot determine which ones a predicate selects."""
    return table.error(
        DeltaAnalysisException,
        f"{what}, partitions of table {table.table} version {table.version} are replaced whole, and whether "
        f"{predicate.text} selects some of them depends on the time zone of the reader: their timestamps have none. Choose a "
        "range that ends at least 18 hours away from them, or run a DELETE first, which Spark decides.",
    )


def scan_of(
    view: TransactionView,
    files: Sequence[AddFile],
    predicate: Predicate | None = None,
    *,
    target: TableDefinition | None = None,
) -> ScanPlan:
    """Return the plan to read given files of the table.

    :param predicate: the predicate that they were selected for.
    :param target: whose schema to read them with; default: that of the view.
    """
    target = view.target if target is None else target
    if not target.is_known:
        target = replace(target, schema_string=view.snapshot.metadata.schema_string)
    return scan_files(
        view.log,
        files,
        transaction_id=view.handle.transaction_id,
        version=view.handle.read_version,
        table=target,
        predicate=predicate,
        spark_table_uri=view.spark_table_uri,
    )


def row_ids_of(table: TableDefinition, files: Sequence[AddFile]) -> RowIds | None:
    """Return what is needed to keep the row ids of a scan (Delta protocol, "Row Tracking"); ``None`` if there are none to keep.

    :param table: at the version that was read.
    :param files: of the scan. Those that an earlier stage has staged have no ids yet.
    """
    configuration = table.configuration
    names = tuple(configuration.get(key, "") for key in (MATERIALIZED_ROW_ID, MATERIALIZED_ROW_COMMIT_VERSION))
    if configuration.get(ENABLE_ROW_TRACKING, "false").lower() != "true" or not all(names):
        return None
    base = tuple(file.base_row_id for file in files if file.base_row_id is not None)
    versions = tuple(file.default_row_commit_version for file in files if file.default_row_commit_version is not None)
    if len(base) < len(files) or len(versions) < len(files):
        return None
    return RowIds(columns=names, base=base, version=versions)


def scan_files(
    log: DeltaLog,
    files: Sequence[AddFile],
    *,
    transaction_id: str,
    version: int,
    table: TableDefinition,
    predicate: Predicate | None = None,
    spark_table_uri: str | None = None,
) -> ScanPlan:
    """Return the plan to read given files of a version.

    :param table: what it is, with its columns.
    :param transaction_id: names the directory of the rows that deletion vectors mark, when they are many.
    """
    check_partition_values(files, table, uri=log.uri, version=version)
    vectors, deleted_rows = _deleted_rows(log, files, transaction_id)
    return ScanPlan(
        transaction_id=transaction_id,
        table=spark_table(log, spark_table_uri),
        read_version=version,
        schema_string=table.schema_string or "",
        partition_columns=table.partition_columns,
        predicate=None if predicate is None else predicate.text,
        column_mapping=table.column_mapping,
        files=tuple(
            ScanFile(
                path=f.path,
                partition_values=dict(f.partition_values),
                size=f.size,
                deletion_vector=vectors.get(position),
                num_records=live_records(f),
            )
            for position, f in enumerate(files)
        ),
        deleted_rows=deleted_rows,
    )


def check_partition_values(files: Sequence[AddFile], table: TableDefinition, *, uri: str, version: int) -> None:
    """Refuse files whose partition values Spark would cast in another way than they are read here, or to null.

    :raises DeltaAnalysisException: if a file has such a value.
    """
    if not files or not table.partition_columns:
        return
    for field in table.schema.select(table.partition_columns).fields:
        known: set[str | None] = set()
        for file in files:
            text = partition_text(file.partition_values, field.physical_name)
            if text in known:
                continue
            known.add(text)
            try:
                parse_partition_value(text, field.data_type, field.name)
            except DeltaAnalysisException as error:
                raise DeltaAnalysisException(
                    f"Data file {file.path} of table {uri} version {version} cannot be read: {error.message}. Another writer "
                    "wrote it; let that writer rewrite the partition.",
                    table=uri,
                    version=version,
                ) from error


def spark_table(log: DeltaLog, given: str | None = None) -> str:
    """Return the URI of the table as Spark reaches it, not URL-encoded."""
    if given is not None:
        return given.rstrip("/")
    if log.store.local_root is not None:
        return f"file://{log.store.local_root}"
    return spark_uri(log.uri, log.store.options)


def _deleted_rows(log: DeltaLog, files: Sequence[AddFile], transaction_id: str) -> tuple[dict[int, ScanVector], str | None]:
    """Return the vectors by position of their file, and the path of their words if these do not fit into the plan."""
    marked = [(position, f, f.deletion_vector) for position, f in enumerate(files) if f.deletion_vector is not None]
    if not marked:
        return {}, None
    from airflow_delta.table.files.row_words import word_chunks, words_as_text

    bitmaps = read_deletion_vectors(
        log.store, [descriptor for _, _, descriptor in marked], [num_records(file.stats) for _, file, _ in marked]
    )
    chunks = ((number, words) for number, bitmap in enumerate(bitmaps) for words in word_chunks(bitmap))
    counts = [0] * len(bitmaps)
    first: list[list[pa.Table]] = [[] for _ in bitmaps]
    total = 0
    for number, words in chunks:
        first[number].append(words)
        counts[number] += words.num_rows
        total += words.num_rows
        if total > MAX_INLINE_WORDS:
            break
    inline = total <= MAX_INLINE_WORDS
    path = None
    if not inline:
        started = ((number, words) for number, some in enumerate(first) for words in some)
        path = _put_words(log, chain(started, _counted(chunks, counts)), transaction_id)
    vectors = {
        position: ScanVector(
            number=number,
            cardinality=descriptor.cardinality,
            num_words=counts[number],
            words=words_as_text(first[number]) if inline else None,
        )
        for number, (position, _, descriptor) in enumerate(marked)
    }
    return vectors, path


def _counted(chunks: Iterable[tuple[int, pa.Table]], counts: list[int]) -> Iterator[tuple[int, pa.Table]]:
    for number, words in chunks:
        counts[number] += words.num_rows
        yield number, words


def _put_words(log: DeltaLog, chunks: Iterable[tuple[int, pa.Table]], transaction_id: str) -> str:
    """Write the words of all vectors into one file as they come."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from airflow_delta.log.arrow.arrays import scalar

    schema = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("word", pa.int64(), nullable=False)])
    path = f"{transaction_directory(transaction_id)}/{SCAN_DIRECTORY}/{uuid.uuid4()}.parquet"
    with log.store.scratch_file() as file:
        with pq.ParquetWriter(file, schema, compression="snappy") as writer:
            for number, words in chunks:
                key = pc.add(words.column("number"), scalar(number << WORD_BITS))
                writer.write_table(pa.table([key, words.column("word")], schema=schema))
        file.seek(0)
        log.store.put_file(path, file)
    return path
