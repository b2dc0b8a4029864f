"""What start tells about an identity and a table, and which files a rerun replaces, rule by rule, on logs written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.payloads import CommitResult, TransactionHandle
from airflow_delta.contract.tags import KEEPS_ROWS_TAG
from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaUnsupportedTableFeatureException,
    HandleMismatchException,
    TransactionAlreadyCommittedException,
    TransactionExpiredException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import DeletionVectorDescriptor
from airflow_delta.table.start.begin import begin
from airflow_delta.table.start.replaced_files import files_to_replace
from airflow_delta.table.state.find_commit import STANDING_SUFFIX, UNDONE_SUFFIX, TryChain, committed_earlier, standing_version
from support.actions import SCHEMA, TABLE_ID, add, info, metadata, protocol, remove, txn
from support.tables import commit_path, create_table, write_commit

APP = "app"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_table(tmp_path)
    return tmp_path


def log_of(path: Path) -> DeltaLog:
    return DeltaLog.for_table(str(path))


def start(path: Path, key: str | None = APP, **options: Any) -> TransactionHandle:
    return begin(log_of(path), transaction_key=key, **options)


def monotonic(path: Path, version: int, **options: Any) -> TransactionHandle:
    return begin(log_of(path), app_id=APP, txn_version=version, **options)


def expire(path: Path, *, before: int) -> None:
    log_of(path).checkpoint()
    for version in range(before):
        commit_path(path, version).unlink()


# -- start --------------------------------------------------------------------------------------------------------------------


def test_the_handle_describes_the_table(path: Path) -> None:
    configuration = {"delta.isolationLevel": "WriteSerializable", "delta.appendOnly": "true"}
    write_commit(path, 1, metadata(configuration=configuration, name="n", description="d", partition_columns=["part"]))
    write_commit(path, 2, protocol(1, 7, writer_features=["appendOnly", "invariants"]))
    handle = start(path, transaction_id="t-1", delta_conn_id="lake")
    assert (handle.read_version, handle.txn_version, handle.transaction_id, handle.delta_conn_id) == (2, 0, "t-1", "lake")
    assert (handle.name, handle.description, handle.table_id, handle.schema_string) == ("n", "d", TABLE_ID, SCHEMA)
    assert (handle.configuration, handle.partition_columns) == (configuration, ("part",))
    assert (handle.isolation_level, handle.features) == ("WriteSerializable", ("appendOnly", "invariants"))
    assert handle.timestamp == log_of(path).snapshot.timestamp
    assert handle.staging_path == f"{path}/staged/t-1"
    assert start(path, isolation_level="Serializable").isolation_level == "Serializable"
    assert start(path).transaction_id != start(path).transaction_id


def test_without_a_property_the_level_is_serializable(path: Path) -> None:
    assert start(path).isolation_level == "Serializable"


def test_the_handle_describes_a_new_table(tmp_path: Path) -> None:
    configuration = {"delta.enableDeletionVectors": "true"}
    handle = begin(log_of(tmp_path / "t"), transaction_key=APP, configuration=configuration, name="n", description="d")
    assert (handle.read_version, handle.isolation_level, handle.name, handle.description) == (-1, "Serializable", "n", "d")
    assert "deletionVectors" in handle.features
    other = begin(log_of(tmp_path / "t"), transaction_key=APP, isolation_level="WriteSerializable")
    assert (other.isolation_level, "deletionVectors" in other.features) == ("WriteSerializable", False)


def test_the_features_of_a_new_table_follow_its_schema_too(tmp_path: Path) -> None:
    fields = [{"name": "at", "type": "timestamp_ntz", "nullable": True, "metadata": {}}]
    handle = begin(log_of(tmp_path / "t"), transaction_key=APP, schema=json.dumps({"type": "struct", "fields": fields}))
    assert "timestampNtz" in handle.features


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rerun_policy": "again"}, "rerun_policy must be one of"),
        ({"isolation_level": "None"}, "isolation_level must be one of"),
        ({"transaction_key": " "}, "transaction_key must be"),
        ({"transaction_key": APP, "app_id": APP}, "not both"),
        ({"transaction_key": APP, "txn_version": 1}, "not both"),
        ({"transaction_key": None, "app_id": APP}, "app_id was given without txn_version"),
        ({"transaction_key": None, "txn_version": 1}, "txn_version was given without app_id"),
        ({"transaction_key": None, "app_id": " ", "txn_version": 1}, "app_id must be"),
        ({"transaction_key": None, "app_id": APP, "txn_version": -1}, "txn_version must be"),
        ({"transaction_key": None, "app_id": APP, "txn_version": 2**63}, "txn_version must be"),
        ({"transaction_key": None, "app_id": APP, "txn_version": True}, "txn_version must be"),
    ],
)
def test_what_is_wrong_is_named_with_the_table(path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match=says) as raised:
        begin(log_of(path), **{"transaction_key": APP, **options})
    assert raised.value.table == str(path)


@pytest.mark.parametrize("kind", ["reader", "writer"])
def test_a_feature_that_is_not_known_is_named_with_table_and_version(path: Path, kind: str) -> None:
    features = {"reader_features": ["unheard"]} if kind == "reader" else {}
    write_commit(path, 1, protocol(3 if features else 1, 7, writer_features=["unheard"], **features))
    with pytest.raises(DeltaUnsupportedTableFeatureException, match=str(path)) as raised:
        start(path)
    assert (raised.value.table, raised.value.version) == (str(path), 1)


def test_a_key_of_an_earlier_scheme_is_named_with_the_table(path: Path) -> None:
    write_commit(path, 1, txn("former", 0))
    with pytest.raises(TransactionExpiredException, match=str(path)):
        start(path, former_keys=["former"])


# -- reruns -------------------------------------------------------------------------------------------------------------------


def test_a_key_counts_its_commits(path: Path) -> None:
    for version, number in ((1, 0), (2, 1)):
        write_commit(path, version, txn(APP, number))
    for policy in ("append", "replace"):
        assert start(path, rerun_policy=policy).txn_version == 2
    handle = start(path)
    assert handle.committed is not None
    assert (handle.committed.version, handle.txn_version) == (2, 1)
    with pytest.raises(TransactionAlreadyCommittedException, match="version 2"):
        start(path, rerun_policy="fail")


@pytest.mark.parametrize("number", [0, 2**63 - 1])
def test_the_smallest_and_the_largest_version(path: Path, number: int) -> None:
    assert monotonic(path, number).txn_version == number


def test_a_retry_has_the_version_of_its_own_commit(path: Path) -> None:
    tags = {"airflow.dagId": "d", "airflow.taskId": "t", "airflow.runId": "r", "airflow.mapIndex": "-1", "airflow.tryNumber": "1"}
    write_commit(path, 1, txn(APP, 0))
    write_commit(path, 2, info(tags=tags), txn(APP, 1))
    handle = start(path, rerun_policy="append", tries=TryChain({**tags, "airflow.tryNumber": "2"}))
    assert handle.committed is not None
    assert (handle.committed.version, handle.committed.txn_version, handle.txn_version) == (2, 1, 1)


def test_versions_of_an_application_only_grow(path: Path) -> None:
    write_commit(path, 1, txn(APP, 3))
    write_commit(path, 2, txn(APP, 7))
    assert monotonic(path, 8).committed is None
    for number, version in ((7, 2), (5, 2), (3, 2)):
        handle = monotonic(path, number)
        assert handle.committed is not None
        assert (handle.committed.version, handle.txn_version) == (version, number)
    for policy in ("append", "replace"):
        assert monotonic(path, 7, rerun_policy=policy).txn_version == 7
        with pytest.raises(DeltaIllegalArgumentException, match=f"only grow.*|{policy}") as raised:
            monotonic(path, 6, rerun_policy=policy)
        assert raised.value.table == str(path)
    with pytest.raises(TransactionAlreadyCommittedException):
        monotonic(path, 6, rerun_policy="fail")


def test_the_commit_of_an_application_is_one_that_covers_the_version(path: Path) -> None:
    """Another writer may have put a lower version on top; it does not stand for a higher one."""
    write_commit(path, 1, txn(APP, 7))
    write_commit(path, 2, txn(APP, 7))
    write_commit(path, 3, txn("other", 9))
    assert monotonic(path, 5).committed.version == 2  # type: ignore[union-attr]


def claim(path: Path, version: int, **options: Any) -> TransactionHandle:
    from dataclasses import replace

    handle = monotonic(path, 9)
    result = CommitResult(
        table=str(path), version=version, read_version=0, transaction_id="x", app_id=APP, txn_version=version, operation="WRITE"
    )
    return replace(handle, committed=result, **options)


def test_a_claim_is_looked_up(path: Path) -> None:
    write_commit(path, 1, txn(APP, 4))
    write_commit(path, 2, txn(APP, 6))
    write_commit(path, 3, txn(APP, 5))
    assert committed_earlier(log_of(path), claim(path, 99, txn_version=5)).version == 3
    with pytest.raises(HandleMismatchException, match="only its version 5"):
        committed_earlier(log_of(path), claim(path, 1, txn_version=6))
    with pytest.raises(HandleMismatchException, match="no such key"):
        committed_earlier(log_of(path), claim(path, 1, app_id="none", txn_version=0))
    with pytest.raises(HandleMismatchException, match="version -1"):
        committed_earlier(log_of(path / "none"), claim(path, 1, txn_version=0))
    expire(path, before=4 - 1)
    write_commit(path, 4)
    commit_path(path, 3).unlink()
    found = committed_earlier(log_of(path), claim(path, 99, txn_version=5))
    assert (found.version, found.app_id) != (99, None)
    assert found.table == str(path)


# -- replace ------------------------------------------------------------------------------------------------------------------


def replaced(path: Path, handle: TransactionHandle | None = None) -> list[str]:
    log = log_of(path)
    given = handle if handle is not None else start(path, rerun_policy="replace")
    return sorted(file.path for file in files_to_replace(log, log.update(), given))


def refuses(path: Path, says: str, handle: TransactionHandle | None = None) -> None:
    with pytest.raises(TransactionAlreadyCommittedException, match=says) as raised:
        replaced(path, handle)
    assert (raised.value.table, raised.value.version) == (str(path), log_of(path).snapshot.version)
    assert APP in str(raised.value)


def test_the_files_of_all_commits_of_a_key_are_replaced(path: Path) -> None:
    assert replaced(path) == []
    write_commit(path, 1, add("a"), add("b"), txn(APP, 0))
    write_commit(path, 2, add("other"))
    write_commit(path, 3, add("c"), txn("another", 0))
    write_commit(path, 4, add("d"), txn(APP, 1))
    assert replaced(path) == ["a", "b", "d"]
    assert replaced(path, start(path, rerun_policy="append")) == []


def test_what_the_key_itself_has_removed_is_gone(path: Path) -> None:
    write_commit(path, 1, add("a"), txn(APP, 0))
    write_commit(path, 2, remove("a"), add("b"), txn(APP, 1))
    assert replaced(path) == ["b"]


def test_a_table_whose_first_commit_is_of_the_key(tmp_path: Path) -> None:
    create_table(tmp_path, add("a"), txn(APP, 0))
    assert replaced(tmp_path) == ["a"]


def test_commits_after_the_version_that_is_read_do_not_count(path: Path) -> None:
    write_commit(path, 1, add("a"), txn(APP, 0))
    handle = start(path, rerun_policy="replace")
    log = log_of(path)
    snapshot = log.update()
    write_commit(path, 2, add("b"), txn(APP, 1))
    log.update()
    assert [file.path for file in files_to_replace(log, snapshot, handle)] == ["a"]


def test_what_was_taken_back_is_not_replaced(path: Path) -> None:
    """By a commit that notes the last version of the key that it undoes, and the one that stands then."""
    write_commit(path, 1, add("a"), txn(APP, 0))
    write_commit(path, 2, remove("a"), add("b"), txn(APP, 1))
    write_commit(path, 3, remove("b"), add("a"), txn(f"{APP}{UNDONE_SUFFIX}", 1), txn(f"{APP}{STANDING_SUFFIX}", 0))
    assert replaced(path) == ["a"]
    write_commit(path, 4, remove("a"), txn(f"{APP}{UNDONE_SUFFIX}", 1), txn(f"{APP}{STANDING_SUFFIX}", -1))
    assert replaced(path) == []
    write_commit(path, 5, add("c"), txn(APP, 2))
    assert standing_version(log_of(path).update(), APP, 2) == 2


@pytest.mark.parametrize("stands", [0, -1])
def test_what_was_taken_back_long_ago_is_still_taken_back(path: Path, stands: int) -> None:
    """Notes of it expire as keys do, and count as long as the log has them: the key itself is found there, too."""
    configuration = {"delta.setTransactionRetentionDuration": "interval 1 day"}
    write_commit(path, 1, metadata(configuration=configuration), txn(APP, 0, last_updated=1))
    notes = (txn(f"{APP}{UNDONE_SUFFIX}", 1, last_updated=1), txn(f"{APP}{STANDING_SUFFIX}", stands, last_updated=1))
    write_commit(path, 2, txn(APP, 1, last_updated=1), *notes)
    snapshot = log_of(path).update()
    assert snapshot.set_transactions == {}
    assert standing_version(snapshot, APP, 1) == (None if stands < 0 else 0)
    handle = start(path, possible_since=lambda: 0)
    assert (handle.txn_version, handle.committed and handle.committed.txn_version) == ((2, None) if stands < 0 else (0, 0))


def test_of_an_application_nothing_counts_as_taken_back(path: Path) -> None:
    """Its versions only rise, so none of them stands for another one."""
    write_commit(path, 1, add("two"), txn(APP, 2))
    write_commit(path, 2, add("three"), txn(APP, 3))
    write_commit(path, 3, txn(f"{APP}{UNDONE_SUFFIX}", 3), txn(f"{APP}{STANDING_SUFFIX}", -1))
    assert replaced(path, monotonic(path, 3, rerun_policy="replace")) == ["three"]
    write_commit(path, 4, txn(f"{APP}{UNDONE_SUFFIX}", 3), txn(f"{APP}{STANDING_SUFFIX}", 2))
    assert replaced(path, monotonic(path, 3, rerun_policy="replace")) == ["three"]


def test_of_an_application_only_the_commits_of_the_same_version_are_replaced(path: Path) -> None:
    write_commit(path, 1, add("two"), txn(APP, 2))
    write_commit(path, 2, add("three"), txn(APP, 3))
    write_commit(path, 3, add("three again"), txn(APP, 3))
    assert replaced(path, monotonic(path, 3, rerun_policy="replace")) == ["three", "three again"]
    assert replaced(path, monotonic(path, 4, rerun_policy="replace")) == []
    new = begin(log_of(path), app_id="new", txn_version=1, rerun_policy="replace")
    assert replaced(path, new) == []


def test_an_application_whose_first_commits_are_gone(path: Path) -> None:
    write_commit(path, 1, add("three"), txn(APP, 3))
    write_commit(path, 2, add("three again"), txn(APP, 3))
    write_commit(path, 3)
    handle = monotonic(path, 3, rerun_policy="replace")
    assert replaced(path, handle) == ["three", "three again"]
    expire(path, before=3)
    refuses(path, "the log no longer holds", handle)


def test_a_key_whose_first_commit_is_gone_is_refused(path: Path) -> None:
    write_commit(path, 1, add("a"), txn(APP, 0))
    write_commit(path, 2, add("b"), txn(APP, 1))
    expire(path, before=2)
    refuses(path, "the log no longer holds")


def test_files_that_others_have_removed_are_refused(path: Path) -> None:
    write_commit(path, 1, add("a"), add("b"), txn(APP, 0))
    write_commit(path, 2, remove("a"))
    refuses(path, r"removed 1 of its 2 files \(such as a, added in version 1\)")


def test_files_in_which_others_have_deleted_rows_are_refused(path: Path) -> None:
    vector = DeletionVectorDescriptor(storage_type="i", path_or_inline_dv="abc", size_in_bytes=3, cardinality=1)
    write_commit(path, 1, protocol(3, 7, reader_features=["deletionVectors"], writer_features=["deletionVectors"]))
    write_commit(path, 2, add("a", stats='{"numRecords":3}'), txn(APP, 0))
    write_commit(path, 3, remove("a"), add("a", stats='{"numRecords":3}', deletion_vector=vector))
    refuses(path, "rewritten or removed 1 of its 1 files")


KEEPS = {
    "the tag": info(tags={KEEPS_ROWS_TAG: "true"}),
    "MERGE": info("MERGE"),
    "DELETE": info("DELETE"),
    "UPDATE": info("UPDATE"),
    "OPTIMIZE": info("OPTIMIZE"),
    "REORG": info("REORG"),
    "copied rows": info(operation_metrics={"numCopiedRows": "3"}),
}


@pytest.mark.parametrize("kind", KEEPS)
def test_files_with_rows_that_were_there_before_are_refused(path: Path, kind: str) -> None:
    write_commit(path, 1, add("x"))
    write_commit(path, 2, KEEPS[kind], remove("x"), add("a"), txn(APP, 0))
    refuses(path, "the files that version 2 added also hold rows that were there before")


def test_rearranged_rows_were_there_before(path: Path) -> None:
    write_commit(path, 1, add("a", data_change=False), add("b"), txn(APP, 0))
    refuses(path, "rows that were there before")


@pytest.mark.parametrize(
    "commit",
    [
        info(tags={KEEPS_ROWS_TAG: "false"}, operation_metrics={"numCopiedRows": "0"}),
        info(operation_metrics={}),
        info("WRITE", tags={"x": "true"}),
    ],
)
def test_an_overwrite_keeps_no_rows(path: Path, commit: Any) -> None:
    write_commit(path, 1, add("x"))
    write_commit(path, 2, commit, remove("x"), add("a"), txn(APP, 0))
    assert replaced(path) == ["a"]


def test_a_delete_that_adds_nothing_keeps_nothing_of_its_own(path: Path) -> None:
    write_commit(path, 1, add("x"))
    write_commit(path, 2, info("DELETE"), remove("x"), txn(APP, 0))
    assert replaced(path) == []


def test_a_merge_that_removes_nothing_has_only_new_rows(path: Path) -> None:
    write_commit(path, 1, info("MERGE"), add("a"), txn(APP, 0))
    assert replaced(path) == ["a"]


def test_a_commit_without_commit_info(path: Path) -> None:
    write_commit(path, 1, add("a"), txn(APP, 0))
    lines = [line for line in commit_path(path, 1).read_text().splitlines() if "commitInfo" not in line]
    commit_path(path, 1).write_text("\n".join(lines) + "\n")
    assert replaced(path) == ["a"]
