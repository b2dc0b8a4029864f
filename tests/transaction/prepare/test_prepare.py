"""What must hold before a commit is tried."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from airflow_delta.exceptions import (
    AppendOnlyException,
    DeltaAnalysisException,
    DeltaAssertionError,
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    DeltaUnsupportedTableFeatureException,
    ProtocolDowngradeException,
)
from airflow_delta.log.actions.actions import (
    AddCDCFile,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Protocol,
)
from airflow_delta.transaction import Operation
from support.actions import add, remove, schema, txn
from support.table import Table, metadata

MANUAL = Operation.manual_update()
VECTOR = DeletionVectorDescriptor(storage_type="u", path_or_inline_dv="ab", offset=1, size_in_bytes=10, cardinality=1)


def kinds(table: Table, version: int) -> list[str]:
    return [next(iter(line)) for line in table.lines(version)]


def test_order_of_actions(table: Table) -> None:
    table.create()
    assert kinds(table, 0) == ["commitInfo", "metaData", "protocol"]
    protocol = Protocol(min_reader_version=1, min_writer_version=2)
    transaction = table.log().start_transaction()
    transaction.update_set_transaction(txn("own", 1))
    transaction.commit([add("a"), protocol, txn("given", 1), metadata(description="d")], MANUAL)
    assert kinds(table, 1) == ["commitInfo", "metaData", "protocol", "add", "txn", "txn"]
    assert [line["txn"]["appId"] for line in table.lines(1)[4:]] == ["given", "own"]


def test_prepare_commit_returns_the_final_actions(table: Table) -> None:
    transaction = table.log().start_transaction()
    transaction.update_metadata(metadata())
    final = transaction.prepare_commit([add("a")], MANUAL)
    assert [type(action).__name__ for action in final] == ["Metadata", "Protocol", "AddFile"]
    assert table.path.exists() is False


def test_a_protocol_that_nobody_asked_for_comes_first(table: Table) -> None:
    table.log().start_transaction().commit([metadata(), add("a")], MANUAL)
    assert kinds(table, 0) == ["commitInfo", "protocol", "metaData", "add"]


def test_implicit_and_explicit_protocol_are_two(table: Table) -> None:
    mapped = metadata(configuration={"delta.enableChangeDataFeed": "true"})
    given = Protocol(min_reader_version=1, min_writer_version=7, writer_features=["appendOnly", "invariants", "changeDataFeed"])
    with pytest.raises(DeltaAssertionError, match="Cannot change the protocol more than once"):
        table.log().start_transaction().commit([mapped, given], MANUAL)
    table.log().start_transaction().commit([metadata(), given], MANUAL)
    assert kinds(table, 0) == ["commitInfo", "metaData", "protocol"]


def test_first_commit_without_metadata(table: Table) -> None:
    with pytest.raises(DeltaIllegalStateException, match="DELTA_METADATA_ABSENT"):
        table.log().start_transaction().commit([add("a")], MANUAL)
    with pytest.raises(DeltaTableNotFoundException):
        _ = table.log().start_transaction().metadata


def test_committed_once_only(table: Table) -> None:
    table.create()
    transaction = table.log().start_transaction()
    transaction.commit([add("a")], MANUAL)
    for commit in (transaction.commit, transaction.commit_if_needed, transaction.commit_large):
        with pytest.raises(DeltaAssertionError, match=r"Transaction already committed\."):
            commit([add("b")], MANUAL)
    assert isinstance(DeltaAssertionError("x"), AssertionError)
    assert table.versions() == [0, 1]


@pytest.mark.parametrize("through_update", [True, False])
def test_metadata_at_most_once(table: Table, through_update: bool) -> None:
    transaction = table.log().start_transaction()
    given = [metadata()]
    if through_update:
        transaction.update_metadata(metadata())
    else:
        given.append(metadata(description="other"))
    with pytest.raises(DeltaAssertionError, match=r"Cannot change the metadata more than once in a transaction\."):
        transaction.commit(given, MANUAL)
    assert table.versions() == []


def test_update_metadata_once_and_before_writes(table: Table) -> None:
    transaction = table.log().start_transaction()
    assert transaction.can_update_metadata
    transaction.update_metadata(metadata())
    assert not transaction.can_update_metadata
    assert transaction.metadata == metadata()
    with pytest.raises(DeltaAssertionError, match="more than once"):
        transaction.update_metadata(metadata())
    other = table.log().start_transaction()
    other.has_written = True
    with pytest.raises(DeltaAssertionError, match="already written data"):
        other.update_metadata_for_new_table(metadata())


def test_protocol_at_most_once(table: Table) -> None:
    table.create()
    protocol = Protocol(min_reader_version=1, min_writer_version=2)
    with pytest.raises(DeltaAssertionError, match="Cannot change the protocol more than once"):
        table.commit(protocol, protocol)


def test_commit_info_is_not_the_callers(table: Table) -> None:
    table.create()
    with pytest.raises(DeltaIllegalArgumentException, match="commitInfo"):
        table.commit(CommitInfo(operation="WRITE"))


def test_metadata_is_verified(table: Table) -> None:
    broken = metadata(schema_string=schema(a="integer", A="integer"))
    with pytest.raises(DeltaAnalysisException):
        table.log().start_transaction().update_metadata(broken)
    with pytest.raises(DeltaAnalysisException):
        table.log().start_transaction().commit([broken], MANUAL)
    with pytest.raises(DeltaIllegalArgumentException, match=r"delta\.nonsense"):
        table.log().start_transaction().update_metadata(metadata(configuration={"delta.nonsense": "1"}))


def test_protocol_downgrade(table: Table) -> None:
    table.create()
    with pytest.raises(ProtocolDowngradeException):
        table.commit(Protocol(min_reader_version=1, min_writer_version=1))
    with pytest.raises(DeltaError):
        table.commit(Protocol(min_reader_version=0, min_writer_version=2))


def test_protocol_that_we_cannot_write(table: Table) -> None:
    table.create()
    unknown = Protocol(min_reader_version=1, min_writer_version=7, writer_features=["appendOnly", "invariants", "fromTheFuture"])
    with pytest.raises(DeltaUnsupportedTableFeatureException) as caught:
        table.commit(unknown)
    assert "fromTheFuture" in caught.value.features
    assert table.versions() == [0]


def test_a_table_that_we_cannot_write_is_refused_at_the_start(table: Table) -> None:
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["magic"], "writerFeatures": ["magic"]}
    meta = {"id": "m", "format": {"provider": "parquet", "options": {}}, "schemaString": schema(v="integer")}
    meta |= {"partitionColumns": [], "configuration": {}}
    table.put_foreign(0, {"protocol": protocol}, {"metaData": meta})
    with pytest.raises(DeltaUnsupportedTableFeatureException, match="magic"):
        table.log().start_transaction()


def test_partition_columns_of_files(table: Table) -> None:
    table.create(("part",))
    for wrong in (add("a"), add("a", part=1, other=2), add("a", other=1)):
        with pytest.raises(DeltaIllegalStateException, match="DELTA_INVALID_PARTITIONING_SCHEMA"):
            table.commit(wrong)
    table.commit(add("a", part=None))


def test_partition_columns_may_change_only_where_the_operation_may(table: Table) -> None:
    table.create(("part",))
    other = metadata(("day",))
    with pytest.raises(DeltaAnalysisException, match="partition columns"):
        table.commit(other, operation=Operation.write())
    table.commit(other, operation=Operation.write("overwrite", ["day"], can_overwrite_schema=True))
    assert table.log().snapshot.metadata.partition_columns == ["day"]


@pytest.mark.parametrize(
    ("actions", "what"),
    [
        ([add("a"), add("a")], "added twice"),
        ([remove("a"), remove("a")], "removed twice"),
        ([add("a"), remove("a")], "both added and removed"),
    ],
)
def test_duplicate_actions(table: Table, actions: list[Any], what: str) -> None:
    table.create()
    with pytest.raises(DeltaIllegalStateException, match=f"a is {what}.*DELTA_DUPLICATE_ACTIONS_FOUND"):
        table.commit(*actions)


def test_a_file_may_be_removed_and_added_with_another_deletion_vector(table: Table) -> None:
    features = ["deletionVectors"]
    table.create(configuration={"delta.enableDeletionVectors": "true"})
    assert features == table.log().snapshot.protocol.reader_features
    table.commit(add("a"))
    table.commit(
        remove("a"), add("a", stats='{"numRecords":5,"tightBounds":false}', deletion_vector=VECTOR), operation=Operation.delete()
    )
    assert table.live() == {"a"}


LOOSE = add("a", stats='{"numRecords":5,"tightBounds":false}', deletion_vector=VECTOR)


@pytest.mark.parametrize(
    ("stats", "what"),
    [
        (None, "DELTA_DELETION_VECTOR_MISSING_NUM_RECORDS"),
        ("not json", "DELTA_DELETION_VECTOR_MISSING_NUM_RECORDS"),
        ('{"numRecords":5}', "TIGHT_BOUNDS_DISALLOWED"),
        ('{"numRecords":5,"tightBounds":true}', "TIGHT_BOUNDS_DISALLOWED"),
    ],
)
def test_deletion_vectors_need_statistics(table: Table, stats: str | None, what: str) -> None:
    table.create(configuration={"delta.enableDeletionVectors": "true"})
    with pytest.raises(DeltaIllegalStateException, match=what):
        table.commit(add("a", stats=stats, deletion_vector=VECTOR), operation=Operation.delete())
    if stats is not None and "numRecords" in stats:
        table.commit(add("a", stats=stats, deletion_vector=VECTOR))  # Manual Update does not ask for loose bounds


def test_deletion_vectors_need_to_be_enabled(table: Table) -> None:
    table.create()
    with pytest.raises(DeltaIllegalStateException, match="DELTA_ADDING_DELETION_VECTORS_DISALLOWED"):
        table.commit(add("a", stats='{"numRecords":5,"tightBounds":false}', deletion_vector=VECTOR))


def test_append_only(table: Table) -> None:
    table.create(configuration={"delta.appendOnly": "true"})
    table.commit(add("a"))
    with pytest.raises(AppendOnlyException, match=r"delta\.appendOnly"):
        table.commit(remove("a"), operation=Operation.delete())
    table.commit(remove("a", data_change=False), add("b", data_change=False), operation=Operation.optimize())
    assert table.live() == {"b"}


def test_append_only_is_not_lifted_by_the_commit_that_deletes(table: Table) -> None:
    table.create(configuration={"delta.appendOnly": "true"})
    table.commit(add("a"))
    before = table.log().snapshot.metadata
    lifted = msgspec.structs.replace(before, configuration={"delta.appendOnly": "false"})
    with pytest.raises(AppendOnlyException):
        table.commit(lifted, remove("a"), operation=Operation.replace_table())
    table.commit(lifted, operation=Operation.set_table_properties({"delta.appendOnly": "false"}))
    table.commit(remove("a"), operation=Operation.delete())
    assert table.live() == set()


def test_change_data_files_change_no_data(table: Table) -> None:
    table.create()
    with pytest.raises(DeltaIllegalArgumentException, match="dataChange=false"):
        table.commit(AddCDCFile(path="c", partition_values={}, size=1, data_change=True))


def test_domain_metadata_needs_its_feature(table: Table) -> None:
    table.create()
    with pytest.raises(DeltaUnsupportedTableFeatureException, match="domainMetadata"):
        table.commit(DomainMetadata(domain="d", configuration="{}", removed=False))


def test_a_domain_comes_once(table: Table) -> None:
    table.create(configuration={"delta.feature.domainMetadata": "supported"})
    domain = DomainMetadata(domain="d", configuration="{}", removed=False)
    with pytest.raises(DeltaIllegalStateException, match="domain d is set twice"):
        table.commit(domain, domain)
    table.commit(domain)
    assert set(table.log().snapshot.domain_metadata) == {"d"}


def test_set_transactions_are_deduplicated(table: Table) -> None:
    table.create()
    transaction = table.log().start_transaction()
    transaction.update_set_transaction(txn("app", 3))
    transaction.commit([txn("app", 3), txn("other", 1), txn("app", 3)], MANUAL)
    assert [line["txn"]["appId"] for line in table.lines(1)[1:]] == ["app", "other"]
    clash = table.log().start_transaction()
    clash.update_set_transaction(txn("app", 4))
    with pytest.raises(DeltaIllegalArgumentException, match="'app' is set to version 5 and to version 4"):
        clash.commit([txn("app", 5)], MANUAL)


def test_set_transactions_of_a_large_commit_are_deduplicated_too(table: Table) -> None:
    table.create()
    transaction = table.log().start_transaction()
    transaction.update_set_transaction(txn("app", 3))
    transaction.commit_large([txn("app", 3)], Operation.restore(version=0))
    assert [line["txn"]["appId"] for line in table.lines(1) if "txn" in line] == ["app"]
    clash = table.log().start_transaction()
    clash.update_set_transaction(txn("app", 4))
    with pytest.raises(DeltaIllegalArgumentException, match="'app'"):
        clash.commit_large([txn("app", 5)], Operation.restore(version=0))


def test_commit_if_needed(table: Table) -> None:
    table.create()
    transaction = table.log().start_transaction()
    transaction.read_whole_table()
    table.commit(add("a"))
    assert transaction.commit_if_needed([], Operation.delete()) is None, "nothing to commit, so nothing is checked"
    assert not transaction.committed
    assert table.versions() == [0, 1]
    assert table.log().start_transaction().commit([], Operation.delete()) == 2
    with_txn = table.log().start_transaction()
    with_txn.update_set_transaction(txn("app", 1))
    assert with_txn.commit_if_needed([], Operation.delete()) == 3
