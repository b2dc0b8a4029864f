"""A transaction from its start to its commit: rules 1.1, 1.3, 1.4, 1.6 and 1.11 of Delta's engine.

What each way of reading records (1.2) is the table of ``transaction/reads/test_read_set.py``; the active transaction of a thread
is ``transaction/commit/test_active.py``; operations and their parameters (6) are ``transaction/operations/test_operation.py``.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import (
    AppendOnlyException,
    DeltaAnalysisException,
    DeltaAssertionError,
    DeltaDuplicateActionsException,
    DeltaDuplicateDomainException,
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaUnsupportedTableFeatureException,
    ProtocolDowngradeException,
    RowIdAssignmentWithoutStatsException,
)
from airflow_delta.transaction import CommitPolicy, Operation
from conformance.harness import (
    MANUAL,
    Raises,
    Row,
    Step,
    action,
    commit,
    commit_large,
    committed,
    created,
    delta,
    info,
    info_has,
    kinds,
    names,
    row_id,
    snapshot,
    started,
    then,
    with_properties,
)
from support.actions import add, cdc, column, domain, listed, protocol, remove, schema, txn, vector
from support.table import Table, metadata

PART = ("part",)
LOOSE = '{"numRecords":5,"tightBounds":false}'
PLAIN = protocol()
OLDER = protocol(1, 1)
UNKNOWN = listed((), "fromTheFuture")
CLOCK = 1_712_345_678_901
TRACKED = {"enableRowTracking": "true"}


def two_txn_ids(table: Table) -> bool:
    ids = [table.log().start_transaction().txn_id for _ in range(2)]
    return ids[0] != ids[1] and all(str(uuid.UUID(one)) == one for one in ids)


def at(version: int) -> Step:
    def run(table: Table) -> int:
        log = table.log()
        return log.start_transaction(log.snapshot_at(version)).read_version

    return run


START = [
    Row("1.1", "a table that is not there is read as version -1", [], started(lambda t: t.read_version), -1),
    Row("1.1", "the latest version is read", [created(), committed(add("a"))], started(lambda t: t.read_version), 1),
    Row("1.1", "a given snapshot is read", [created(), committed(add("a"))], at(0), 0),
    Row("1.1", "a new log is not looked at for what others committed before", [created()], then(committed(), at(1)), 1),
    Row("1.1", "the first version tried is the one after", [created(), committed(add("a"))], commit(add("b")), 2),
    Row("1.1", "a table's first version is 0", [], commit(metadata()), 0),
    Row("1.1", "transactions have ids of their own", [created()], two_txn_ids, True),
    Row(
        "1.1",
        "the hooks that every transaction has",
        [],
        started(lambda t: [type(h).__name__ for h in t.post_commit_hooks]),
        ["ChecksumHook", "CheckpointHook"],
    ),
    Row("1.2", "an application that never committed", [created()], started(lambda t: t.txn_version("app")), -1),
    Row(
        "1.2",
        "the last version of an application",
        [created(), committed(txn("app", 7))],
        started(lambda t: t.txn_version("app")),
        7,
    ),
]


def blind(*actions: Any, reads: Any = None) -> Step:
    return then(commit(*actions, reads=reads), info(2, "isBlindAppend"))


BLIND_APPEND = [
    Row("1.3 step 12", "files are added and nothing is read", [], blind(add("n", part=1)), True),
    Row("1.3 step 12", "nothing is done and nothing is read", [], blind(), True),
    Row(
        "1.3 step 12",
        "only an application id is looked up",
        [],
        blind(add("n", part=1), reads=lambda t: t.txn_version("x")),
        True,
    ),
    Row("1.3 step 12", "only metadata change", [], blind(metadata(PART, description="d")), True),
    Row("1.3 step 12", "files were read", [], blind(add("n", part=1), reads=lambda t: t.filter_files("part = 1")), False),
    Row(
        "1.3 step 12",
        "a predicate matched nothing",
        [],
        blind(add("n", part=1), reads=lambda t: t.filter_files("part = 9")),
        False,
    ),
    Row("1.3 step 12", "the whole table was read", [], blind(add("n", part=1), reads=lambda t: t.read_whole_table()), False),
    Row("1.3 step 12", "a file is noted as read", [], blind(add("n", part=1), reads=lambda t: t.track_files_read(["a"])), False),
    Row("1.3 step 12", "a file is removed", [], blind(remove("a", part=1)), False),
    Row("1.3 step 12", "a change data file is added", [], blind(cdc()), False),
]


def twice(table: Table) -> list[int]:
    transaction = table.log().start_transaction()
    transaction.commit([add("a")], MANUAL)
    with pytest.raises(DeltaAssertionError, match=r"Transaction already committed\."):
        transaction.commit([add("b")], MANUAL)
    return table.versions()


def metadata_twice(table: Table) -> None:
    transaction = table.log().start_transaction()
    transaction.update_metadata(metadata(description="one"))
    transaction.commit([metadata(description="two")], MANUAL)


def protocol_twice(table: Table) -> None:
    transaction = table.log().start_transaction()
    transaction.update_metadata(metadata(configuration=delta(enableChangeDataFeed="true")))
    transaction.commit([listed((), "changeDataFeed")], MANUAL)


def own_set_transaction(*versions: int) -> Any:
    def before(transaction: Any) -> None:
        for version in versions:
            transaction.update_set_transaction(txn("app", version))

    return before


CDF_AND_MAPPING = metadata(configuration=delta(columnMapping__mode="name", enableChangeDataFeed="true"))

PREPARE = [
    Row("1.4 row 1", "a transaction is committed once", [created()], twice, [0, 1]),
    Row(
        "1.4 row 2",
        "metadata change once",
        [created()],
        metadata_twice,
        Raises(DeltaAssertionError, "Cannot change the metadata more than once in a transaction."),
    ),
    Row(
        "1.4 row 2",
        "metadata change once among the actions",
        [created()],
        commit(metadata(description="1"), metadata(description="2")),
        Raises(DeltaAssertionError, "Cannot change the metadata more than once in a transaction."),
    ),
    Row(
        "1.4 row 4",
        "the protocol changes once",
        [created()],
        commit(PLAIN, PLAIN),
        Raises(DeltaAssertionError, "Cannot change the protocol more than once in a transaction."),
    ),
    Row(
        "1.4 row 4",
        "what metadata bring along counts",
        [created()],
        protocol_twice,
        Raises(DeltaAssertionError, "Cannot change the protocol more than once in a transaction."),
    ),
    Row(
        "1.4 row 5",
        "a protocol that this client cannot write",
        [created()],
        commit(UNKNOWN),
        Raises(DeltaUnsupportedTableFeatureException, "fromTheFuture"),
    ),
    Row(
        "1.4 row 7",
        "metadata, protocol, then what the caller gave, in its order",
        [created()],
        then(commit(txn("x", 1), add("a"), listed((), "changeDataFeed"), remove("b"), metadata(description="d")), kinds(1)),
        ["commitInfo", "metaData", "protocol", "txn", "add", "remove"],
    ),
    Row(
        "1.4 row 8",
        "column mapping that comes with files while the change data feed is on",
        [],
        commit(add("a"), reads=lambda t: t.update_metadata_for_new_table(CDF_AND_MAPPING)),
        Raises(DeltaIllegalStateException, "DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_OPERATION"),
    ),
    Row(
        "1.4 row 9",
        "a first commit makes the log's directory",
        [],
        then(commit(metadata()), lambda t: (t.path / "_delta_log").is_dir()),
        True,
    ),
    Row(
        "1.4 row 10",
        "a first commit gets a protocol in front",
        [],
        then(commit(metadata(), add("a")), kinds(0)),
        ["commitInfo", "protocol", "metaData", "add"],
    ),
    Row(
        "1.4 row 11",
        "a first commit without metadata",
        [],
        commit(add("a")),
        Raises(DeltaIllegalStateException, "DELTA_METADATA_ABSENT"),
    ),
    Row(
        "1.4 row 12",
        "an operation that may not change the partitioning",
        [created(PART)],
        commit(metadata(("day",)), operation=Operation.update()),
        Raises(DeltaAnalysisException, "DELTA_UNSUPPORTED_PARTITION_COLUMN_CHANGE"),
    ),
    Row(
        "1.4 row 12",
        "an overwrite with its schema may",
        [created(PART)],
        commit(metadata(("day",)), operation=Operation.write("Overwrite", ["day"], can_overwrite_schema=True)),
        1,
    ),
    Row(
        "1.4 row 13",
        "versions of a protocol are above zero",
        [created()],
        commit(protocol(0, 2)),
        Raises(DeltaError),
    ),
    Row("1.4 row 13", "a protocol that loses features", [created()], commit(OLDER), Raises(ProtocolDowngradeException)),
    Row(
        "1.4 row 14",
        "a partition column is missing",
        [created(PART)],
        commit(add("a")),
        Raises(DeltaIllegalStateException, "DELTA_INVALID_PARTITIONING_SCHEMA"),
    ),
    Row(
        "1.4 row 14",
        "a partition column too many",
        [created(PART)],
        commit(add("a", part=1, more=2)),
        Raises(DeltaIllegalStateException, "DELTA_INVALID_PARTITIONING_SCHEMA"),
    ),
    Row("1.4 row 14", "a partition value may be null", [created(PART)], commit(add("a", part=None)), 1),
    Row(
        "1.4 row 16",
        "row ids need the number of rows",
        [with_properties(**TRACKED)],
        commit(add("a")),
        Raises(RowIdAssignmentWithoutStatsException, "DELTA_ROW_ID_ASSIGNMENT_WITHOUT_STATS"),
    ),
    Row(
        "1.4 row 16",
        "files get ids from 0 on",
        [with_properties(**TRACKED)],
        then(
            commit(add("a", stats=LOOSE), add("b", stats=LOOSE)),
            lambda t: [line["add"]["baseRowId"] for line in t.lines(1) if "add" in line],
        ),
        [0, 5],
    ),
    Row(
        "1.4 row 16",
        "the high-water mark is the last action",
        [with_properties(**TRACKED)],
        then(commit(add("a", stats=LOOSE)), lambda t: t.lines(1)[-1]["domainMetadata"]),
        {"domain": "delta.rowTracking", "configuration": '{"rowIdHighWaterMark":4}', "removed": False},
    ),
    Row(
        "1.4 row 16",
        "the high-water mark is nobody else's",
        [with_properties(**TRACKED)],
        commit(domain("delta.rowTracking", '{"rowIdHighWaterMark":9}')),
        Raises(DeltaIllegalStateException),
    ),
    Row(
        "1.4 row 17",
        "the commit's version stands with its files",
        [with_properties(**TRACKED)],
        then(commit(add("a", stats=LOOSE)), lambda t: action(1, "add")(t)["defaultRowCommitVersion"]),
        1,
    ),
    Row(
        "1.4 row 18",
        "removed data of an append-only table",
        [with_properties(appendOnly="true")],
        commit(remove("a")),
        Raises(AppendOnlyException, "DELTA_CANNOT_MODIFY_APPEND_ONLY"),
    ),
    Row(
        "1.4 row 18",
        "moved data of an append-only table",
        [with_properties(appendOnly="true")],
        commit(remove("a", data_change=False), add("b", data_change=False), operation=Operation.optimize()),
        1,
    ),
    Row(
        "1.4 row 19",
        "a deletion vector where the table has none",
        [created()],
        commit(add("a", stats=LOOSE, deletion_vector=vector())),
        Raises(DeltaIllegalStateException, "DELTA_ADDING_DELETION_VECTORS_DISALLOWED"),
    ),
    Row(
        "1.4 row 19",
        "a deletion vector without the number of rows",
        [with_properties(enableDeletionVectors="true")],
        commit(add("a", stats="{}", deletion_vector=vector())),
        Raises(DeltaIllegalStateException, "DELTA_DELETION_VECTOR_MISSING_NUM_RECORDS"),
    ),
    Row(
        "1.4 row 19",
        "a deletion vector with tight bounds",
        [with_properties(enableDeletionVectors="true")],
        commit(add("a", stats='{"numRecords":5}', deletion_vector=vector()), operation=Operation.delete()),
        Raises(DeltaIllegalStateException, "DELTA_ADDING_DELETION_VECTORS_WITH_TIGHT_BOUNDS_DISALLOWED"),
    ),
    Row(
        "1.4 row 19",
        "operations that do not ask for loose bounds",
        [with_properties(enableDeletionVectors="true")],
        commit(add("a", stats='{"numRecords":5}', deletion_vector=vector()), operation=Operation.compute_stats()),
        1,
    ),
    Row(
        "1.4 row 21",
        "a default value where the table has no such feature",
        [created()],
        commit(metadata(schema_string=schema(column("value", CURRENT_DEFAULT="7")))),
        Raises(DeltaUnsupportedTableFeatureException, "WRONG_COLUMN_DEFAULTS_FOR_DELTA_FEATURE_NOT_ENABLED"),
    ),
]

FATAL = CommitPolicy(consistent_data_change="fatal", fail_on_empty_file=True, fail_on_null_partition=True)
NOT_NULL = schema(column("value"), column("part", nullable=False))


def strict(*actions: Any, policy: CommitPolicy = FATAL) -> Step:
    return started(lambda t: t.commit(actions, MANUAL), policy=policy)


ORDER_OF_WORK = [
    Row(
        "1.3 step 2",
        "columns of the change data feed",
        [],
        commit(metadata(schema_string=schema(column("_change_type")), configuration=delta(enableChangeDataFeed="true"))),
        Raises(DeltaIllegalStateException, "_change_type"),
    ),
    Row(
        "1.3 step 3",
        "the caller's transactions first, then the transaction's own",
        [created()],
        then(commit(txn("given", 1), reads=own_set_transaction(2)), lambda t: [line["txn"]["appId"] for line in t.lines(1)[1:]]),
        ["given", "app"],
    ),
    Row(
        "1.3 step 3",
        "the same version twice is one",
        [created()],
        then(commit(txn("app", 2), reads=own_set_transaction(2, 2)), kinds(1)),
        ["commitInfo", "txn"],
    ),
    Row(
        "1.3 step 3",
        "two versions of one application",
        [created()],
        commit(txn("app", 2), reads=own_set_transaction(3)),
        Raises(DeltaIllegalArgumentException, "'app'"),
    ),
    Row("1.3 step 7", "an empty file", [created()], commit(add("a", size=0)), 1),
    Row(
        "1.3 step 7",
        "an empty file that is not let through",
        [created()],
        strict(add("a", size=0)),
        Raises(DeltaIllegalStateException),
    ),
    Row(
        "1.3 step 7",
        "null in a NOT NULL partition column",
        [created(PART, schema_string=NOT_NULL)],
        commit(add("a", part=None)),
        1,
    ),
    Row(
        "1.3 step 7",
        "null in a NOT NULL partition column that is not let through",
        [created(PART, schema_string=NOT_NULL)],
        strict(add("a", part=None)),
        Raises(DeltaIllegalStateException),
    ),
    Row(
        "1.3 step 8",
        "a file is added twice",
        [created()],
        commit(add("a"), add("a")),
        Raises(DeltaDuplicateActionsException, "DELTA_DUPLICATE_ACTIONS_FOUND"),
    ),
    Row(
        "1.3 step 8",
        "a file is removed twice",
        [created()],
        commit(remove("a"), remove("a")),
        Raises(DeltaDuplicateActionsException, "DELTA_DUPLICATE_ACTIONS_FOUND"),
    ),
    Row(
        "1.3 step 8",
        "a file is added and removed",
        [created()],
        commit(add("a"), remove("a")),
        Raises(DeltaDuplicateActionsException, "DELTA_DUPLICATE_ACTIONS_FOUND"),
    ),
    Row(
        "1.3 step 8",
        "a file changes its deletion vector",
        [with_properties(enableDeletionVectors="true")],
        commit(remove("a"), add("a", stats=LOOSE, deletion_vector=vector())),
        1,
    ),
    Row(
        "1.3 step 9",
        "some files change data, some do not",
        [created()],
        commit(add("a"), add("c", data_change=False), remove("b", data_change=False)),
        1,
    ),
    Row(
        "1.3 step 9",
        "those that change no data cannot hold the same rows (Delta: only logged)",
        [created()],
        commit(add("a"), remove("b", data_change=False)),
        Raises(DeltaIllegalStateException, "do not hold the same rows"),
    ),
    Row(
        "1.3 step 9",
        "some files change data, some do not, and that is fatal",
        [created()],
        strict(add("a"), remove("b", data_change=False)),
        Raises(DeltaIllegalStateException),
    ),
    Row("1.3 step 9", "change data files do not count", [created()], strict(add("a"), cdc()), 1),
    Row(
        "1.3 step 11",
        "a domain twice",
        [with_properties(feature__domainMetadata="supported")],
        commit(domain("d"), domain("d")),
        Raises(DeltaDuplicateDomainException, "DELTA_DUPLICATE_DOMAIN_METADATA_INTERNAL_ERROR"),
    ),
    Row(
        "1.3 step 11",
        "a domain without the feature",
        [created()],
        commit(domain("d")),
        Raises(DeltaUnsupportedTableFeatureException, "DELTA_DOMAIN_METADATA_NOT_SUPPORTED"),
    ),
    Row("1.3 step 17", "nothing to commit", [created()], started(lambda t: t.commit_if_needed([], Operation.delete())), None),
    Row("1.3 step 17", "nothing to commit, and commit", [created()], started(lambda t: t.commit([], Operation.delete())), 1),
    Row(
        "1.3 step 17",
        "nothing to commit, and empty commits are recorded",
        [created()],
        started(lambda t: t.commit_if_needed([], Operation.delete()), policy=CommitPolicy(skip_recording_empty_commits=False)),
        1,
    ),
    Row(
        "1.3 step 17",
        "nothing to commit at WriteSerializable",
        [created()],
        started(lambda t: t.commit_if_needed([], Operation.delete()), isolation_level="WriteSerializable"),
        1,
    ),
    Row(
        "1.3 step 17",
        "a transaction id alone is something",
        [created()],
        started(lambda t: t.commit_if_needed([txn("app", 1)], Operation.delete())),
        1,
    ),
]

FULL = Operation.write("Append", ["part"], predicate="part = 1", metrics={"numFiles": 1}, user_metadata="why")
DECLARED = [
    *("inCommitTimestamp", "timestamp", "operation", "operationParameters", "readVersion", "isolationLevel", "isBlindAppend"),
    *("dataChange", "operationMetrics", "userMetadata", "tags", "engineInfo", "txnId"),
]
TIMED = with_properties(enableInCommitTimestamps="true")

COMMIT_INFO = [
    Row("1.6", "it is the first line", [created()], then(commit(add("a")), kinds(1)), ["commitInfo", "add"]),
    Row(
        "1.6",
        "fields stand in the order in which Delta declares them",
        [TIMED],
        then(commit(add("a"), operation=FULL, tags={"k": "v"}), lambda t: list(t.info(1))),
        DECLARED,
    ),
    Row(
        "1.6",
        "what open-source Delta leaves out",
        [created()],
        then(commit(add("a")), info_has(1, "version", "userId", "userName", "job", "notebook", "clusterId")),
        [],
    ),
    Row("1.6", "inCommitTimestamp only where it is enabled", [created()], info_has(0, "inCommitTimestamp"), []),
    Row(
        "1.6",
        "timestamp is the clock's",
        [created()],
        then(started(lambda t: t.commit([], MANUAL), clock=lambda: CLOCK), info(1, "timestamp")),
        CLOCK,
    ),
    Row("1.6", "readVersion is left out of a first commit", [created()], info_has(0, "readVersion"), []),
    Row("1.6", "readVersion", [created(), committed(add("a"))], info(1, "readVersion"), 0),
    Row("1.6", "dataChange", [created()], then(commit(add("a")), info(1, "dataChange")), True),
    Row("1.6", "dataChange of moved files", [created()], then(commit(add("a", data_change=False)), info(1, "dataChange")), False),
    Row("1.6", "no metrics are an empty map", [created()], info(0, "operationMetrics"), {}),
    Row("1.6", "metrics are text", [created()], then(commit(operation=FULL), info(1, "operationMetrics")), {"numFiles": "1"}),
    Row(
        "1.6",
        "metrics that the operation has not",
        [created()],
        then(commit(operation=Operation.delete(metrics={"numOutputRows": 1})), info(1, "operationMetrics")),
        {},
    ),
    Row(
        "1.6",
        "metrics switched off",
        [created()],
        then(
            started(lambda t: t.commit([], MANUAL), policy=CommitPolicy(history_metrics=False)), info_has(1, "operationMetrics")
        ),
        [],
    ),
    Row(
        "1.6",
        "the operation's user metadata",
        [created()],
        then(started(lambda t: t.commit([], FULL), policy=CommitPolicy(user_metadata="session")), info(1, "userMetadata")),
        "why",
    ),
    Row(
        "1.6",
        "the session's user metadata",
        [created()],
        then(started(lambda t: t.commit([], MANUAL), policy=CommitPolicy(user_metadata="session")), info(1, "userMetadata")),
        "session",
    ),
    Row("1.6", "no tags, no field", [created()], info_has(0, "tags"), []),
    Row("1.6", "tags", [created()], then(commit(tags={"k": "v"}), info(1, "tags")), {"k": "v"}),
    Row(
        "1.6",
        "txnId",
        [created()],
        then(started(lambda t: t.commit([], MANUAL), txn_id="11111111-0000-0000-0000-000000000000"), info(1, "txnId")),
        "11111111-0000-0000-0000-000000000000",
    ),
    Row(
        "1.6",
        "parameters that are documents are encoded twice",
        [created()],
        then(commit(operation=Operation.delete(["a = 1"])), info(1, "operationParameters")),
        {"predicate": '["a = 1"]'},
    ),
    Row(
        "1.6",
        "the predicate of a write is text",
        [created()],
        then(commit(operation=FULL), info(1, "operationParameters")),
        {"mode": "Append", "partitionBy": '["part"]', "predicate": "part = 1"},
    ),
    Row(
        "1.6",
        "numbers and null as they are",
        [created()],
        then(commit(operation=Operation.restore(version=3)), info(1, "operationParameters")),
        {"version": 3, "timestamp": None},
    ),
    Row("1.6", "nothing at all", [created()], then(commit(operation=Operation.truncate()), info(1, "operationParameters")), {}),
]

RESTORE = Operation.restore(version=0)

LARGE = [
    Row(
        "1.11",
        "metadata first although nothing changes, protocol last",
        [created()],
        then(commit_large(add("a"), listed((), "changeDataFeed"), txn("x", 1), operation=RESTORE), kinds(1)),
        ["commitInfo", "metaData", "add", "txn", "protocol"],
    ),
    Row(
        "1.11",
        "metadata even for nothing",
        [created()],
        then(commit_large(operation=RESTORE), kinds(1)),
        ["commitInfo", "metaData"],
    ),
    Row(
        "1.11",
        "level, blindness and the version that was read",
        [created()],
        then(commit_large(add("a"), operation=RESTORE), info(1, "isolationLevel", "isBlindAppend", "readVersion")),
        ["Serializable", False, 0],
    ),
    Row(
        "1.11",
        "a new table reads version -1 and says so",
        [],
        then(commit_large(metadata(), add("a"), operation=Operation.clone("s", 1)), info(0, "readVersion")),
        -1,
    ),
    Row(
        "1.11",
        "dataChange is left out",
        [created()],
        then(commit_large(add("a"), operation=RESTORE), info_has(1, "dataChange")),
        [],
    ),
    Row("1.11", "no check for duplicates", [created()], commit_large(add("a"), add("a"), operation=RESTORE), 1),
    Row(
        "1.11", "no check for append-only", [with_properties(appendOnly="true")], commit_large(remove("a"), operation=RESTORE), 1
    ),
    Row(
        "1.11",
        "deletion vectors are checked",
        [created()],
        commit_large(add("a", stats=LOOSE, deletion_vector=vector()), operation=RESTORE),
        Raises(DeltaIllegalStateException, "DELTA_ADDING_DELETION_VECTORS_DISALLOWED"),
    ),
    Row(
        "1.11",
        "row ids are given",
        [with_properties(**TRACKED)],
        then(commit_large(add("a", stats=LOOSE), operation=RESTORE), lambda t: t.lines(1)[2]["add"]["baseRowId"]),
        0,
    ),
    Row(
        "1.11",
        "a checkpoint after every one",
        [created()],
        then(commit_large(operation=RESTORE), names("*.checkpoint.parquet")),
        ["00000000000000000001.checkpoint.parquet"],
    ),
]

# 7.3: what Delta's OptimisticTransactionSuite checks beside its races.
OTHERS = [
    Row(
        "7.3",
        "the table's paths are the log's",
        [created()],
        lambda t: t.log().start_transaction().log.uri.endswith("table"),
        True,
    ),
    Row(
        "7.3",
        "partition columns can be set in the first commit",
        [],
        then(commit(metadata(PART), operation=Operation.write()), snapshot(lambda s: s.metadata.partition_columns)),
        ["part"],
    ),
    Row("7.3", "the level is written", [created()], then(commit(add("a")), info(1, "isolationLevel")), "Serializable"),
    Row(
        "7.3",
        "UPDATE may change the partitioning where the check is off",
        [created(PART)],
        started(lambda t: t.commit([metadata(("day",))], Operation.update()), policy=CommitPolicy(partition_column_change="off")),
        1,
    ),
    Row(
        "7.3",
        "UPDATE may change the partitioning where the check only logs",
        [created(PART)],
        started(lambda t: t.commit([metadata(("day",))], Operation.update()), policy=CommitPolicy(partition_column_change="log")),
        1,
    ),
    Row(
        "7.3",
        "an append may not",
        [created(PART)],
        commit(metadata(("day",)), operation=Operation.write()),
        Raises(DeltaAnalysisException, "DELTA_UNSUPPORTED_PARTITION_COLUMN_CHANGE"),
    ),
    Row(
        "7.3",
        "an overwrite without its schema may not",
        [created(PART)],
        commit(metadata(("day",)), operation=Operation.write("Overwrite")),
        Raises(DeltaAnalysisException, "DELTA_UNSUPPORTED_PARTITION_COLUMN_CHANGE"),
    ),
    Row("7.3", "a clone may", [created(PART)], commit(metadata(("day",)), operation=Operation.clone("s", 1)), 1),
    Row(
        "7.3",
        "RENAME COLUMN may",
        [created(PART)],
        commit(metadata(("day",)), operation=Operation.rename_column("part", "day")),
        1,
    ),
    Row(
        "7.3",
        "consistent dataChange holds for commitLarge too",
        [created()],
        started(lambda t: t.commit_large([add("a"), remove("b", data_change=False)], Operation.clone("s", 1)), policy=FATAL),
        Raises(DeltaIllegalStateException),
    ),
]


@pytest.mark.parametrize("row", [*START, *PREPARE, *ORDER_OF_WORK, *COMMIT_INFO, *LARGE, *OTHERS], ids=row_id)
def test_rule(row: Row, tmp_path: Path) -> None:
    row.run(tmp_path)


@pytest.mark.parametrize("row", BLIND_APPEND, ids=row_id)
def test_blind_append(row: Row, tmp_path: Path) -> None:
    given = [created(PART), committed(add("a", part=1))]
    Row(row.rule, row.name, given, row.when, row.expected).run(tmp_path)


def test_an_append_does_not_load_the_files_of_the_table(tmp_path: Path) -> None:
    """7.3: no state is computed for an append; here no list of files is read."""
    table = Table(tmp_path / "table")
    table.create()
    table.commit(add("a"))
    log = table.log()
    transaction = log.start_transaction()
    (table.path / "_delta_log" / f"{1:020d}.crc").unlink()
    assert transaction.commit([add("b")], Operation.write()) == 2
    assert "tail_files" not in vars(transaction.snapshot)
