"""Planning a read of the change data feed: refusals that need no Spark, and what the plan says of vectors and of a MERGE."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

from airflow_delta.contract.change_plan import ChangePlan
from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    VersionNotFoundException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import Action, AddFile, DeletionVectorDescriptor, Metadata, RemoveFile
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector
from airflow_delta.table.changes.plan import plan_changes
from support import actions
from support.actions import cdc, column, info, protocol
from support.tables import write_commit


def add(path: str, rows: list[int] | None = None, **given: Any) -> AddFile:
    return actions.add(path, deletion_vector=vector(rows), **given)


def remove(path: str, rows: list[int] | None = None, **given: Any) -> RemoveFile:
    return actions.remove(path, deletion_vector=vector(rows), **given)


def vector(rows: list[int] | None) -> DeletionVectorDescriptor | None:
    return None if rows is None else inline_deletion_vector(BitMap64(rows))


def metadata(enabled: str = "true") -> Metadata:
    return actions.metadata(column("id", "long"), **{"delta.enableChangeDataFeed": enabled})


PROTOCOL = protocol(3, 7, ["deletionVectors"], ["deletionVectors", "changeDataFeed"])


def log_of(path: Path, *commits: list[Action]) -> DeltaLog:
    for version, given in enumerate(commits):
        write_commit(path, version, *given)
    return DeltaLog.for_table(str(path))


def test_what_each_commit_is_read_from(tmp_path: Path):
    zeros = dict.fromkeys(("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"), "0")
    log = log_of(
        tmp_path,
        [info("CREATE TABLE"), PROTOCOL, metadata(), add("a")],
        [info("DELETE"), remove("a"), add("a", [1, 2])],
        [info("RESTORE"), remove("a", [1, 2]), add("a", [2, 3])],
        [info("OPTIMIZE"), remove("a", [2, 3], data_change=False), add("b", data_change=False)],
        [info("UPDATE"), remove("b"), add("c"), cdc()],
        [info("MERGE", operation_metrics=zeros), remove("c"), add("d")],
        [info("MERGE", operation_metrics={**zeros, "numTargetRowsDeleted": "1"}), remove("d"), add("e")],
        [info("WRITE"), remove("e", [5]), add("e", [5])],
    )
    plan = plan_changes(log, starting_version=0)
    assert ChangePlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    found = {}
    for commit in plan.commits:
        kinds = ("changes", "inserts", "deletes", "inserted_rows", "deleted_rows")
        found[commit.version] = {kind: [file.path for file in files] for kind in kinds if (files := getattr(commit, kind))}
    assert found == {
        0: {"inserts": ["a"]},
        1: {"deleted_rows": ["a"]},
        2: {"inserted_rows": ["a"], "deleted_rows": ["a"]},
        4: {"changes": ["_change_data/c"]},
        6: {"inserts": ["e"], "deletes": ["d"]},
    }
    marked = [file.deletion_vector for commit in plan.commits for file in (*commit.inserted_rows, *commit.deleted_rows)]
    assert [(v.cardinality, v.number) for v in marked if v is not None] == [(2, 0), (1, 1), (1, 2)]
    assert (plan.starting_version, plan.ending_version) == (0, 7)


def test_ranges_that_cannot_be_read(tmp_path: Path):
    missing = (
        r"There is no Delta table at .*/none, so there are no changes to read\. Check the location, the connection, and that "
    )
    with pytest.raises(DeltaTableNotFoundException, match=missing):
        plan_changes(DeltaLog.for_table(str(tmp_path / "none")), starting_version=0)
    log = log_of(
        tmp_path / "t",
        [info("CREATE TABLE"), PROTOCOL, metadata()],
        [info("SET TBLPROPERTIES"), metadata("false")],
        [info("SET TBLPROPERTIES"), metadata()],
        [info("WRITE"), actions.remove("x", extended_file_metadata=None, partition_values=None, size=None)],
    )
    assert plan_changes(log, starting_version=2, ending_version=2).commits == ()
    for start, end, error in (
        (0, 2, DeltaIllegalStateException),
        (1, 3, DeltaIllegalStateException),
        (2, 3, DeltaIllegalStateException),  # a file with an unknown number of rows
        (4, None, VersionNotFoundException),
        (3, 2, DeltaIllegalArgumentException),
        (-1, None, DeltaIllegalArgumentException),
        (True, None, DeltaIllegalArgumentException),
        (None, 2, DeltaIllegalArgumentException),
    ):
        with pytest.raises(error):
            plan_changes(log, starting_version=start, ending_version=end)
    with pytest.raises(DeltaIllegalArgumentException, match="not both"):
        plan_changes(log, starting_version=0, ending_version=0, ending_timestamp=0)


def test_commits_that_were_cleaned_up(tmp_path: Path):
    log = log_of(tmp_path, [info("CREATE TABLE"), PROTOCOL, metadata()], [info("WRITE"), add("a")], [info("WRITE"), add("b")])
    log.checkpoint(log.snapshot_at(1))
    for version in (0, 1):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    fresh = DeltaLog.for_table(str(tmp_path))
    for start in (0, 1):
        with pytest.raises(VersionNotFoundException):
            plan_changes(fresh, starting_version=start)
    assert len(plan_changes(fresh, starting_version=2).commits) == 1
