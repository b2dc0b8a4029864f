"""Random logs, replayed by us, delta-rs and a naive oracle: the same state at every version, whatever a checkpoint covers."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import given, settings

from airflow_delta.log import DeltaLog, Snapshot
from airflow_delta.log.actions.actions import encode_action
from fuzz import oracle
from fuzz.sequences import Sequence_, sequences, write
from support import readers

EXAMPLES = 60


def assert_state(snapshot: Snapshot, expected: oracle.State) -> None:
    assert _plain(snapshot.protocol) == expected.protocol
    assert _plain(snapshot.metadata) == expected.metadata
    assert snapshot.transactions == expected.transactions
    assert {name: domain.configuration for name, domain in snapshot.domain_metadata.items()} == expected.domains
    found = [_plain(add) for add in snapshot.add_files()]
    assert len(found) == len(expected.files)
    assert {oracle.key(add): _facts(add) for add in found} == {key: _facts(add) for key, add in expected.files.items()}
    assert snapshot.num_files == len(expected.files)
    assert snapshot.size_in_bytes == sum(add["size"] for add in expected.files.values())


def _plain(action: Any) -> dict[str, Any]:
    ((_kind, value),) = json.loads(encode_action(action)).items()
    return value


def _facts(add: dict[str, Any]) -> dict[str, Any]:
    """What must survive reconciliation and checkpoints; an empty value reads as null, dataChange is the commit's."""
    kept = {name: value for name, value in add.items() if name != "dataChange"}
    kept["partitionValues"] = {name: value or None for name, value in add["partitionValues"].items()}
    if "stats" in kept:
        kept["stats"] = json.loads(kept["stats"])
    return kept


@settings(max_examples=EXAMPLES, deadline=None)
@given(sequence=sequences(vectors=True))
def test_every_version_is_the_oracle_s(sequence: Sequence_) -> None:
    with tempfile.TemporaryDirectory() as directory:
        table = Path(directory) / "table"
        followed: DeltaLog | None = None
        for version, commit in enumerate(sequence.commits):
            write(table, [commit], version)
            if followed is None:
                followed = DeltaLog.for_table(str(table))
            assert_state(followed.update(), oracle.replay(table, version))
            if version in sequence.checkpoints:
                followed.checkpoint()
        for version in range(len(sequence.commits)):
            fresh = DeltaLog.for_table(str(table))
            assert_state(fresh.snapshot_at(version), oracle.replay(table, version))


@settings(max_examples=EXAMPLES, deadline=None)
@given(sequence=sequences(vectors=True))
def test_a_checkpoint_stands_for_the_commits_below_it(sequence: Sequence_) -> None:
    """Cleaned up commits must not be needed any more."""
    with tempfile.TemporaryDirectory() as directory:
        table = Path(directory) / "table"
        write(table, sequence.commits)
        last = len(sequence.commits) - 1
        expected = oracle.replay(table, last)
        at = max(sequence.checkpoints, default=last)
        log = DeltaLog.for_table(str(table))
        log.checkpoint(log.snapshot_at(at))
        for version in range(at + 1):
            (table / "_delta_log" / f"{version:020d}.json").unlink()
        if at == last:  # the table's latest version is its checkpoint's
            (table / "_delta_log" / f"{at:020d}.crc").unlink(missing_ok=True)
        assert_state(DeltaLog.for_table(str(table)).snapshot, expected)


@settings(max_examples=EXAMPLES, deadline=None)
@given(sequence=sequences(vectors=False))
def test_delta_rs_sees_the_same(sequence: Sequence_) -> None:
    with tempfile.TemporaryDirectory() as directory:
        table = Path(directory) / "table"
        for version, commit in enumerate(sequence.commits):
            write(table, [commit], version)
            if version in sequence.checkpoints:
                DeltaLog.for_table(str(table)).checkpoint()
        last = len(sequence.commits) - 1
        expected = oracle.replay(table, last)
        assert_state(DeltaLog.for_table(str(table)).snapshot, expected)
        theirs = DeltaTable(str(table))
        assert theirs.version() == last
        assert len(readers.files(table)) == len(expected.files)
        listed = pa.table(theirs.get_add_actions(flatten=False)).to_pydict()
        sizes = dict(zip(listed["path"], listed["size_bytes"], strict=True))
        assert {oracle.key({"path": path})[0]: size for path, size in sizes.items()} == {
            path: add["size"] for (path, _vector), add in expected.files.items()
        }
        assert {app: theirs.transaction_version(app) for app in expected.transactions} == expected.transactions
        assert theirs.metadata().configuration == expected.metadata["configuration"]
