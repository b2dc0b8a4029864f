"""Carries a case of the tables out on a real table, with any engine that has the methods of ``OptimisticTransaction``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from airflow_delta.log.actions.actions import Action, Metadata
from airflow_delta.transaction import Operation
from conformance.cases import Case, Side, Step
from support.actions import add, as_json, domain, listed, protocol, remove, txn, vector
from support.table import Table

LOOSE = '{"numRecords":10,"tightBounds":false}'
"""Statistics of a file with a deletion vector."""


def read(transaction: Any, reads: Iterable[str]) -> None:
    """Let a transaction read what the notation says."""
    for what in reads:
        word, _, rest = what.partition(" ")
        if what == "*":
            transaction.filter_files()
        elif what == "whole table":
            transaction.read_whole_table()
        elif word == "app":
            transaction.txn_version(rest)
        elif word == "file":
            transaction.track_files_read([rest])
        elif word == "partition":
            transaction.filter_files_for_partitions([add("new", **dict([rest.split("=")]))])
        else:
            transaction.filter_files(what)


def action(step: Step, metadata: Metadata) -> Action:
    """Return the action of a step.

    :param metadata: those that the table has.
    """
    match step.word:
        case "add" | "remove":
            values: dict[str, Any] = {**step.values, "data_change": "moved" not in step.flags}
            if offset := values.pop("vector", None):
                values |= {"deletion_vector": vector(int(offset)), "stats": LOOSE}
            return (add if step.word == "add" else remove)(step.name, **values)
        case "txn":
            return txn(step.name, int(step.flags[0]))
        case "domain":
            return domain(step.name, removed="removed" in step.flags)
        case "metadata":
            return replace(metadata, **step.values)
        case "protocol" if step.name.isdigit():
            return protocol(int(step.name), int(step.flags[0]))
        case "protocol":
            names = [step.name, *step.flags]
            return listed((name[:-1] for name in names if name.endswith("*")), *(name for name in names if name[-1] != "*"))
    raise ValueError(f"{step.word} is no action")


def operation(name: str) -> Operation:
    """Return an operation by the name that Delta gives it."""
    return Operation.drop_feature(name.split()[-1]) if name.startswith("DROP FEATURE") else Operation(name)


def committed_by(side: Side, metadata: Metadata) -> tuple[list[Action], Operation]:
    """Return the actions and the operation of one side."""
    return [action(step, metadata) for step in side.commits], operation(side.operation)


def table_of(case: Case, root: Path, level: str) -> Table:
    """Return the table that both sides of a case read."""
    table = Table(root / "table")
    table.create(case.partition_by, configuration=dict(case.properties))
    if level != "Serializable":  # Delta honours it where it is, and lets nobody set it
        metadata = table.log().snapshot.metadata
        changed = replace(metadata, configuration={**metadata.configuration, "delta.isolationLevel": level})
        table.put_foreign(1, {"commitInfo": {"operation": "SET TBLPROPERTIES", "timestamp": 1}}, as_json(changed))
    if case.files:
        table.commit(*(action(step, metadata=table.log().snapshot.metadata) for step in case.files))
    return table


def run_up(case: Case, table: Table, ours: Any) -> tuple[int, list[Action], Operation]:
    """Let ours read and the winner commit; return the winner's version, and what ours is to commit.

    :param ours: the transaction, which has just begun.
    """
    metadata = table.log().snapshot.metadata
    read(ours, case.ours.reads)
    version = win(case, table)
    read(ours, case.ours.reads_later)
    return version, *committed_by(case.ours, metadata)


def win(case: Case, table: Table) -> int:
    """Let the winner read and commit; return its version."""
    log = table.log()
    winner = log.start_transaction()
    read(winner, case.winner.reads)
    return winner.commit(*committed_by(case.winner, winner.snapshot.metadata))


# -- metadata_changes.toml -------------------------------------------------------------------------------------------------------


def table_for_metadata_changes(root: Path) -> Table:
    features = ("deletionVectors", "columnMapping", "v2Checkpoint", "inCommitTimestamp")
    table = Table(root / "table")
    table.create(configuration={"user": "v", **{f"delta.feature.{name}": "supported" for name in features}})
    return table


def change_metadata(table: Table, change: Mapping[str, Any]) -> None:
    """Commit changed metadata as version 1, as another engine does."""
    before = next(line["metaData"] for line in table.lines(0) if "metaData" in line)
    properties = {**before["configuration"], **change.get("properties", {})}
    for name in change.get("without_properties", ()):
        del properties[name]
    info = {"operation": "SET TBLPROPERTIES", "timestamp": 1, "operationParameters": {}, "inCommitTimestamp": 1_700_000_000_000}
    table.put_foreign(1, {"commitInfo": info}, {"metaData": {**before, **change.get("set", {}), "configuration": properties}})
