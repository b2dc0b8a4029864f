"""Plan a read of the table in the worker: the files of the version that the transaction reads, and what is deleted of them."""

from __future__ import annotations

import base64
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.begin.read_snapshot import parse_predicate, read_snapshot
from airflow_delta.commands.outcome.find_commit import live_records, num_records
from airflow_delta.commands.stage.after import files_after, handle_after, load_earlier
from airflow_delta.exceptions import DeltaAnalysisException, DeltaTableNotFoundException
from airflow_delta.log.features import column_mapping
from airflow_delta.staging.contract import WORD_BITS, ScanFile, ScanPlan, ScanVector, StagedWrite, TransactionHandle
from airflow_delta.staging.paths import SCAN_DIRECTORY, transaction_directory

if TYPE_CHECKING:
    import pyarrow as pa
    from pyroaring import BitMap64

    from airflow_delta.commands.stage.load import StageActions
    from airflow_delta.log import AddFile, DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate

MAX_INLINE_WORDS = 4096
"""Up to so many words of 64 rows travel in the plan; more go into a file that Spark reads."""

_POSITIONS_AT_ONCE = 1 << 20


def plan_scan(
    log: DeltaLog,
    handle: TransactionHandle,
    predicate: str | None = None,
    *,
    spark_table_uri: str | None = None,
    after: Sequence[StagedWrite | Mapping[str, Any]] = (),
) -> ScanPlan:
    """Plan a read of the table at the version that the transaction reads, or as earlier stages of the transaction leave it.

    Partitions are pruned and files skipped by statistics here, in the worker. Deletion vectors are decoded here as well: Spark
    gets the deleted rows in a form that it can join. Whoever reads the files of a plan
    (:func:`airflow_delta.spark.read.read_files`) gets live rows only, so the copies of a rewrite need no deletion vector; the
    ``remove`` of the rewritten file carries the descriptor of its ``add``, as :meth:`AddFile.remove` copies it.

    :param after: staged writes of the earlier stages.
    :raises DeltaTableNotFoundException: the table does not exist yet.
    :raises StageConflictException: the earlier stages build on others that are not given.
    :raises VersionNotFoundException: the log no longer holds the version.
    :raises DeltaFileNotFoundException: a deletion vector is gone.
    :raises DeltaLogCorruptedException: a deletion vector is damaged.
    """
    earlier = load_earlier(log, handle, after) if after else []
    return plan_scan_after(log, handle, predicate, earlier, spark_table_uri=spark_table_uri)


def plan_scan_after(
    log: DeltaLog,
    handle: TransactionHandle,
    predicate: str | None,
    earlier: Sequence[StageActions],
    *,
    spark_table_uri: str | None = None,
) -> ScanPlan:
    """Plan a read like :func:`plan_scan`, on top of stages that are loaded already."""
    if handle.read_version < 0 and not earlier:
        raise DeltaTableNotFoundException(
            f"Table {handle.table} did not exist when the transaction began, so there is nothing to read. Ask "
            "transaction.readVersion >= 0 first.",
            table=handle.table,
        )
    target = handle_after(handle, earlier)
    parsed = None if predicate is None else parse_predicate(log, target, predicate)
    return scan_of(log, target, candidate_files(log, handle, parsed, earlier), parsed, spark_table_uri=spark_table_uri)


def candidate_files(
    log: DeltaLog, handle: TransactionHandle, predicate: Predicate | None, earlier: Sequence[StageActions]
) -> list[AddFile]:
    """Return the files that may hold rows that a predicate selects, as the table is after earlier stages."""
    replaced = any(stage.write.definition for stage in earlier)  # by a table that need not have the predicate's columns before
    files = read_snapshot(log, handle).add_files(predicate) if handle.read_version >= 0 and not replaced else []
    if not earlier:
        return files
    live = files_after(handle, files, earlier)
    return [file for file in live if predicate is None or predicate.matches_partition(file.partition_values)]


def undecided_files(
    log: DeltaLog, handle: TransactionHandle, predicate: Predicate, earlier: Sequence[StageActions]
) -> list[AddFile]:
    """Return the files of which the time zone of the Spark session decides whether a predicate on partitions selects them.

    Their timestamps name no zone. As in Delta, what they are, whoever reads them decides.
    """
    if not predicate.zone_dependent:
        return []
    files = candidate_files(log, handle, predicate, earlier)
    return [file for file in files if not predicate.selects_partition(file.partition_values)]


def zone_needed(handle: TransactionHandle, predicate: Predicate, what: str) -> DeltaAnalysisException:
    """Return the error of an operation that takes partitions whole, and cannot tell which a predicate selects."""
    return DeltaAnalysisException(
        f"{what}, partitions of table {handle.table} version {handle.read_version} are replaced whole, and whether "
        f"{predicate.text} selects some of them depends on the time zone of the reader: their timestamps name none. Name a range "
        "that ends 18 hours or more away from them, or run a DELETE first, which Spark decides.",
        table=handle.table,
        version=handle.read_version,
    )


def scan_of(
    log: DeltaLog,
    handle: TransactionHandle,
    files: Sequence[AddFile],
    predicate: Predicate | None = None,
    *,
    spark_table_uri: str | None = None,
) -> ScanPlan:
    """Return the plan to read given files of the table.

    :param handle: with the schema to read them in (:func:`airflow_delta.commands.stage.after.handle_after`).
    :param predicate: the predicate that they were selected for.
    """
    vectors, deleted_rows = _deleted_rows(log, files, handle.transaction_id)
    return ScanPlan(
        transaction_id=handle.transaction_id,
        table=spark_table(log, spark_table_uri),
        read_version=handle.read_version,
        schema_string=handle.schema_string or read_snapshot(log, handle).metadata.schema_string,
        partition_columns=handle.partition_columns,
        predicate=None if predicate is None else predicate.text,
        column_mapping=column_mapping.mode(handle.configuration),
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


def spark_table(log: DeltaLog, given: str | None = None) -> str:
    """Return the URI of the table as Spark reaches it, not URL-encoded."""
    if given is not None:
        return given.rstrip("/")
    return f"file://{log.store.local_root}" if log.store.local_root is not None else log.uri


def _deleted_rows(log: DeltaLog, files: Sequence[AddFile], transaction_id: str) -> tuple[dict[int, ScanVector], str | None]:
    """Return the vectors by position of their file, and the file with their words when they do not travel in the plan."""
    marked = [(position, f, f.deletion_vector) for position, f in enumerate(files) if f.deletion_vector is not None]
    if not marked:
        return {}, None
    from airflow_delta.log.actions.deletion_vectors import read_deletion_vectors

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
            words=_as_text(first[number]) if inline else None,
        )
        for number, (position, _, descriptor) in enumerate(marked)
    }
    return vectors, path


def _counted(chunks: Iterable[tuple[int, pa.Table]], counts: list[int]) -> Iterator[tuple[int, pa.Table]]:
    for number, words in chunks:
        counts[number] += words.num_rows
        yield number, words


def word_chunks(bitmap: BitMap64) -> Iterator[pa.Table]:
    """Yield the positions as words of 64: ``number`` (int64) and ``word`` (int64, bit for bit).

    Some positions at a time: a vector of few bytes may mark all rows of a large file.
    """
    from pyroaring import BitMap64

    start = next(iter(bitmap), None)
    while start is not None:
        start -= start % 64
        yield _words(bitmap & BitMap64(range(start, start + _POSITIONS_AT_ONCE)))
        start = next(bitmap.iter_equal_or_larger(start + _POSITIONS_AT_ONCE), None)


def _words(bitmap: BitMap64) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    from airflow_delta.log.arrow.arrays import array, scalar

    data = bitmap.to_array()
    positions = pa.Array.from_buffers(pa.uint64(), len(data), [None, pa.py_buffer(data)])
    bits = pc.shift_left(scalar(1, pa.uint64()), pc.bit_wise_and(positions, scalar(63, pa.uint64())))
    # Positions are sorted, so those of one word follow each other. Each bit is there once, so their sum is their union; sums wrap
    # around, and so does the difference of two.
    words = pc.run_end_encode(pc.shift_right(positions, scalar(6, pa.uint64())).cast(pa.int64()))
    sums = pc.cumulative_sum(bits).take(pc.subtract(words.run_ends, scalar(1, pa.int32())))
    before = pa.concat_arrays([array([0], pa.uint64()), sums[:-1]])
    return pa.table([words.values, pc.subtract(sums, before).view(pa.int64())], names=["number", "word"])


def _as_text(chunks: Sequence[pa.Table]) -> str:
    import struct

    pairs = chain.from_iterable(
        zip(words.column("number").to_pylist(), words.column("word").to_pylist(), strict=True) for words in chunks
    )
    return base64.b64encode(zlib.compress(b"".join(struct.pack("<qq", *pair) for pair in pairs))).decode()


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
