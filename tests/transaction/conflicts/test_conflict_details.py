"""What surrounds the matrix: identity columns, options, domains, dropped features, what a conflict tells."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    DeltaConcurrentModificationException,
    DeltaError,
    FeatureDropConflictException,
    MetadataChangedException,
    ProtocolChangedException,
    ProtocolDowngradeException,
)
from airflow_delta.log.actions.actions import DomainMetadata, Metadata, Protocol
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction
from airflow_delta.transaction.conflicts.metadata import IDENTITY_TAG, identity_only
from airflow_delta.transaction.policy import ConflictOptions
from support.actions import add, as_json, domain, foreign_info, remove, schema, txn, vector
from support.table import Table, metadata

# -- identity columns -----------------------------------------------------------------------------------------------------------


def identity_schema(high_water_mark: int | None = None, *, start: int = 1) -> str:
    generation: dict[str, Any] = {"delta.identity.start": start, "delta.identity.step": 1}
    generation["delta.identity.allowExplicitInsert"] = False
    if high_water_mark is not None:
        generation["delta.identity.highWaterMark"] = high_water_mark
    fields = [
        {"name": "id", "type": "long", "nullable": True, "metadata": generation},
        {"name": "part", "type": "integer", "nullable": True, "metadata": {}},
    ]
    return json.dumps({"type": "struct", "fields": fields})


def identity_metadata(mark: int | None = None, **changes: Any) -> Metadata:
    return metadata(["part"], schema_string=identity_schema(mark), **changes)


KINDS = {
    "none": None,
    "generic": identity_metadata(description="other"),
    "identity": identity_metadata(10),
    "row tracking": identity_metadata(configuration={"delta.enableRowTracking": "true"}),
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (identity_metadata(10), True),
        (identity_metadata(), False),
        (identity_metadata(10, description="x"), False),
        (metadata(["part"], schema_string=identity_schema(10, start=5)), False),
        (None, False),
    ],
)
def test_what_only_notes_used_values(change: Metadata | None, expected: bool) -> None:
    assert identity_only(identity_metadata(), change) is expected
    assert identity_only(None, change) is False


@pytest.mark.parametrize("winner", KINDS)
@pytest.mark.parametrize("current", KINDS)
@pytest.mark.parametrize("appends", [True, False])
def test_identity_matrix(tmp_path: Path, current: str, winner: str, appends: bool) -> None:
    """Delta's IdentityColumnConflictSuite: what each kind of metadata change does to each other."""
    table = Table(tmp_path / "table")
    table.create(["part"], schema_string=identity_schema(), configuration={"delta.feature.rowTracking": "supported"})
    stored = table.log().snapshot.metadata
    ours = table.log().start_transaction()

    def change(kind: str) -> dict[str, Any] | None:
        given = KINDS[kind]
        if given is None:
            return None
        line = {"id": stored.id, "format": {"provider": "parquet", "options": {}}, "partitionColumns": ["part"]}
        line |= {"schemaString": given.schema_string, "createdTime": stored.created_time}
        line |= {"configuration": {**stored.configuration, **given.configuration}}
        return line | ({"description": given.description} if given.description else {})

    tags = {"identity": {IDENTITY_TAG: "true"}, "row tracking": {"rowTrackingEnablementOnly": "true"}}.get(winner)
    info = foreign_info(operation="WRITE", isBlindAppend=True, **({"tags": tags} if tags else {}))
    new = as_json(add("w", part=1, records=1, base_row_id=0, default_row_commit_version=1))
    mark = as_json(domain("delta.rowTracking", '{"rowIdHighWaterMark":0}'))
    changed = change(winner)
    table.put_foreign(1, info, *([{"metaData": changed}] if changed else []), new, mark)
    mine = change(current)
    actions: list[Any] = [] if mine is None else [_decoded(mine)]
    if appends:
        actions.append(add("o", part=1, stats='{"numRecords":1}'))
    else:
        ours.filter_files()
        actions.append(remove("gone", part=1))
    expected: type[DeltaConcurrentModificationException] | None = None
    if winner == "generic" or (winner != "none" and current != "none"):
        expected = MetadataChangedException
    elif not appends:
        expected = ConcurrentAppendException
    if expected is None:
        assert ours.commit(actions, Operation.write()) == 2
        assert (table.info(2).get("tags") or {}).get(IDENTITY_TAG) == ("true" if current == "identity" else None)
    else:
        with pytest.raises(expected):
            ours.commit(actions, Operation.write())


def _decoded(line: dict[str, Any]) -> Metadata:
    import msgspec

    return msgspec.convert(line, Metadata)


# -- protocol -------------------------------------------------------------------------------------------------------------------

LISTED = ["appendOnly", "domainMetadata", "invariants", "vacuumProtocolCheck"]
CONFIGURATION = {"delta.feature.domainMetadata": "supported", "delta.feature.vacuumProtocolCheck": "supported"}


def protocol(*writer: str, reader: tuple[str, ...] = ("vacuumProtocolCheck",)) -> Protocol:
    listed = sorted({*writer, *reader})
    return Protocol(min_reader_version=3, min_writer_version=7, reader_features=list(reader), writer_features=listed)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table(tmp_path / "table")
    table.create(configuration=CONFIGURATION)
    return table


def race(table: Table, **options: bool) -> OptimisticTransaction:
    return table.log().start_transaction(policy=CommitPolicy(conflicts=ConflictOptions(**options)))


@pytest.mark.parametrize(("feature", "conflicts"), [("checkConstraints", True), ("changeDataFeed", False)])
@pytest.mark.parametrize("enforce", [True, False])
def test_features_with_rules_for_every_write(table: Table, feature: str, conflicts: bool, enforce: bool) -> None:
    ours = race(table, enforce_concurrent_feature_enablement=enforce)
    table.commit(protocol(*LISTED, feature), operation=Operation("UPGRADE PROTOCOL", {"newProtocol": {}}))
    if conflicts and enforce:
        with pytest.raises(ProtocolChangedException, match=feature):
            ours.commit([add("a")], Operation.write())
    else:
        assert ours.commit([add("a")], Operation.write()) == 2


def test_an_upgrade_that_is_taken_back_meanwhile(table: Table) -> None:
    ours = race(table)
    table.commit(protocol(*LISTED, "changeDataFeed"), operation=Operation("UPGRADE PROTOCOL", {"newProtocol": {}}))
    table.put_foreign(2, foreign_info(operation="DROP FEATURE"), {"protocol": json.loads(_json(protocol(*LISTED)))})
    assert ours.commit([add("a")], Operation.write()) == 3


def _json(value: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(value)


# -- our own dropping of a feature ----------------------------------------------------------------------------------------------

DROP = Operation("DROP FEATURE", {"featureName": "domainMetadata"})


def test_a_feature_is_dropped(table: Table) -> None:
    ours = race(table)
    table.commit(add("w"))
    without = protocol(*(name for name in LISTED if name != "domainMetadata"))
    assert ours.commit([without], DROP) == 2
    assert "domainMetadata" not in (table.log().snapshot.protocol.writer_features or ())


def test_a_feature_that_is_in_use_again(table: Table) -> None:
    ours = race(table)
    table.commit(DomainMetadata(domain="user.x", configuration="{}", removed=False))
    without = protocol(*(name for name in LISTED if name != "domainMetadata"))
    with pytest.raises(FeatureDropConflictException, match=r"user\.x") as caught:
        ours.commit([without], DROP)
    assert caught.value.version == 1
    assert caught.value.error_class == "DELTA_FEATURE_DROP_CONFLICT_REVALIDATION_FAIL"


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (protocol("appendOnly", "invariants", reader=()), "only one feature"),
        (protocol(*(n for n in LISTED if n != "appendOnly")), "does not allow it"),
        (protocol(*(n for n in LISTED if n != "domainMetadata"), "changeDataFeed"), "cannot be added in the same commit"),
    ],
)
def test_what_cannot_be_dropped(table: Table, new: Protocol, why: str) -> None:
    with pytest.raises(ProtocolDowngradeException, match=why):
        table.commit(new, operation=DROP)


def test_only_dropping_a_feature_drops_one(table: Table) -> None:
    without = protocol(*(name for name in LISTED if name != "domainMetadata"))
    with pytest.raises(ProtocolDowngradeException):
        table.commit(without, operation=Operation.manual_update())


def test_dropping_a_reader_feature_moves_the_protection_of_checkpoints(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create(configuration={**CONFIGURATION, "delta.feature.checkpointProtection": "supported"})
    ours = race(table)
    table.commit(add("w"))
    table.commit(add("w2"))
    before = ours.snapshot.metadata
    protected = replace(before, configuration={**before.configuration, "delta.requireCheckpointProtectionBeforeVersion": "1"})
    listed = ["appendOnly", "checkpointProtection", "domainMetadata", "invariants"]
    without = Protocol(min_reader_version=1, min_writer_version=7, writer_features=listed)
    assert ours.commit([protected, without], Operation("DROP FEATURE", {"featureName": "vacuumProtocolCheck"})) == 3
    assert table.log().snapshot.metadata.configuration["delta.requireCheckpointProtectionBeforeVersion"] == "3"


@pytest.mark.parametrize("created", [True, False])
def test_only_who_creates_a_table_at_the_same_time_is_told_so(tmp_path: Path, created: bool) -> None:
    table = Table(tmp_path / "table")
    if not created:
        table.create(configuration=CONFIGURATION)
    ours = race(table)
    if created:
        ours.update_metadata_for_new_table(metadata())
        table.create(configuration=CONFIGURATION)
    else:
        table.commit(protocol(*LISTED, "changeDataFeed"), operation=Operation("UPGRADE PROTOCOL", {"newProtocol": {}}))
    mine = [] if created else [protocol(*LISTED, "checkConstraints")]
    with pytest.raises(ProtocolChangedException) as caught:
        ours.commit(mine, Operation.manual_update())
    assert ("Two writers created the table at the same time" in str(caught.value)) is created


# -- metadata and domains -------------------------------------------------------------------------------------------------------


def test_without_resolution_every_metadata_change_is_a_conflict(table: Table) -> None:
    strict, lenient = race(table, resolve_feature_enablement=False), race(table)
    table.put_foreign(1, foreign_info(), next(line for line in table.lines(0) if "metaData" in line))
    assert lenient.commit([add("a")], Operation.write()) == 2
    with pytest.raises(MetadataChangedException):
        strict.commit([add("b")], Operation.write())


def with_line(table: Table, version: int, configuration: dict[str, str], **changes: Any) -> None:
    """Commit other metadata, as another engine does."""
    before = next(line["metaData"] for line in table.lines(0) if "metaData" in line)
    after = {**before, **changes, "configuration": {**before["configuration"], **configuration}}
    table.put_foreign(version, foreign_info(operation="SET TBLPROPERTIES", inCommitTimestamp=1), {"metaData": after})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delta.enableRowTracking", "true"),
        ("delta.enableDeletionVectors", "true"),
        ("delta.checkpointPolicy", "v2"),
        ("delta.enableInCommitTimestamps", "true"),
        ("delta.columnMapping.mode", "name"),
    ],
)
def test_what_the_protocol_does_not_support_cannot_be_switched_on_meanwhile(table: Table, key: str, value: str) -> None:
    ours = race(table)
    with_line(table, 1, {key: value})
    with pytest.raises(MetadataChangedException, match=key):
        ours.commit([add("a")], Operation.write())


def test_another_partitioning_is_a_conflict_for_a_blind_append(table: Table) -> None:
    ours = race(table)
    with_line(table, 1, {}, partitionColumns=["value"])
    with pytest.raises(MetadataChangedException, match="partition_columns"):
        ours.commit([add("a")], Operation.write())


@pytest.mark.parametrize(
    ("created", "noted", "changed"),
    [
        ("delta.columnMapping.mode=id", "user=x", "delta.columnMapping.mode=name"),
        (
            "delta.enableInCommitTimestamps=true",
            "delta.inCommitTimestampEnablementVersion=1",
            "delta.inCommitTimestampEnablementVersion=7",
        ),
    ],
)
def test_what_is_on_already_may_not_become_something_else(tmp_path: Path, created: str, noted: str, changed: str) -> None:
    properties = [dict([text.split("=")]) for text in (created, noted, changed)]
    table = Table(tmp_path / "table")
    table.create(configuration=properties[0])
    with_line(table, 1, properties[1])
    ours = race(table)
    with_line(table, 2, {**properties[1], **properties[2]})
    with pytest.raises(MetadataChangedException, match=changed.partition("=")[0]):
        ours.commit([add("a")], Operation.write())


CLUSTERED = DomainMetadata(domain="delta.clustering", configuration='{"clusteringColumns":[["value"]]}', removed=False)


@pytest.mark.parametrize("removes", [True, False])
def test_a_replaced_table_is_not_clustered_as_the_one_before(table: Table, removes: bool) -> None:
    ours = race(table, replace_removes_new_domains=removes)
    table.commit(CLUSTERED)
    own = DomainMetadata(domain="user.x", configuration="{}", removed=False)
    ours.commit([add("a"), own], Operation.replace_table())
    assert set(table.log().snapshot.domain_metadata) == {"user.x", *([] if removes else ["delta.clustering"])}
    assert table.live() == {"a"}


@pytest.mark.parametrize(
    ("columns", "winner", "conflicts"),
    [
        (("other",), CLUSTERED, True),
        (("value", "other"), CLUSTERED, False),
        (("other",), replace(CLUSTERED, removed=True), False),
        (("other",), replace(CLUSTERED, domain="user.x"), False),
    ],
)
def test_a_column_that_a_winner_clusters_by_is_not_dropped(
    table: Table, columns: tuple[str, ...], winner: DomainMetadata, conflicts: bool
) -> None:
    ours = race(table)
    ours.update_metadata(replace(ours.metadata, schema_string=schema(**dict.fromkeys(columns, "integer"))))
    table.commit(winner)
    if not conflicts:
        assert ours.commit([], Operation.manual_update()) == 2
        return
    with pytest.raises(MetadataChangedException, match="DELTA_UNSUPPORTED_DROP_CLUSTERING_COLUMN") as caught:
        ours.commit([], Operation.manual_update())
    assert caught.value.winning_version == 1


def test_a_clustering_that_a_winner_has_removed_is_not_removed_again(table: Table) -> None:
    table.commit(CLUSTERED)
    ours = race(table)
    table.commit(replace(CLUSTERED, removed=True))
    ours.commit([add("a")], Operation.replace_table())
    assert not any("domainMetadata" in line for line in table.lines(3))


def test_a_replaced_table_that_sets_its_own_clustering_conflicts(table: Table) -> None:
    ours = race(table)
    table.commit(CLUSTERED)
    with pytest.raises(ConcurrentTransactionException, match=r"delta\.clustering"):
        ours.commit([CLUSTERED], Operation.replace_table())


def test_an_append_does_not_conflict_with_a_new_clustering(table: Table) -> None:
    ours = race(table)
    table.commit(CLUSTERED)
    assert ours.commit([add("a")], Operation.write()) == 2


NONE = replace(CLUSTERED, configuration='{"clusteringColumns":[]}')


CUBE = {"ZCUBE_ID": "1", "ZCUBE_ZORDER_BY": '["part"]'}


@pytest.mark.parametrize(
    ("operation", "cube", "winner", "conflicts"),
    [
        (Operation.optimize(), "part", CLUSTERED, True),
        (Operation.optimize(), "part", NONE, True),
        (Operation.optimize(), "part", replace(CLUSTERED, removed=True), True),
        (Operation.optimize(), "value", CLUSTERED, False),
        (Operation.optimize(), "part", replace(CLUSTERED, domain="user.x"), False),
        (Operation.optimize(), None, CLUSTERED, False),
        (Operation.write(), "part", CLUSTERED, True),
        (Operation("ROW TRACKING BACKFILL", {"batchId": "0"}), "part", CLUSTERED, False),
    ],
)
def test_files_that_are_being_clustered_by_other_columns_than_a_winners(
    table: Table, operation: Operation, cube: str | None, winner: DomainMetadata, conflicts: bool
) -> None:
    """Others would leave them alone for ever."""
    table.commit(add("old"))
    ours = race(table)
    table.commit(winner)
    tags = {} if cube is None else {**CUBE, "ZCUBE_ZORDER_BY": f'["{cube}"]'}
    new = add("new", tags=tags, clustering_provider="liquid", data_change=operation.name == "WRITE")
    if not conflicts:
        assert ours.commit([new], operation) == 3
        return
    with pytest.raises(MetadataChangedException, match="clustering columns were changed by a concurrent update"):
        ours.commit([new], operation)


def test_rows_may_be_marked_in_files_of_a_cube_of_other_columns_than_a_winners(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create(configuration={**CONFIGURATION, "delta.enableDeletionVectors": "true"})
    old = add("a", tags=CUBE, clustering_provider="liquid", records=9)
    table.commit(old)
    ours = race(table)
    table.commit(CLUSTERED)
    marked = replace(old, deletion_vector=vector(cardinality=1), stats='{"numRecords":9,"tightBounds":false}')
    assert ours.commit([old.remove(1), marked], Operation("DELETE", {})) == 3


# -- after a race the actions are checked again ----------------------------------------------------------------------------------


def test_what_a_race_makes_of_the_actions_is_checked_again(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create(configuration={"delta.feature.rowTracking": "supported"})
    table.commit(add("a", stats='{"numRecords":1}'))
    ours = race(table)
    table.put_foreign(
        2,
        foreign_info(operation="WRITE"),
        *[as_json(add("n", records=1, base_row_id=base, default_row_commit_version=2)) for base in (1, 2)],
    )
    with pytest.raises(DeltaError, match="DELTA_DUPLICATE_ACTIONS_FOUND"):
        ours.commit([], Operation("ROW TRACKING UNBACKFILL"))


# -- what a conflict tells ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("detection", ["delta", "rows"])
def test_a_conflict_says_how_to_avoid_it(tmp_path: Path, partitioned: bool, detection: str) -> None:
    table = Table(tmp_path / "table")
    table.create(("part",) if partitioned else ())
    ours = table.log().start_transaction(policy=CommitPolicy(conflict_detection=detection))
    ours.read_whole_table()
    table.commit(add("w", part=1) if partitioned else add("w"), operation=Operation.write())
    with pytest.raises(ConcurrentAppendException) as caught:
        ours.commit([add("o", part=1) if partitioned else add("o")], Operation.write())
    ways = ["max_active_runs=1", "a pool with one slot", "on_conflict='restart'"]
    ways += ["partition columns (part)"] if partitioned else ["the table is not partitioned"]
    ways += [] if partitioned and detection == "delta" else ["deletion vectors (delta.enableDeletionVectors)"]
    assert [way for way in ways if way not in str(caught.value)] == []


def test_what_a_conflict_tells(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = Table(tmp_path / "table")
    table.create(("part",), name="flights")
    ours = table.log().start_transaction()
    ours.filter_files("part = 1")
    tags = {"airflow.dagId": "load", "airflow.runId": "r1", "airflow.taskId": "commit", "airflow.tryNumber": "2"}
    table.commit(add("w", part=1), operation=Operation.write(), tags=tags, user_metadata="nightly")
    with caplog.at_level(logging.INFO, logger="airflow_delta.transaction"), pytest.raises(ConcurrentAppendException) as caught:
        ours.commit([add("o", part=1)], Operation.write())
    error = caught.value
    assert error.condition == "DELTA_CONCURRENT_APPEND.WITH_PARTITION_HINT"
    assert error.sql_state == "2D521"
    assert error.operation == "WRITE"
    assert error.table_name == "flights"
    assert error.version == error.winning_version == 1
    assert error.partition == "[part=1]"
    assert error.partition_values == {"part": "1"}
    assert error.winning_commit is not None
    assert error.winning_commit["userMetadata"] == "nightly"
    assert error.message_parameters == {
        "operation": "WRITE",
        "tableName": "flights",
        "version": "1",
        "partitionValues": "[part=1]",
    }
    text = str(error)
    assert "committed by Dag load, run r1, task commit, try 2 at 20" in text
    assert "with airflow-provider-delta/" in text
    assert "user metadata 'nightly'" in text
    (event,) = [record for record in caplog.records if getattr(record, "delta_event", "").startswith("delta.commit.conflict")]
    assert event.delta_event == "delta.commit.conflict.ConcurrentAppend"  # type: ignore[attr-defined]
    facts = event.delta_data  # type: ignore[attr-defined]
    assert facts["winningTxnOperation"] == "WRITE"
    assert facts["condition"] == error.condition
    assert facts["winningVersion"] == 1


def test_a_conflict_without_a_partition(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create()
    table.commit(add("a"))
    ours = table.log().start_transaction()
    ours.read_whole_table()
    table.put_foreign(2, {"remove": {"path": "a", "dataChange": True}})
    with pytest.raises(ConcurrentDeleteReadException) as caught:
        ours.commit([add("o")], Operation.write())
    error = caught.value
    assert error.condition == "DELTA_CONCURRENT_DELETE_READ.WITHOUT_HINT"
    assert error.operation == "TRANSACTION"
    assert error.table_name == f"delta.`{table.path}`"
    assert "partitionValues" not in error.message_parameters
    assert "A file that this transaction read (it read the whole table) was removed by a concurrent update" in error.message


def test_a_conflict_tells_which_file_or_key(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create(("part",))
    table.commit(add("a", part=1))
    reads, keyed = (table.log().start_transaction() for _ in range(2))
    reads.filter_files("part = 1")
    keyed.txn_version("app")
    table.commit(remove("a", part=1), txn("app", 1))
    with pytest.raises(ConcurrentDeleteReadException) as caught:
        reads.commit([add("o", part=1)], Operation.manual_update())
    expected = "A file in the partition [part=1] that this transaction read (a) was removed by a concurrent update"
    assert expected in caught.value.message
    with pytest.raises(ConcurrentTransactionException) as repeated:
        keyed.commit([add("o", part=2)], Operation.manual_update())
    assert "The application transaction app, whose version this transaction looked up" in repeated.value.message
    assert "its own transaction key (appId)" in repeated.value.message


def test_a_conflict_tells_the_partition(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create(("part",))
    table.commit(add("a", part=1))
    reads, removes = (table.log().start_transaction() for _ in range(2))
    reads.track_read_predicates("part = 1")
    table.commit(remove("a", part=1), add("b", part=1))
    with pytest.raises(ConcurrentAppendException, match=r"Files were added to the partition \[part=1\] by") as caught:
        reads.commit([add("o", part=1)], Operation.manual_update())
    assert "Use the partition columns (part)" in caught.value.message
    with pytest.raises(
        ConcurrentDeleteDeleteException, match=r"A file in the partition \[part=1\] that this .* removes \(a\)"
    ) as both:
        removes.commit([remove("a", part=1)], Operation.manual_update())
    assert "Use the partition columns (part)" in both.value.message


def test_a_null_partition_and_mapped_columns_are_told_by_the_names_that_users_know(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    mapped = {"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": "col-2"}
    fields = [
        {"name": "value", "type": "integer", "nullable": True, "metadata": {**mapped, "delta.columnMapping.id": 1}},
        {"name": "part", "type": "integer", "nullable": True, "metadata": mapped},
    ]
    fields[0]["metadata"]["delta.columnMapping.physicalName"] = "col-1"  # type: ignore[index]
    configuration = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    line = {"id": "x", "format": {"provider": "parquet", "options": {}}, "partitionColumns": ["part"], "createdTime": 1}
    line |= {"schemaString": json.dumps({"type": "struct", "fields": fields}), "configuration": configuration}
    table.put_foreign(0, foreign_info(), {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": line})
    ours = table.log().start_transaction()
    ours.filter_files("part IS NULL")
    new = {"path": "w", "partitionValues": {"col-2": None}, "size": 1, "modificationTime": 1, "dataChange": True}
    table.put_foreign(1, foreign_info(), {"add": new})
    with pytest.raises(ConcurrentAppendException) as caught:
        ours.commit([remove("x", **{"col-2": 1})], Operation.manual_update())
    assert caught.value.partition == "[part=null]"
    assert caught.value.partition_values == {"part": None}
