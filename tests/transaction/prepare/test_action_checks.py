"""Checks of the actions of a commit among themselves, and the switches of the policy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from airflow_delta.exceptions import (
    AppendOnlyException,
    DeltaAnalysisException,
    DeltaDuplicateActionsException,
    DeltaDuplicateDomainException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaUnsupportedTableFeatureException,
)
from airflow_delta.log.actions.actions import AddCDCFile, AddFile, DomainMetadata, Protocol, SetTransaction
from airflow_delta.transaction import CommitPolicy, Operation, events
from support.actions import add, remove, txn, vector
from support.table import Table, metadata

MANUAL = Operation.manual_update()
Recorded = list[tuple[str, str, Mapping[str, Any]]]


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    seen: Recorded = []

    def listen(name: str, uri: str, data: Mapping[str, Any]) -> None:
        seen.append((name, uri, data))

    events.add_listener(listen)
    yield seen
    events.remove_listener(listen)


def named(recorded: Recorded, name: str) -> list[Mapping[str, Any]]:
    return [data for event, _uri, data in recorded if event == name]


@pytest.mark.parametrize("large", [False, True])
def test_empty_files_are_recorded_at_most_twice_a_commit(table: Table, recorded: Recorded, large: bool) -> None:
    table.create()
    transaction = table.log().start_transaction()
    commit = transaction.commit_large if large else transaction.commit
    commit([add("a", size=0), add("b", size=0), add("c"), add("d", size=0)], MANUAL)
    assert [data["path"] for data in named(recorded, "delta.commit.emptyAddFile")] == ["a", "b"]
    strict = table.log().start_transaction(policy=CommitPolicy(fail_on_empty_file=True))
    with pytest.raises(DeltaIllegalStateException, match=r"file e, .* has 0 bytes"):
        (strict.commit_large if large else strict.commit)([add("e", size=0)], MANUAL)
    assert table.versions() == [0, 1]


@pytest.mark.parametrize("mapping", ["none", "name"])
@pytest.mark.parametrize("large", [False, True])
def test_null_in_a_partition_column_that_takes_none(table: Table, recorded: Recorded, mapping: str, large: bool) -> None:
    fields = [
        {"name": name, "type": "integer", "nullable": name != "part", "metadata": {}} for name in ("value", "part", "other")
    ]
    mode = {"delta.columnMapping.mode": mapping} if mapping != "none" else {}
    text = json.dumps({"type": "struct", "fields": fields})
    log = table.create(("part", "other"), schema_string=text, configuration=mode)
    physical = {field.name: field.physical_name for field in log.update().schema.fields}
    assert (physical["part"] == "part") is (mapping == "none")

    def file(path: str, part: str | None) -> AddFile:
        return add(path, partition_values={physical["part"]: part, physical["other"]: None})

    transaction = log.start_transaction()
    files = [file("a", None), file("b", "1"), file("c", None), file("d", None)]
    (transaction.commit_large if large else transaction.commit)(files, MANUAL)
    assert [(data["path"], data["column"]) for data in named(recorded, "delta.commit.nullPartitionValue")] == [
        ("a", "part"),
        ("c", "part"),
    ]
    strict = table.log().start_transaction(policy=CommitPolicy(fail_on_null_partition=True))
    with pytest.raises(DeltaIllegalStateException, match="partition where part is null"):
        (strict.commit_large if large else strict.commit)([file("e", None)], MANUAL)


def test_partition_values_have_physical_names(table: Table) -> None:
    table.create(("part",), configuration={"delta.columnMapping.mode": "name"})
    with pytest.raises(DeltaIllegalStateException, match="DELTA_INVALID_PARTITIONING_SCHEMA"):
        table.commit(add("a", part=1))
    (field,) = [field for field in table.log().update().schema.fields if field.name == "part"]
    table.commit(add("a", partition_values={field.physical_name: "1"}))
    assert table.live() == {"a"}


MIXED = [add("a", data_change=False), remove("b", data_change=False), add("c")]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("mode", "events_recorded", "fails"), [("off", 0, False), ("log", 1, False), ("fatal", 1, True)])
def test_consistent_data_change(
    table: Table, recorded: Recorded, mode: Any, events_recorded: int, fails: bool, large: bool
) -> None:
    table.create()
    table.commit(add("b"))
    recorded.clear()
    transaction = table.log().start_transaction(policy=CommitPolicy(consistent_data_change=mode))
    commit = transaction.commit_large if large else transaction.commit
    if fails:
        with pytest.raises(DeltaIllegalStateException, match=r"Some files of .* are marked dataChange=true"):
            commit(MIXED, Operation.delete())
    else:
        commit(MIXED, Operation.delete())
    assert len(named(recorded, "delta.commit.inconsistentDataChange")) == events_recorded


def test_change_data_files_do_not_count_as_data_change(table: Table, recorded: Recorded) -> None:
    table.create()
    policy = CommitPolicy(consistent_data_change="fatal")
    cdc = AddCDCFile(path="_change_data/c", partition_values={}, size=1)
    table.log().start_transaction(policy=policy).commit([add("a"), cdc], Operation.update())
    assert not named(recorded, "delta.commit.inconsistentDataChange")


def test_duplicate_action_check_can_be_switched_off(table: Table) -> None:
    table.create()
    with pytest.raises(DeltaDuplicateActionsException, match="DELTA_DUPLICATE_ACTIONS_FOUND"):
        table.commit(add("a"), add("a"))
    table.log().start_transaction(policy=CommitPolicy(duplicate_action_check=False)).commit([add("a"), add("a")], MANUAL)
    assert table.live() == {"a"}


def test_domains_have_errors_of_their_own(table: Table) -> None:
    table.create()
    domain = DomainMetadata(domain="d", configuration="{}", removed=False)
    with pytest.raises(DeltaUnsupportedTableFeatureException, match="DELTA_DOMAIN_METADATA_NOT_SUPPORTED"):
        table.commit(domain)
    with pytest.raises(DeltaDuplicateDomainException, match="DELTA_DUPLICATE_DOMAIN_METADATA_INTERNAL_ERROR"):
        table.commit(domain, domain)


@pytest.mark.parametrize(("mode", "fails"), [("fatal", True), ("log", False), ("off", False)])
def test_partition_column_change(table: Table, recorded: Recorded, mode: Any, fails: bool) -> None:
    table.create(("part",))
    transaction = table.log().start_transaction(policy=CommitPolicy(partition_column_change=mode))
    if fails:
        with pytest.raises(DeltaAnalysisException, match="DELTA_UNSUPPORTED_PARTITION_COLUMN_CHANGE"):
            transaction.commit([metadata(("day",))], Operation.update())
    else:
        transaction.commit([metadata(("day",))], Operation.update())
    seen = named(recorded, "delta.commit.unexpectedPartitionColumnChange")
    assert [data["new"] for data in seen] == ([] if mode == "off" else [["day"]])


@pytest.mark.parametrize(
    ("operation", "may"),
    [
        (Operation.write(), False),
        (Operation.write("overwrite", ["day"]), False),
        (Operation.write("overwrite", ["day"], dynamic_partition_overwrite=True), False),
        (Operation.write("overwrite", ["day"], can_overwrite_schema=True), True),
        (Operation.write("append", ["day"], can_overwrite_schema=True), False),
        (Operation.update("x"), False),
        (Operation.replace_table(["day"]), True),
        (Operation.replace_table(["day"], as_select=True, is_v1_save_as_table=True), False),
        (Operation.replace_table(["day"], as_select=True, is_v1_save_as_table=True, can_overwrite_schema=True), True),
        (Operation.clone("source", 0), True),
        (Operation.rename_column("a", "b"), True),
        (Operation.restore(0), False),
    ],
)
def test_which_operations_may_change_partition_columns(table: Table, operation: Operation, may: bool) -> None:
    table.create(("part",))
    transaction = table.log().start_transaction()
    if may:
        transaction.commit([metadata(("day",))], operation)
    else:
        with pytest.raises(DeltaAnalysisException, match="partition columns"):
            transaction.commit([metadata(("day",))], operation)


def test_column_defaults_need_their_feature(table: Table) -> None:
    table.create()
    fields = [{"name": "value", "type": "integer", "nullable": True, "metadata": {"CURRENT_DEFAULT": "1"}}]
    text = json.dumps({"type": "struct", "fields": fields})
    with pytest.raises(DeltaUnsupportedTableFeatureException, match="WRONG_COLUMN_DEFAULTS_FOR_DELTA_FEATURE_NOT_ENABLED"):
        table.commit(metadata(schema_string=text), operation=Operation.change_column({"name": "value"}))


class TestCommitLarge:
    """What commitLarge writes, in which order, and which checks it leaves out."""

    def test_order(self, table: Table) -> None:
        table.create()
        protocol = Protocol(min_reader_version=1, min_writer_version=3)
        transaction = table.log().start_transaction()
        transaction.update_set_transaction(SetTransaction(app_id="own", version=1, last_updated=1))
        transaction.commit_large([protocol, add("b"), remove("a"), txn("app", 1)], Operation.restore(0))
        kinds = [next(iter(line)) for line in table.lines(1)]
        assert kinds == ["commitInfo", "metaData", "add", "remove", "txn", "txn", "protocol"]
        info = table.info(1)
        assert info["isBlindAppend"] is False
        assert info["isolationLevel"] == "Serializable"
        assert "dataChange" not in info

    def test_row_ids_come_after_the_protocol(self, table: Table) -> None:
        table.create(configuration={"delta.feature.rowTracking": "supported"})
        protocol = table.log().update().protocol
        file = add("a", stats='{"numRecords":3}')
        table.log().start_transaction().commit_large([file, protocol], Operation.restore(0))
        lines = table.lines(1)
        assert [next(iter(line)) for line in lines] == ["commitInfo", "metaData", "add", "protocol", "domainMetadata"]
        assert lines[2]["add"]["baseRowId"] == 0
        assert json.loads(lines[-1]["domainMetadata"]["configuration"]) == {"rowIdHighWaterMark": 2}

    def test_a_new_table_reads_version_minus_one(self, table: Table) -> None:
        transaction = table.log().start_transaction()
        transaction.update_metadata_for_new_table(metadata())
        transaction.commit_large([add("a")], Operation.convert(1))
        assert table.info(0)["readVersion"] == -1
        assert [next(iter(line)) for line in table.lines(0)] == ["commitInfo", "metaData", "add", "protocol"]

    def test_checks_that_it_leaves_out(self, table: Table) -> None:
        table.create(("part",), configuration={"delta.appendOnly": "true", "delta.feature.domainMetadata": "supported"})
        table.commit(add("a", part=1))
        domain = DomainMetadata(domain="d", configuration="{}", removed=False)
        with pytest.raises(AppendOnlyException):
            table.commit(remove("a", part=1))
        transaction = table.log().start_transaction()
        actions = [metadata(("day",)), remove("a", part=1), add("b", day=1), add("b", day=1), domain, domain]
        transaction.commit_large(actions, Operation.restore(0))
        assert table.live() == {"b"}

    def test_checks_that_it_keeps(self, table: Table) -> None:
        table.create(("part",))
        with pytest.raises(DeltaIllegalStateException, match="DELTA_INVALID_PARTITIONING_SCHEMA"):
            table.log().start_transaction().commit_large([add("a")], Operation.restore(0))
        assert table.versions() == [0]

    def test_nothing_is_a_commit_too(self, table: Table) -> None:
        table.create()
        assert table.log().start_transaction().commit_large([], Operation.restore(0)) == 1

    def test_it_runs_no_hook_but_writes_a_checkpoint(self, table: Table) -> None:
        table.create(configuration={"delta.compatibility.symlinkFormatManifest.enabled": "true"})
        transaction = table.log().start_transaction()
        transaction.commit_large([add("a")], Operation.restore(0))
        assert (table.path / "_delta_log" / f"{1:020d}.checkpoint.parquet").exists()
        assert not (table.path / "_symlink_format_manifest").exists()


def test_empty_commits_can_be_recorded(table: Table) -> None:
    table.create()
    assert table.log().start_transaction().commit_if_needed([], Operation.delete()) is None
    policy = CommitPolicy(skip_recording_empty_commits=False)
    assert table.log().start_transaction(policy=policy).commit_if_needed([], Operation.delete()) == 1
    transaction = table.log().start_transaction()
    assert transaction.commit_impl([], Operation.delete(), can_skip_empty_commits=True) is None
    assert transaction.commit_impl([], Operation.delete(), can_skip_empty_commits=False, tags={"a": 1}) == 2
    assert table.info(2)["tags"] == {"a": "1"}


def test_metrics_can_be_switched_off(table: Table) -> None:
    table.create()
    operation = Operation.write(metrics={"numFiles": 1, "foreign": 2})
    table.commit(add("a"), operation=operation)
    assert table.info(1)["operationMetrics"] == {"numFiles": "1"}
    table.log().start_transaction(policy=CommitPolicy(history_metrics=False)).commit([add("b")], operation)
    assert "operationMetrics" not in table.info(2)


def test_user_metadata_of_the_policy_comes_last(table: Table) -> None:
    table.create()
    policy = CommitPolicy(user_metadata="policy")
    for version, (own, given, of_operation, expected) in enumerate(
        [(None, None, None, "policy"), ("own", None, None, "own"), ("own", None, "op", "op"), ("own", "given", "op", "given")], 1
    ):
        transaction = table.log().start_transaction(policy=policy, user_metadata=own)
        transaction.commit([add(f"f{version}")], Operation.write(user_metadata=of_operation), user_metadata=given)
        assert table.info(version)["userMetadata"] == expected


@pytest.mark.parametrize(
    "options",
    [
        {"consistent_data_change": "sometimes"},
        {"partition_column_change": "true"},
        {"auto_compact_min_files": 1},
        {"auto_compact_max_file_size": 0},
    ],
)
def test_policies_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match=next(iter(options))):
        CommitPolicy(**options)


def test_facts_about_files_may_be_added_where_deletion_vectors_are_off_again(table: Table) -> None:
    table.create(configuration={"delta.feature.deletionVectors": "supported"})
    file = add("a", data_change=False, stats='{"numRecords":10,"tightBounds":false}', deletion_vector=vector(1))
    with pytest.raises(DeltaIllegalStateException, match="DELTA_ADDING_DELETION_VECTORS_DISALLOWED"):
        table.commit(file, operation=Operation.optimize())
    assert table.commit(file, operation=Operation("COMPUTE STATS")) == 1
