"""Stages that rearrange rows beside stages that change them: ``dataChange`` of every file is true. Arrow does Spark's part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.payloads import DeclaredReads, StagedWrite
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    StageConflictException,
    TransactionAlreadyCommittedException,
)
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.spark.rewrite import FILE, NUMBER, WORD
from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.audit.limit_checks import statistics_checks
from airflow_delta.table.changes.plan import plan_changes
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.optimize.reorg import plan_reorg
from airflow_delta.table.operations.rewrite.delete import plan_delete, plan_truncate
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.stage.stage_view import SparkWork
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.transaction import Operation, OptimisticTransaction
from support.actions import column, schema
from support.table import Table

SCHEMA = schema(column("id", "long"), column("p", "string"))
FEED = {"delta.enableChangeDataFeed": "true"}
VECTORS = {"delta.enableDeletionVectors": "true"}
APPEND_UPSERT = [{"kind": "matched", "action": "update", "set": None}, {"kind": "notMatched", "action": "insert", "set": None}]


def write_rows(rows: pa.Table, directory: Path) -> dict[str, int]:
    """Write a file, and return what Spark would say of it."""
    pq.write_table(rows, directory / "0.parquet")
    return {"numFiles": 1, "numRows": rows.num_rows, "numBytes": (directory / "0.parquet").stat().st_size}


class Flow:
    """One transaction on a table with the ids 1 and 2 in two files of partition a, and 3 and 4 in two of b."""

    def __init__(self, path: Path, **configuration: str) -> None:
        self.table = Table(path / "table")
        handle = self.table.begin(schema=SCHEMA, partition_by=["p"], configuration=configuration)
        self.handle = handle
        self.staged: list[StagedWrite] = []
        for number in (1, 2, 3, 4):
            self.append(number, part="ab"[number > 2], after=())
        self.table.publish(handle, *self.staged)
        self.handle = self.table.begin()
        self.staged = []

    def kept(self, staged: StagedWrite) -> StagedWrite:
        self.staged.append(staged)
        return staged

    def name(self) -> str:
        return f"stage-{len(self.staged)}"

    def append(self, *ids: int, part: str = "a", **options: Any) -> StagedWrite:
        name = self.name()
        options = {"after": tuple(self.staged), **options}
        return self.kept(self.table.stage_rows(self.handle, ids, task_id=name, part=f"p={part}", **options))

    def plan(self, plan: Any, **options: Any) -> StagedWrite | SparkWork | StageRequest:
        view = self.table.view(self.handle, task_id=self.name(), after=options.pop("after", tuple(self.staged)))
        found: StagedWrite | SparkWork | StageRequest = plan(view, **options)
        return found

    def rearrange(self, plan: Any = plan_optimize, **options: Any) -> StagedWrite:
        """Stage an OPTIMIZE or a REORG."""
        work = self.plan(plan, **options)
        if isinstance(work, StagedWrite):
            return self.kept(work)
        assert isinstance(work, SparkWork)
        request = work.request
        assert request.rewrite is not None
        written = {}
        for number, members in enumerate(request.arguments["bins"]):
            paths = [self.table.path / request.rewrite.files[i].path for i in members]
            directory = self.table.path / request.directory / f"bin-{number}"
            directory.mkdir(parents=True)
            rows = pa.concat_tables(pq.read_table(path, partitioning=None) for path in paths)
            written[directory.name] = write_rows(rows, directory)
        report = StageReport(
            transaction_id=request.transaction_id,
            stage=request.stage,
            attempt=request.attempt,
            directories=tuple(written),
            written=written,
        )
        return self.kept(work.collect(request, report))

    def delete(self, predicate: str | None = None, plan: Any = plan_delete) -> StagedWrite:
        """Stage a DELETE that partitions decide."""
        staged = self.plan(plan, **({} if predicate is None else {"predicate": predicate}))
        assert isinstance(staged, StagedWrite)
        return self.kept(staged)

    def mark_first_row(self, path: str) -> StagedWrite:
        """Stage a DELETE that marks the first row of a file."""
        work = self.plan(plan_delete, predicate="id % 2 = 7")
        assert isinstance(work, SparkWork)
        request = work.request
        directory = self.table.path / request.directory / "vector"
        directory.mkdir(parents=True)
        words = {FILE: [f"file:{quote(f'{self.table.path}/{path}')}"], NUMBER: pa.array([0], pa.int64())}
        written = write_rows(pa.table({**words, WORD: pa.array([1], pa.int64())}), directory)
        report = StageReport(
            transaction_id=request.transaction_id,
            stage=request.stage,
            attempt=request.attempt,
            vector_directories=("vector",),
            written={"vector": written},
            rewritten_files=(path,),
            metrics={"numDeletedRows": 1},
            schema_string=request.schema_string or "",
            partition_columns=request.partition_columns,
        )
        return self.kept(work.collect(request, report))

    def commit(self) -> tuple[dict[bool, list[int]], dict[bool, list[int]]]:
        """Publish, and return the ids of the rows that were added and removed, by ``dataChange``."""
        version = self.table.publish(self.handle, *self.staged).version
        commit = self.table.actions(version)
        found: list[dict[bool, list[int]]] = []
        for kind in ("add", "remove"):
            ids: dict[bool, list[int]] = {}
            for action in commit.get(kind, []):
                read = pq.read_table(self.table.path / action["path"], partitioning=None).column("id").to_pylist()
                ids[action["dataChange"]] = sorted([*ids.get(action["dataChange"], []), *read])
            found.append(ids)
        return found[0], found[1]

    def rows(self) -> list[int]:
        paths = [self.table.path / file.path for file in self.table.log().update().add_files()]
        return sorted(number for path in paths for number in pq.read_table(path, partitioning=None).column("id").to_pylist())


@pytest.fixture
def flow(tmp_path: Path) -> Flow:
    return Flow(tmp_path)


@pytest.mark.parametrize("options", [{}, {"z_order_by": ["id"]}], ids=["bins", "zorder"])
def test_what_was_appended_stays_a_change(flow: Flow, options: Any) -> None:
    flow.append(10)
    flow.append(11)
    flow.rearrange(**options)
    added, removed = flow.commit()
    assert added == {False: [1, 2, 3, 4], True: [10, 11]}
    assert removed == {False: [1, 2, 3, 4]}
    assert flow.rows() == [1, 2, 3, 4, 10, 11]
    assert len(flow.table.log().update().add_files()) == 3, "the two appended files are one"


def test_a_lone_appended_file_is_left_where_it_is(flow: Flow) -> None:
    [path] = [action["add"]["path"] for action in flow.append(10).actions]
    flow.rearrange()
    assert flow.commit()[0] == {False: [1, 2, 3, 4], True: [10]}
    assert path in {file.path for file in flow.table.log().update().add_files()}


def test_rearranged_twice(flow: Flow) -> None:
    flow.rearrange(where="p = 'a'")
    flow.append(10)
    flow.append(11)
    flow.rearrange(z_order_by=["id"])
    flow.append(12)
    flow.rearrange()
    added, removed = flow.commit()
    assert (added, removed) == ({False: [1, 2, 3, 4], True: [10, 11, 12]}, {False: [1, 2, 3, 4]})


@pytest.mark.parametrize("configuration", [{}, FEED], ids=["", "feed"])
def test_what_a_delete_left(tmp_path: Path, configuration: Mapping[str, str]) -> None:
    flow = Flow(tmp_path, **configuration)
    flow.delete("p = 'b'")
    flow.rearrange()
    assert flow.commit() == ({False: [1, 2]}, {True: [3, 4], False: [1, 2]})
    if configuration:
        [changes] = plan_changes(flow.table.log(), starting_version=1).commits
        assert (len(changes.deletes), len(changes.inserts)) == (2, 0)


@pytest.mark.parametrize("plan", [plan_optimize, plan_reorg])
def test_a_file_with_rows_that_were_just_marked_is_left_alone(tmp_path: Path, plan: Any) -> None:
    flow = Flow(tmp_path, **VECTORS, **FEED)
    flow.append(20, 21, after=())
    flow.table.publish(flow.handle, *flow.staged)
    flow.handle, flow.staged = flow.table.begin(), []
    marked = next(f.path for f in flow.table.log().update().add_files() if '"minValues":{"id":20}' in (f.stats or ""))
    flow.mark_first_row(marked)
    flow.rearrange(plan)
    added, removed = flow.commit()
    assert (added[True], removed[True]) == ([20, 21], [20, 21]), "one file, which gets a deletion vector"
    assert added.get(False) == removed.get(False) == ([1, 2, 3, 4] if plan is plan_optimize else None)
    [vector] = [file.deletion_vector for file in flow.table.log().update().add_files() if file.path == marked]
    assert vector is not None
    assert vector.cardinality == 1


def conditional(plan: Any, **options: Any) -> Any:
    return lambda flow: flow.plan(plan, **options)


CHANGES = {
    "delete": conditional(plan_delete, predicate="id = 1"),
    "delete whole files": conditional(plan_delete, predicate="p = 'a'"),
    "truncate": conditional(plan_truncate),
    "update": conditional(plan_update, set={"id": "id + 1"}, predicate="p = 'a'"),
    "merge": conditional(plan_merge, condition="target.id = source.id", clauses=APPEND_UPSERT),
    "overwrite": conditional(plan_stage, mode="overwrite"),
    "replace where": conditional(plan_stage, mode="overwrite", replace_where="p = 'a'"),
    "replace rows": conditional(plan_stage, mode="overwrite", replace_where="id = 1"),
    "replace using": conditional(plan_stage, mode="overwrite", replace_using=["id"]),
    "dynamic": conditional(plan_stage, mode="dynamic"),
    "finished files": lambda flow: flow.append(9, mode="overwrite"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_rearranged_rows_are_not_changed_in_the_same_transaction(flow: Flow, change: Any) -> None:
    flow.rearrange(where="p = 'a'")
    with pytest.raises(StageConflictException, match=r"stage stage-0 \(OPTIMIZE\).*only rearranged.*Run stage-0 after it"):
        change(flow)


def test_other_rows_are(flow: Flow) -> None:
    flow.rearrange(where="p = 'a'")
    assert isinstance(flow.plan(plan_delete, predicate="id = 3 AND p = 'b'"), SparkWork)
    insert = [{"kind": "notMatched", "action": "insert", "set": None}]
    assert isinstance(flow.plan(plan_merge, condition="target.id = source.id", clauses=insert), SparkWork)
    flow.append(10)
    flow.delete("p = 'b'")
    assert flow.commit() == ({False: [1, 2], True: [10]}, {False: [1, 2], True: [3, 4]})


def test_rows_that_a_write_says_are_the_same(flow: Flow) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match="append with data_change=False"):
        flow.plan(plan_stage, data_change=False)
    flow.append(10)
    for options in ({"mode": "overwrite"}, {"mode": "dynamic"}, {"mode": "overwrite", "replace_where": "p = 'a'"}):
        with pytest.raises(StageConflictException, match="staged as a change of rows"):
            flow.plan(plan_stage, data_change=False, **options)
    assert isinstance(flow.plan(plan_stage, mode="overwrite", replace_where="p = 'b'", data_change=False), StageRequest)


def test_rows_of_such_a_write_are_not_changed_either(flow: Flow) -> None:
    write = flow.append(1, 2, mode="overwrite", replace_where="p = 'a'")
    flow.staged = [same_rows(write)]
    with pytest.raises(StageConflictException, match=r"\(WRITE with data_change=False\).*only rearranged"):
        flow.plan(plan_delete, predicate="id = 1")
    flow.append(10)
    assert flow.commit() == ({False: [1, 2], True: [10]}, {False: [1, 2]})


def test_files_that_a_stage_before_has_removed_are_not_such_a_writes(flow: Flow) -> None:
    """It was planned on what the DELETE left, which is another partition's."""
    deleted = flow.delete("p = 'b'")
    write = flow.append(1, 2, mode="overwrite", replace_where="p = 'a' OR p = 'b'")
    flow.staged = [deleted, same_rows(write)]
    assert flow.commit() == ({False: [1, 2]}, {True: [3, 4], False: [1, 2]})


@pytest.mark.parametrize("second", [12, None], ids=["appends", "rearranges"])
def test_rows_that_a_write_left_are_not_its_to_replace(flow: Flow, second: int | None) -> None:
    """``rerun_policy='replace'`` takes back what a key has brought, not what it has put into other files."""
    flow.handle = flow.table.begin(transaction_key="k")
    flow.staged = [same_rows(flow.append(1, 2, mode="overwrite", replace_where="p = 'a'"))]
    flow.append(10)
    flow.commit()
    with pytest.raises(TransactionAlreadyCommittedException, match="rows that were there before"):
        flow.table.begin(transaction_key="k", rerun_policy="replace")
    flow.handle, flow.staged = flow.table.begin(transaction_key="k", rerun_policy="replace", takes_back=False), []

    def again() -> None:
        if second is None:
            flow.rearrange()
        else:
            flow.append(second)
        flow.commit()

    with pytest.raises(TransactionAlreadyCommittedException, match="rows that were there before"):
        again()
    assert flow.rows() == [1, 2, 3, 4, 10]


def same_rows(write: StagedWrite, **fields: Any) -> StagedWrite:
    """Return a staged write that says of all its files that they change nothing."""
    actions = tuple({kind: {**action, "dataChange": False}} for line in write.actions for kind, action in line.items())
    return replace(write, actions=actions, **{"data_change": False, **fields})


def test_stages_side_by_side_that_disagree(flow: Flow) -> None:
    one = flow.append(1, 2, mode="overwrite", replace_where="p = 'a'", after=())
    other = same_rows(flow.append(1, 2, mode="overwrite", replace_where="p = 'a'", after=()))
    for staged in ([one, other], [other, one]):
        with pytest.raises(StageConflictException, match="both overwrite partition"):
            flow.table.publish(flow.handle, *staged)
    assert len(flow.table.versions()) == 1


@pytest.mark.parametrize("turned", [False, True])
def test_rows_are_moved_beside_an_append_that_has_read_them(flow: Flow, turned: bool) -> None:
    """Moving rows reads nothing that others could add, and changes nothing that others have read."""
    moved = flow.rearrange(where="p = 'a'")
    added = flow.append(10, after=())
    read = DeclaredReads(predicates=("p = 'a'",), scanned=("p = 'a'",))
    stages = [moved, replace(added, reads=read)]
    flow.table.publish(flow.handle, *(stages[::-1] if turned else stages))
    assert flow.rows() == [1, 2, 3, 4, 10]


def test_rows_that_are_moved_put_no_stage_before_another(flow: Flow) -> None:
    """The append comes before the delete, whose rows it has read, and the delete before the moves, which were planned on it."""
    gone = flow.delete("p = 'b'")
    moved = flow.rearrange(where="p = 'a'")
    added = replace(flow.append(10, after=()), reads=DeclaredReads(predicates=("p = 'b'",), scanned=("p = 'b'",)))
    flow.table.publish(flow.handle, gone, moved, added)
    assert flow.rows() == [1, 2, 10]


def test_stages_of_another_release_are_refused_by_the_commit(flow: Flow) -> None:
    """They say of all files of an OPTIMIZE that they change nothing."""
    flow.append(10)
    flow.append(11)
    flow.staged[-1:] = [flow.staged[-1], same_rows(flow.rearrange(), data_change=True)]
    del flow.staged[2:-1]
    with pytest.raises(StageConflictException, match="rearranges rows that another stage changed"):
        flow.commit()
    assert len(flow.table.versions()) == 1


def test_an_audit_sees_the_staged_rows(flow: Flow) -> None:
    flow.append(10)
    flow.append(999)
    flow.rearrange()
    audited = AuditedTable(flow.table.log(), flow.handle, flow.staged)
    [outcome] = statistics_checks(value_range={"id": {"max": 100}}).run(audited)
    assert (outcome.passed, audited.rows_staged, audited.rows_after) == (False, 2, 6)
    assert [file.data_change for file in audited.staged] == [True]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("append", conditional(plan_update, set={"id": "id + 1"})),
        ("append", conditional(plan_delete, predicate="id = 1")),
        ("append", conditional(plan_stage, mode="overwrite", replace_where="id = 1")),
        ("delete", conditional(plan_merge, condition="target.id = source.id", clauses=APPEND_UPSERT)),
    ],
)
def test_changes_that_the_feed_cannot_tell_together_are_refused_when_planned(tmp_path: Path, first: str, then: Any) -> None:
    flow = Flow(tmp_path, **FEED)
    flow.append(10) if first == "append" else flow.delete("p = 'b'")
    with pytest.raises(StageConflictException, match="the change data feed is on"):
        then(flow)
    flow.rearrange()
    assert flow.commit()[0][False] == ([1, 2, 3, 4] if first == "append" else [1, 2])


# -- the commit itself ---------------------------------------------------------------------------------------------------------


def test_files_that_claim_the_same_rows_hold_as_many(flow: Flow) -> None:
    log = flow.table.log()
    first, second, *_ = log.update().add_files()

    def one(path: str, rows: int | None, *, data_change: bool) -> AddFile:
        stats = None if rows is None else f'{{"numRecords":{rows}}}'
        return msgspec.structs.replace(first, path=path, stats=stats, data_change=data_change)

    def commit(*actions: Any) -> None:
        OptimisticTransaction(log).commit(list(actions), Operation.write())

    change = one("new", 1, data_change=True)
    for actions in (
        [one("x", 2, data_change=False), first.remove(1, data_change=False)],
        [one("x", 1, data_change=False)],
        [one("x", None, data_change=False)],
        [second.remove(1, data_change=False)],
    ):
        with pytest.raises(DeltaIllegalStateException, match="do not hold the same rows"):
            commit(change, *actions)
    assert len(flow.table.versions()) == 1
    commit(change, one("x", 1, data_change=False), first.remove(1, data_change=False))
    commit(one("y", None, data_change=False), second.remove(1, data_change=False), msgspec.structs.replace(change, path="z"))
