"""Tables whose log is damaged, of every kind of file that a log may have, and what a careful reader finds in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyroaring import BitMap64

from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import DomainMetadata, SetTransaction
from airflow_delta.log.actions.decode import decode_commits
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, read_deletion_vectors, write_deletion_vectors
from airflow_delta.log.actions.reconciliation import TailFiles
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.transaction import Operation
from support import tables

LATEST, OLDER = 8, 5
FEATURES = {"delta.checkpointInterval": "100", "delta.feature.domainMetadata": "supported"}


def make(table: Path, *, files: int = 3, vectors: bool = False, **configuration: str) -> DeltaLog:
    """Write a table of nine versions; its checksums are ours, and it has no checkpoint."""
    log = DeltaLog.for_table(str(table), {"durable": "false"})
    marked: list[Any] = []
    for version in range(LATEST + 1):
        txn = log.start_transaction()
        if version == 0:
            metadata = tables.metadata(partition_columns=["part"], configuration={**FEATURES, **configuration})
            txn.update_metadata_for_new_table(metadata)
        if vectors and version in (2, 6):
            # Of other sizes than those of the other version: a vector in a file has no name that would tell them apart.
            bitmaps = [BitMap64(range(1, 2 * version, 2)), BitMap64(range(2, 90, version + 1))]
            marked = [*write_deletion_vectors(log.store, "", bitmaps), inline_deletion_vector(BitMap64([0, version]))]
        records = f'{{"numRecords":{100 + version},"tightBounds":false}}'
        new = []
        for number in range(files):
            vector = {"deletion_vector": marked[number]} if number < len(marked) else {}
            new.append(tables.add(f"{version}-{number}.parquet", part="x", size=100 + version, stats=records, **vector))
        actions: list[Any] = [*new]
        if version:
            actions.append(SetTransaction(app_id="app", version=version))
            (gone,) = [add for add in log.snapshot.add_files() if add.path == f"{version - 1}-1.parquet"]
            actions.append(gone.remove(1_700_000_000_000))
        if version == 3:
            actions.append(DomainMetadata(domain="d", configuration="{}", removed=False))
        txn.commit(actions, Operation.write("Append", ["part"]))
        log.update()
    return log


def compact(log: DeltaLog, first: int, last: int) -> None:
    tail = TailFiles.of(decode_commits(log.read_commit_range(range(first, last + 1)), table=log.uri))
    tables.write_compaction(log.uri, first, last, *tail.removes.values(), *tail.adds.values())


def commits(table: Path) -> None:
    make(table)


def classic(table: Path) -> None:
    write_checkpoint(make(table).snapshot_at(OLDER))


def multi_part(table: Path) -> None:
    write_checkpoint(make(table).snapshot_at(OLDER), part_size=6)


def v2(table: Path) -> None:
    write_checkpoint(make(table, **{"delta.checkpointPolicy": "v2"}).snapshot_at(OLDER), part_size=6)


def v2_parquet(table: Path) -> None:
    write_checkpoint(make(table, **{"delta.checkpointPolicy": "v2"}).snapshot_at(OLDER), part_size=6, parquet_manifest=True)


def compacted(table: Path) -> None:
    log = make(table)
    write_checkpoint(log.snapshot_at(2))
    compact(log, 3, 5)
    compact(log, 6, 7)


def vectors(table: Path) -> None:
    write_checkpoint(make(table, vectors=True, **{"delta.enableDeletionVectors": "true"}).snapshot_at(OLDER))


LOGS: dict[str, Callable[[Path], None]] = {
    "commits": commits,
    "classic checkpoint": classic,
    "multi-part checkpoint": multi_part,
    "V2 checkpoint": v2,
    "V2 checkpoint in Parquet": v2_parquet,
    "log compaction": compacted,
    "deletion vectors": vectors,
}


def state(table: Path, version: int | None, *, checked: bool) -> dict[str, Any]:
    """Return all that a reader may rely on.

    :param checked: compare the version with its checksum, as a careful reader does: the lines of the format have none.
    """
    log = DeltaLog.for_table(str(table))
    snapshot = log.snapshot if version is None else log.snapshot_at(version)
    if checked:
        snapshot.validate_checksum()
    found = {
        "version": snapshot.version,
        "schema": snapshot.metadata.schema_string,
        "configuration": snapshot.metadata.configuration,
        "protocol": snapshot.protocol,
        "transactions": dict(snapshot.transactions),
        "domains": {name: domain.configuration for name, domain in snapshot.domain_metadata.items()},
        "files": sorted((add.path, sorted(add.partition_values.items()), add.size) for add in snapshot.add_files()),
    }
    marked = [add for add in snapshot.add_files() if add.deletion_vector is not None]
    bitmaps = read_deletion_vectors(log.store, [add.deletion_vector for add in marked if add.deletion_vector is not None])
    return {**found, "vectors": sorted((add.path, list(bitmap)) for add, bitmap in zip(marked, bitmaps, strict=True))}
