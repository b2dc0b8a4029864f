"""Stages are found by what they touch and files listed once, with the result of comparing all pairs and listing for each."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_delta.contract.payloads import DeclaredReads, StagedWrite, TransactionHandle
from airflow_delta.exceptions import StageConflictException
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.snapshot import Snapshot
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.stage import conflicts, net_effect
from airflow_delta.table.stage.conflicts import check_stages
from airflow_delta.table.stage.earlier_stages import stage_id
from airflow_delta.table.stage.meetings import Meetings
from airflow_delta.table.stage.net_effect import find_replaced
from airflow_delta.table.stage.view import TransactionView, view_of
from airflow_delta.table.stage.whole_files import whole_files
from airflow_delta.transaction import OptimisticTransaction
from airflow_delta.transaction.conflicts.checker import ConflictChecker
from support.table import Table

PARTITIONS = [("a", 1), ("a", 2), ("b", 1), ("b", 2), (None, 1), ("", 2)]
PREDICATES = {
    "p = 'a'": lambda p, q: p == "a",
    "p = 'b'": lambda p, q: p == "b",
    "p = 'a' AND q = 1": lambda p, q: (p, q) == ("a", 1),
    "p = 'a' AND q = 2": lambda p, q: (p, q) == ("a", 2),
    "q = 1 AND p IN ('a', 'b')": lambda p, q: q == 1 and p in ("a", "b"),
    "q IN (2, 3)": lambda p, q: q == 2,
    "p IS NULL": lambda p, q: p is None,
    "p <=> 'b' OR (p = 'a' AND q = 1)": lambda p, q: p == "b" or (p, q) == ("a", 1),
    "p = 'a' OR q = 2": lambda p, q: p == "a" or q == 2,
    "NOT (p = 'a')": lambda p, q: p not in (None, "a"),
    "q > 1": lambda p, q: q > 1,
    "p = 'c'": lambda p, q: False,
    "true": lambda p, q: True,
}
READS = [*PREDICATES, "id = 1", "p = 'a' AND id = 1", "id > 5 AND q = 2", "upper(p) = 'A'"]


class Plan(NamedTuple):
    """A stage: its task, what it does, by which predicate, to which partitions, and what its task has read."""

    task: int
    kind: str
    predicate: str
    partitions: tuple[int, ...]
    reads: tuple[str, ...]
    after: bool


PLANS = st.builds(
    Plan,
    st.integers(0, 3),
    st.sampled_from(["append", "overwrite", "overwrite", "whole", "dynamic", "dynamic", "delete"]),
    st.sampled_from(list(PREDICATES)),
    st.lists(st.integers(0, len(PARTITIONS) - 1), max_size=3, unique=True).map(tuple),
    st.lists(st.sampled_from(READS), max_size=1).map(tuple),
    st.integers(0, 5).map(lambda drawn: drawn == 0),
)


def rows_of(partitions: list[tuple[str | None, int]]) -> pa.Table:
    names = [p or None for p, _q in partitions]
    numbers = pa.array([q for _p, q in partitions], pa.int32())
    return pa.table({"id": pa.array(range(len(partitions)), pa.int64()), "p": pa.array(names, pa.string()), "q": numbers})


def create(table: Table) -> TransactionHandle:
    """Create a table with a file in each partition, and two in some; return a transaction."""
    for partitions in (PARTITIONS, PARTITIONS[:3]):
        table.write(rows_of(partitions), begin={"partition_by": ["p", "q"]})
    return table.begin()


def stage_of(table: Table, handle: TransactionHandle, plan: Plan, number: int, earlier: list[StagedWrite]) -> StagedWrite:
    """Carry out a plan."""
    options = {"task_id": f"task-{plan.task}", "map_index": number, "after": []}
    if plan.after and earlier:
        chain = {*earlier[-1].after, stage_id(earlier[-1])}
        options["after"] = [write.to_dict() for write in earlier if stage_id(write) in chain]
        options |= {"task_id": f"last-{number}", "map_index": -1}
    partitions = [PARTITIONS[at] for at in plan.partitions]
    match plan.kind:
        case "delete":
            return table.operate(handle, plan_delete, predicate=plan.predicate, **options)
        case "overwrite":
            partitions = [each for each in partitions if PREDICATES[plan.predicate](each[0] or None, each[1])]
            options |= {"mode": "overwrite", "replace_where": plan.predicate}
        case "whole":
            options["mode"] = "overwrite"
        case "dynamic":
            options["mode"] = "dynamic"
    staged = table.stage(handle, rows_of(partitions), **options)
    read = DeclaredReads(predicates=plan.reads, scanned=plan.reads)
    return replace(staged, reads=read) if plan.reads else staged


class EveryPair(Meetings):
    """Finds all stages."""

    def adding(self, stage, reads):
        return self._stages

    def touching(self, stage, reads):
        return self._stages

    def removing(self, paths):
        wanted = set(paths)
        return [other for other in self._stages if any(file.path in wanted for file in other.removed)]


def listed_singly(view, reads, stages):
    return {key: files for stage in stages for key, files in whole_files(view, reads, [stage]).items()}


def outcome(view: TransactionView) -> tuple[object, ...]:
    """Return what the commit would do, as far as stages decide: what it refuses, or adds, removes and has read."""
    try:
        check_stages(view)
        txn = OptimisticTransaction(view.log, view.snapshot)
        effect = find_replaced(view, txn)
    except StageConflictException as error:
        return (str(error),)
    reads = txn._reads.recorded
    removed = sorted((remove.path, remove.data_change) for remove in effect.removes)
    return sorted(add.path for add in effect.adds), removed, reads.paths(), set(reads.predicates)


@pytest.fixture(scope="module")
def partitioned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, TransactionHandle]:
    table = Table(tmp_path_factory.mktemp("meetings") / "table")
    return table, create(table)


@settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(plans=st.lists(PLANS, min_size=2, max_size=6))
def test_stages_are_found_as_if_all_pairs_were_compared(partitioned: tuple[Table, TransactionHandle], plans: list[Plan]) -> None:
    table, handle = partitioned
    staged: list[StagedWrite] = []
    for number, plan in enumerate(plans):
        staged.append(stage_of(table, handle, plan, number, staged))
    try:
        found = outcome(view_of(table.log(), handle, staged))
    except StageConflictException:  # a file that two stages list
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(conflicts, "Meetings", EveryPair)
        patched.setattr(conflicts, "whole_files", listed_singly)
        patched.setattr(net_effect, "whole_files", listed_singly)
        assert outcome(view_of(table.log(), handle, staged)) == found


NUMBER = 30

SHAPES = {
    "one mapped overwrite": lambda n: {"task_id": "parts", "map_index": n, "mode": "overwrite", "replace_where": f"p = 'd{n}'"},
    "an overwrite in each task": lambda n: {
        "task_id": f"task-{n}",
        "mode": "overwrite",
        "replace_where": f"p = 'd{n}' AND q = {n}",
    },
    "one mapped dynamic overwrite": lambda n: {"task_id": "parts", "map_index": n, "mode": "dynamic"},
    "a dynamic overwrite in each task": lambda n: {"task_id": f"task-{n}", "mode": "dynamic"},
}


@pytest.mark.parametrize("has_checkpoint", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_overwrites_of_partitions_of_their_own_are_compared_with_none(tmp_path, monkeypatch, shape, has_checkpoint):
    """And the files of the table are listed once."""
    table, numbers = Table(tmp_path / "table"), list(range(NUMBER))
    table.write(rows_of([(f"d{n}", n) for n in numbers]), begin={"partition_by": ["p", "q"]})
    before = table.live()
    if has_checkpoint:
        table.log().checkpoint()
    handle = table.begin()
    staged = [table.stage(handle, rows_of([(f"d{n}", n)] * 2), **SHAPES[shape](n)) for n in numbers]
    asked: list[str] = []
    for owner, name in (
        (conflicts._Stage, "is_apart"),
        (ConflictChecker, "check_files"),
        (Snapshot, "files"),
        (Snapshot, "add_files"),
    ):
        real = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *given, _real=real, _name=name, **more: asked.append(_name) or _real(*given, **more)
        )
    table.publish(handle, *staged)
    assert asked == ["files"]
    assert len(table.live()) == NUMBER
    assert table.live().isdisjoint(before)
    assert len(table.rows()) == 2 * NUMBER


def test_parts_of_an_overwrite_with_one_predicate_ask_each_partition_once(tmp_path, monkeypatch):
    table, numbers = Table(tmp_path / "table"), list(range(NUMBER))
    table.write(rows_of([(f"d{n}", n) for n in numbers]), begin={"partition_by": ["p", "q"]})
    handle = table.begin()
    parts = {"task_id": "parts", "mode": "overwrite", "replace_where": "p LIKE 'd%'"}
    staged = [table.stage(handle, rows_of([(f"d{n}", n)]), map_index=n, **parts) for n in numbers]
    asked: list[object] = []
    real = Predicate._may_hold
    monkeypatch.setattr(Predicate, "_may_hold", lambda *given: asked.append(given) or real(*given))
    table.publish(handle, *staged)
    assert len(asked) <= NUMBER
    assert len(table.rows()) == NUMBER


def test_an_overwrite_that_names_no_partitions_is_compared_with_each_other_one_once(tmp_path, monkeypatch):
    table, numbers = Table(tmp_path / "table"), list(range(NUMBER))
    table.write(rows_of([(f"d{n}", n) for n in numbers]), begin={"partition_by": ["p", "q"]})
    handle = table.begin()
    shape = SHAPES["an overwrite in each task"]
    staged = [table.stage(handle, rows_of([(f"d{n}", n)]), **shape(n)) for n in numbers]
    staged.append(table.stage(handle, rows_of([("x", 1)]), task_id="other", mode="overwrite", replace_where="p LIKE 'x%'"))
    compared: list[object] = []
    real = ConflictChecker.check_files
    monkeypatch.setattr(ConflictChecker, "check_files", lambda *given: compared.append(given) or real(*given))
    check_stages(view_of(table.log(), handle, staged))
    assert len(compared) == 0  # partitions are asked one by one, files are not looked at
    staged.append(table.stage(handle, rows_of([("d3", 3)]), task_id="again", mode="overwrite", replace_where="p LIKE 'd3'"))
    with pytest.raises(StageConflictException, match=r"task-3 .* and again .* both overwrite partition \[p=d3, q=3\]"):
        check_stages(view_of(table.log(), handle, staged))
    assert len(compared) == 1
