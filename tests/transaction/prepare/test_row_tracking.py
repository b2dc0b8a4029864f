"""Row ids and row commit versions: fresh ones, kept ones, and those that a race takes away (Delta's row tracking suites)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import (
    ConcurrentDeleteDeleteException,
    DeltaError,
    DeltaIllegalStateException,
    MetadataChangedException,
    RowIdAssignmentWithoutStatsException,
)
from airflow_delta.log.actions.actions import AddFile, DomainMetadata
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction
from airflow_delta.transaction.policy import ConflictOptions
from support.actions import add, remove
from support.table import Table, metadata

SUPPORTED = {"delta.feature.rowTracking": "supported"}
ENABLED = {"delta.enableRowTracking": "true"}
BACKFILL = Operation("ROW TRACKING BACKFILL")
UNBACKFILL = Operation("ROW TRACKING UNBACKFILL")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table(tmp_path / "table")
    table.create(configuration=SUPPORTED)
    return table


def ids(table: Table, version: int) -> dict[str, tuple[int | None, int | None]]:
    """Base row id and row commit version of the files that a version adds."""
    adds = [line["add"] for line in table.lines(version) if "add" in line]
    return {add["path"]: (add.get("baseRowId"), add.get("defaultRowCommitVersion")) for add in adds}


def keys(table: Table, version: int) -> list[str]:
    return [next(iter(line)) for line in table.lines(version)]


def mark(table: Table, version: int) -> int | None:
    """The high-water mark that a version sets."""
    domains = [line["domainMetadata"] for line in table.lines(version) if "domainMetadata" in line]
    return json.loads(domains[0]["configuration"])["rowIdHighWaterMark"] if domains else None


def test_new_files_get_ids_in_the_order_of_the_list(table: Table) -> None:
    table.commit(add("a", records=10), add("b", records=5), add("c", records=1))
    assert ids(table, 1) == {"a": (0, 1), "b": (10, 1), "c": (15, 1)}
    assert keys(table, 1) == ["commitInfo", "add", "add", "add", "domainMetadata"]
    assert mark(table, 1) == 15
    table.commit(add("d", records=3))
    assert ids(table, 2) == {"d": (16, 2)}
    assert mark(table, 2) == 18
    assert table.info(2)["isBlindAppend"] is True


def test_ids_are_given_although_the_property_is_off_and_not_where_the_feature_is_missing(tmp_path: Path) -> None:
    plain = Table(tmp_path / "plain")
    plain.create()
    plain.commit(add("a", records=10))
    assert ids(plain, 1) == {"a": (None, None)}
    assert mark(plain, 1) is None


def test_ids_of_the_first_commit(tmp_path: Path) -> None:
    table = Table(tmp_path / "created")
    transaction = table.log().start_transaction()
    transaction.update_metadata_for_new_table(metadata(configuration=ENABLED))
    transaction.commit([add("a", records=4)], Operation.write())
    assert ids(table, 0) == {"a": (0, 0)}
    assert mark(table, 0) == 3


def test_files_that_were_there_keep_their_ids(table: Table) -> None:
    table.commit(add("a", records=10))
    known = table.log().snapshot.add_files()[0]
    assert (known.base_row_id, known.default_row_commit_version) == (0, 1)
    table.commit(known.remove(1), add("a2", records=5, base_row_id=0, default_row_commit_version=1))
    assert ids(table, 2) == {"a2": (0, 1)}
    assert mark(table, 2) is None


def test_a_commit_without_files_does_not_move_the_mark(table: Table) -> None:
    table.commit()
    assert keys(table, 1) == ["commitInfo"]


def test_a_file_that_does_not_say_its_rows_is_refused(table: Table) -> None:
    with pytest.raises(RowIdAssignmentWithoutStatsException, match="numRecords"):
        table.commit(add("a"))
    assert table.versions() == [0]


def test_nobody_else_sets_the_mark(table: Table) -> None:
    own = DomainMetadata(domain="delta.rowTracking", configuration='{"rowIdHighWaterMark":99}', removed=False)
    with pytest.raises(DeltaIllegalStateException, match="Only the engine sets"):
        table.commit(own)


def test_suspended_tables_give_no_ids(tmp_path: Path) -> None:
    table = Table(tmp_path / "suspended")
    table.create(configuration=SUPPORTED)
    before = next(line["metaData"] for line in table.lines(0) if "metaData" in line)
    suspended = {**before, "configuration": {**before["configuration"], "delta.rowTrackingSuspended": "true"}}
    table.put_foreign(1, {"commitInfo": {"operation": "SET TBLPROPERTIES"}}, {"metaData": suspended})
    table.commit(add("a", records=10, base_row_id=7, default_row_commit_version=1))
    assert ids(table, 2) == {"a": (None, None)}
    assert mark(table, 2) is None


# -- races ----------------------------------------------------------------------------------------------------------------------


def race(table: Table) -> OptimisticTransaction:
    return table.log().start_transaction()


def test_overlapping_ids_are_given_anew(table: Table) -> None:
    table.commit(add("old", records=100))
    ours = race(table)
    table.commit(add("w", records=7))
    assert ours.commit([add("a", records=10), add("b", records=5)], Operation.write()) == 3
    assert ids(table, 2) == {"w": (100, 2)}
    assert ids(table, 3) == {"a": (107, 3), "b": (117, 3)}
    assert mark(table, 3) == 121
    assert keys(table, 3) == ["commitInfo", "domainMetadata", "add", "add"], "before all others after a race"


def test_several_winners(table: Table) -> None:
    ours = race(table)
    for number in range(5):
        table.commit(add(f"w{number}", records=10))
    table.commit()
    assert ours.commit([add("a", records=10)], Operation.write()) == 7
    assert ids(table, 7) == {"a": (50, 7)}
    assert mark(table, 7) == 59
    snapshot = table.log().snapshot
    files = sorted(snapshot.add_files(), key=lambda file: file.base_row_id or 0)
    assert [file.base_row_id for file in files] == [0, 10, 20, 30, 40, 50]


def test_kept_ids_stay_in_a_race(table: Table) -> None:
    table.commit(add("a", records=10), add("b", records=10))
    ours = race(table)
    known = {file.path: file for file in ours.snapshot.add_files()}
    ours.track_files_read(["a"])
    table.commit(add("w", records=5))
    again = add("a2", records=10, base_row_id=0, default_row_commit_version=1, data_change=False)
    moved = known["a"].remove(1, data_change=False)
    assert ours.commit([moved, again, add("fresh", records=3, data_change=False)], Operation.optimize()) == 3
    assert ids(table, 3) == {"a2": (0, 1), "fresh": (25, 3)}


def test_the_mark_is_written_after_a_race_even_when_it_has_not_moved(table: Table) -> None:
    table.commit(add("a", records=10))
    ours = race(table)
    table.commit(add("w", records=1))
    assert ours.commit([], Operation.manual_update()) == 3
    assert keys(table, 3) == ["commitInfo", "domainMetadata"]
    assert mark(table, 3) == 10


def test_what_was_committed_is_what_the_outcome_tells(table: Table) -> None:
    seen: list[Any] = []

    class Hook:
        name = "spy"

        def run(self, transaction: Any, version: int, actions: Any) -> None:
            seen.extend(actions)

    ours = race(table)
    ours.register_post_commit_hook(Hook())  # type: ignore[arg-type]
    table.commit(add("w", records=7))
    ours.commit([add("a", records=10)], Operation.write())
    assert [type(action).__name__ for action in seen] == ["CommitInfo", "DomainMetadata", "AddFile"]
    assert seen[2].base_row_id == 7


def test_the_feature_that_a_winner_brings(tmp_path: Path) -> None:
    table = Table(tmp_path / "upgraded")
    table.create()
    ours, mute = race(table), race(table)
    upgrade = {"minReaderVersion": 1, "minWriterVersion": 7}
    upgrade |= {"writerFeatures": ["appendOnly", "invariants", "domainMetadata", "rowTracking"]}  # type: ignore[dict-item]
    table.put_foreign(1, {"commitInfo": {"operation": "UPGRADE PROTOCOL"}}, {"protocol": upgrade})
    assert ours.commit([add("a", records=10)], Operation.write()) == 2
    assert ids(table, 2) == {"a": (0, 2)}
    assert mark(table, 2) == 9
    with pytest.raises(RowIdAssignmentWithoutStatsException):
        mute.commit([add("b")], Operation.write())


def enable(table: Table, **tags: str) -> None:
    """Enable row tracking as Delta does: its property and the names of the materialised columns."""
    before = next(line["metaData"] for line in table.lines(0) if "metaData" in line)
    names = {f"delta.rowTracking.materialized{name}ColumnName": f"_{name}" for name in ("RowId", "RowCommitVersion")}
    enabled = {**before, "configuration": {**before["configuration"], **ENABLED, **names}}
    info = {"operation": "SET TBLPROPERTIES", "timestamp": 1, "tags": tags or None}
    table.put_foreign(table.versions()[-1] + 1, {"commitInfo": info}, {"metaData": enabled})


@pytest.mark.parametrize("resolve", [True, False])
def test_enablement_alone_is_lived_with(table: Table, resolve: bool) -> None:
    policy = CommitPolicy(conflicts=ConflictOptions(resolve_feature_enablement=resolve))
    ours = table.log().start_transaction(policy=policy)
    enable(table, rowTrackingEnablementOnly="true")
    assert ours.commit([add("a", records=10)], Operation.write(), tags={"k": "v"}) == 2
    assert table.info(2)["tags"] == {"k": "v", "delta.rowTracking.preserved": "false"}
    assert ours.outcome is not None
    assert ours.outcome.commit_info.tags == {"k": "v", "delta.rowTracking.preserved": "false"}


def test_enablement_without_its_tag_is_a_conflict_where_changes_are_not_resolved(table: Table) -> None:
    policy = CommitPolicy(conflicts=ConflictOptions(resolve_feature_enablement=False))
    ours = table.log().start_transaction(policy=policy)
    enable(table)
    with pytest.raises(MetadataChangedException):
        ours.commit([add("a", records=10)], Operation.write())


# -- backfill -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def unfilled(tmp_path: Path) -> Table:
    """A table whose files are older than the feature."""
    table = Table(tmp_path / "unfilled")
    table.create()
    table.commit(add("a", records=10), add("b", records=10))
    transaction = table.log().start_transaction()
    before = transaction.snapshot.metadata
    from msgspec.structs import replace

    transaction.update_metadata(replace(before, configuration={**before.configuration, **SUPPORTED}))
    transaction.commit([], Operation("UPGRADE PROTOCOL", {"newProtocol": {}}))
    return table


def backfill(transaction: OptimisticTransaction) -> list[AddFile]:
    from msgspec.structs import replace

    files = sorted(transaction.snapshot.add_files(), key=lambda file: file.path)
    transaction.track_files_read([file.path for file in files])
    return [replace(file, data_change=False) for file in files]


def test_a_backfill_leaves_out_what_others_have_touched(unfilled: Table) -> None:
    ours = race(unfilled)
    files = backfill(ours)
    unfilled.commit(remove("a"), add("c", records=3))
    assert ours.commit(files, BACKFILL) == 4
    assert ids(unfilled, 3) == {"c": (0, 3)}
    assert ids(unfilled, 4) == {"b": (3, 4)}
    assert mark(unfilled, 4) == 12
    assert unfilled.live() == {"b", "c"}


def test_a_backfill_holds_nothing_but_files(unfilled: Table) -> None:
    ours = race(unfilled)
    files = backfill(ours)
    unfilled.commit(add("c", records=3))
    with pytest.raises(DeltaIllegalStateException, match="may only hold files and the row id high-water mark, not"):
        ours.commit([*files[:1], remove("b", data_change=False)], BACKFILL)


def test_a_delete_takes_over_what_a_backfill_gave(unfilled: Table) -> None:
    ours, filler = race(unfilled), race(unfilled)
    ours.filter_files("value = 1")
    filler.commit(backfill(filler), BACKFILL)
    assert ours.commit([remove("a")], Operation.delete(["value = 1"])) == 4
    removed = next(line["remove"] for line in unfilled.lines(4) if "remove" in line)
    assert (removed["baseRowId"], removed["defaultRowCommitVersion"]) == (0, 3)


def test_a_read_of_everything_does_not_conflict_with_a_backfill(unfilled: Table) -> None:
    ours, filler = race(unfilled), race(unfilled)
    ours.filter_files()
    filler.commit(backfill(filler), BACKFILL)
    assert ours.commit([add("c", records=3)], Operation.write()) == 4
    assert ids(unfilled, 4) == {"c": (20, 4)}


def test_an_unbackfill_takes_ids_away_that_were_given_meanwhile(unfilled: Table) -> None:
    ours = race(unfilled)
    files = backfill(ours)
    unfilled.commit(add("c", records=3), remove("a"))
    assert ours.commit(files, UNBACKFILL) == 4
    adds = {line["add"]["path"]: line["add"] for line in unfilled.lines(4) if "add" in line}
    assert adds.keys() == {"b", "c"}
    assert adds["c"]["dataChange"] is False


def test_an_unbackfill_and_a_backfill_at_once(unfilled: Table) -> None:
    ours, filler = race(unfilled), race(unfilled)
    files = backfill(ours)
    filler.commit(backfill(filler), BACKFILL)
    with pytest.raises(DeltaError, match="DELTA_ROW_TRACKING_BACKFILL_RUNNING_CONCURRENTLY_WITH_UNBACKFILL"):
        ours.commit(files, UNBACKFILL)


def test_two_deletes_of_one_file_still_conflict(unfilled: Table) -> None:
    ours = race(unfilled)
    unfilled.commit(remove("a"))
    with pytest.raises(ConcurrentDeleteDeleteException):
        ours.commit([remove("a")], Operation.manual_update())


def test_a_commit_that_recognises_itself_tells_what_is_in_the_log(table: Table) -> None:
    first, second = (table.log().start_transaction(txn_id="same") for _ in range(2))
    table.commit(add("w", records=7))
    assert first.commit([add("a", records=10)], Operation.write(), user_metadata="first") == 2
    seen: list[Any] = []

    class Hook:
        name = "spy"

        def run(self, transaction: Any, version: int, actions: Any) -> None:
            seen.extend(actions)

    second.register_post_commit_hook(Hook())  # type: ignore[arg-type]
    assert second.commit([add("a", records=10)], Operation.write(), user_metadata="second") == 2
    assert second.outcome is not None
    assert second.outcome.recognised
    assert second.outcome.commit_info.user_metadata == "first"
    assert [file.base_row_id for file in seen if isinstance(file, AddFile)] == [7]
