"""What each way of reading records, and what a commit then conflicts with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_delta.exceptions import ConcurrentAppendException, DeltaAssertionError, DeltaIllegalArgumentException
from airflow_delta.log.actions.actions import AddFile, DeletionVectorDescriptor
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction
from support.actions import add, txn
from support.table import Table, metadata

DELETE = Operation.delete()
VECTOR = DeletionVectorDescriptor(storage_type="u", path_or_inline_dv="ab", offset=1, size_in_bytes=10, cardinality=4)


def rows(path: str, count: int | None, *, vector: DeletionVectorDescriptor | None = None, **partition: int) -> AddFile:
    stats = None if count is None else f'{{"numRecords":{count},"tightBounds":false}}'
    return add(path, **partition, stats=stats, deletion_vector=vector)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table(tmp_path / "table")
    table.create(("part",), configuration={"delta.enableDeletionVectors": "true"})
    table.commit(rows("a", 10, part=1), rows("b", None, part=1), rows("c", 7, vector=VECTOR, part=2), txn("app", 5))
    return table


Read = Callable[[OptimisticTransaction], object]


@pytest.mark.parametrize(
    ("read", "predicates", "files", "whole", "app_ids"),
    [
        (lambda t: t.filter_files(), ("true",), {"a", "b", "c"}, False, set()),
        (lambda t: t.filter_files("part = 1"), ("part = 1",), {"a", "b"}, False, set()),
        (lambda t: t.filter_files("part = 1", "value > 1"), ("part = 1 AND value > 1",), {"a", "b"}, False, set()),
        (lambda t: t.filter_files("part = 9"), ("part = 9",), set(), False, set()),
        (lambda t: t.filter_files("value = 1"), ("value = 1",), {"a", "b", "c"}, False, set()),
        (
            lambda t: t.filter_files(new_files=[add("n", part=2)]),
            ("the partition is one of [part=2]",),
            set(),
            False,
            set(),
        ),
        (lambda t: t.files_for_scan("part = 2"), ("part = 2",), {"c"}, False, set()),
        (lambda t: t.files_for_scan("part = 1", limit=5), ("part = 1",), {"a"}, False, set()),
        (lambda t: t.files_for_scan(limit=0), ("true",), set(), False, set()),
        (lambda t: t.files_with_stats_for_scan("part = 2"), ("part = 2",), {"c"}, False, set()),
        (lambda t: t.track_files_read(["a"]), (), {"a"}, False, set()),
        (lambda t: t.track_read_predicates("part = 1"), ("part = 1",), set(), False, set()),
        (lambda t: t.read_whole_table(), ("true",), set(), True, set()),
        (lambda t: t.txn_version("app"), (), set(), False, {"app"}),
    ],
)
def test_what_is_recorded(
    table: Table, read: Read, predicates: tuple[str, ...], files: set[str], whole: bool, app_ids: set[str]
) -> None:
    transaction = table.log().start_transaction()
    read(transaction)
    shown = tuple(text.replace("(", "").replace(")", "").replace("`", "") for text in transaction.read_predicates)
    assert shown == predicates
    assert transaction.read_files == files
    assert transaction.read_the_whole_table is whole
    assert transaction.read_app_ids == app_ids


@pytest.mark.parametrize("name", ["read_predicates", "read_files", "read_the_whole_table", "read_app_ids"])
def test_what_was_read_is_not_set_from_outside(table: Table, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(table.log().start_transaction(), name, ())


def test_txn_version(table: Table) -> None:
    transaction = table.log().start_transaction()
    assert transaction.txn_version("app") == 5
    assert transaction.txn_version("other") == -1
    assert transaction.read_app_ids == {"app", "other"}


def test_num_records(table: Table) -> None:
    transaction = table.log().start_transaction()
    files = transaction.filter_files(keep_num_records=True)
    counts = dict(zip(files["path"].to_pylist(), files["num_records"].to_pylist(), strict=True))
    assert counts == {"a": 10, "b": None, "c": 3}, "a deletion vector takes its rows away"
    assert "num_records" not in transaction.filter_files().column_names


@pytest.mark.parametrize(("limit", "paths"), [(0, 0), (1, 1), (10, 1), (11, 3), (100, 3)])
def test_a_limit_reads_no_more_files_than_it_needs(tmp_path: Path, limit: int, paths: int) -> None:
    table = Table(tmp_path / "table")
    table.create()
    table.commit(rows("a", 10), rows("b", None), rows("c", 3))
    transaction = table.log().start_transaction()
    files = transaction.files_for_scan(limit=limit)
    assert files.num_rows == paths
    assert len(transaction.read_files) == paths
    assert "num_records" not in files.column_names


def test_a_limit_takes_partition_predicates_only(table: Table) -> None:
    transaction = table.log().start_transaction()
    with pytest.raises(DeltaAssertionError, match="Only predicates on partition columns"):
        transaction.files_for_scan("value = 1", limit=3)
    with pytest.raises(DeltaAssertionError, match="Only predicates on partition columns"):
        transaction.files_with_stats_for_scan("part = 1 OR value = 1")
    with pytest.raises(DeltaIllegalArgumentException, match="not both"):
        transaction.filter_files("part = 1", new_files=[add("n", part=1)])
    assert transaction.read_predicates == ()


def test_a_table_that_does_not_exist_is_read_as_empty(tmp_path: Path) -> None:
    transaction = Table(tmp_path / "table").log().start_transaction()
    assert transaction.filter_files("x = 1", keep_num_records=True).num_rows == 0
    assert transaction.files_for_scan(limit=3).num_rows == 0
    assert transaction.read_files == frozenset()


def test_dynamic_overwrite_with_column_mapping(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    log = table.create(("part",), configuration={"delta.columnMapping.mode": "name"})
    (physical,) = [field.physical_name for field in log.update().schema.fields if field.name == "part"]

    def file(path: str, value: str) -> AddFile:
        return add(path, partition_values={physical: value})

    table.commit(file("a", "1"), file("b", "2"))
    transaction = table.log().start_transaction()
    assert transaction.filter_files(new_files=[file("n", "01")])["path"].to_pylist() == ["a"]
    table.commit(file("c", "2"))
    other = table.log().start_transaction(transaction.snapshot)
    other.filter_files(new_files=[file("n", "2")])
    with pytest.raises(ConcurrentAppendException):
        other.commit([file("m", "2")], Operation.write("overwrite", dynamic_partition_overwrite=True))
    transaction.commit([file("n", "1")], Operation.write("overwrite", dynamic_partition_overwrite=True))


def test_two_sets_of_many_partitions_stay_two(table: Table) -> None:
    """Messages name the first few partitions only; what is compared is all of them."""
    transaction = table.log().start_transaction()
    for last in (7, 8):
        transaction.filter_files(new_files=[add(f"n{part}", part=part) for part in (*range(1, 7), last)])
    table.commit(add("c", part=8))
    with pytest.raises(ConcurrentAppendException):
        transaction.commit([add("m", part=8)], Operation.write("overwrite", dynamic_partition_overwrite=True))


def test_reads_of_a_table_that_does_not_exist(tmp_path: Path) -> None:
    by_predicate, by_files = (Table(tmp_path / "table").log().start_transaction() for _ in range(2))
    assert by_predicate.files_for_scan("part = 1", limit=3).num_rows == 0
    assert by_files.filter_files(new_files=[add("n", part=1)]).num_rows == 0
    assert by_predicate.read_predicates == ("part = 1",)
    assert by_files.read_predicates == ("the partitions of the new files",)
    assert by_predicate.read_files == by_files.read_files == frozenset()


def test_nothing_is_recorded_for_no_predicate(table: Table) -> None:
    transaction = table.log().start_transaction()
    transaction.track_read_predicates()
    assert transaction.read_predicates == ()


def test_statistics_that_do_not_tell_the_rows(table: Table) -> None:
    table.commit(add("d", part=3, stats="not json"))
    files = table.log().start_transaction().filter_files("part = 3", keep_num_records=True)
    assert files["num_records"].to_pylist() == [None]


class TestSplit:
    """Committing part of a transaction's work at a time."""

    def test_a_part_reads_less(self, table: Table) -> None:
        whole = table.log().start_transaction(policy=CommitPolicy(user_metadata="u"), isolation_level="WriteSerializable")
        whole.filter_files("part = 1")
        whole.txn_version("app")
        part = whole.split(["a"])
        assert (part.read_predicates, part.read_files, part.read_app_ids) == (whole.read_predicates, {"a"}, {"app"})
        assert part.read_version == whole.read_version
        assert part.txn_id != whole.txn_id
        assert part.policy is whole.policy
        rest = whole.split(["b"])
        table.commit(add("d", part=2))
        assert part.commit([add("a2", part=1)], DELETE) == 3
        with pytest.raises(ConcurrentAppendException):
            rest.commit([add("b2", part=1)], DELETE)
        assert whole.read_files == {"a", "b"}

    def test_only_files_that_were_read(self, table: Table) -> None:
        whole = table.log().start_transaction()
        whole.filter_files("part = 1")
        with pytest.raises(DeltaAssertionError, match="has not read the file c"):
            whole.split(["a", "c"])

    def test_not_after_a_metadata_change_nor_inside_an_active_transaction(self, table: Table) -> None:
        changed = table.log().start_transaction()
        changed.update_metadata(metadata(("part",), description="d"))
        with pytest.raises(DeltaAssertionError, match="changes the metadata"):
            changed.split([])
        with table.log().with_new_transaction() as active, pytest.raises(DeltaAssertionError, match="is active"):
            active.split([])

    def test_not_after_the_commit(self, table: Table) -> None:
        transaction = table.log().start_transaction()
        transaction.commit([add("z", part=1)], DELETE)
        with pytest.raises(DeltaAssertionError, match="already committed"):
            transaction.split([])
