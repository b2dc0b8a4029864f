"""Transactions of several stages that do not know each other: what lands is what some order of the stages leaves, one by one."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from pathlib import Path

import pytest

from airflow_delta.exceptions import StageConflictException
from airflow_delta.log import SetTransaction
from airflow_delta.table.commit.features import feature_tags
from airflow_delta.table.commit.operation import operation_of
from airflow_delta.table.stage.conflicts import check_stages
from airflow_delta.table.stage.load import StageActions
from airflow_delta.table.stage.net_effect import find_replaced
from airflow_delta.table.stage.view import ReadVersion, TransactionView
from airflow_delta.transaction import OptimisticTransaction
from faults.rows.commits import handle_of, policy_of
from faults.rows.draws import Draw
from faults.rows.files import HistoryTable
from faults.rows.model import Step
from faults.rows.plans import Planner
from faults.rows.values import Row, counted

KINDS = {
    "append": 2.0, "delete": 4.0, "update": 4.0, "merge": 4.0, "replace": 2.0, "replace_partitions": 1.5, "replace_using": 1.0,
    "look": 5.0, "optimize": 1.5,
}  # fmt: skip
TRANSACTIONS = 4
"""Of each table, one after the other."""


@dataclass
class Judged:
    """Runs transactions on one table.

    :ivar landed: for each pair of operations in one transaction, how many landed. So is ``refused``.
    """

    directory: Path
    name: str
    landed: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def run(self) -> None:
        draw = Draw(self.name, "rows")
        history = draw.history()
        self.table = HistoryTable(self.directory, dataclasses.replace(history.setting, level="Serializable", interval=None))
        self.table.create_with(history.first)
        self.table.reader.advance()
        for number in range(TRANSACTIONS):
            count = draw.random.choice((2, 2, 2, 3, 4))
            steps = [draw.step(0, KINDS, inner=True) for _ in range(count)]
            self._transaction([dataclasses.replace(step, rust=False, also=None) for step in steps], f"{self.name}-{number}")

    def _transaction(self, steps: Sequence[Step], name: str) -> None:
        pairs = [tuple(sorted(pair)) for pair in combinations([step.operation.kind for step in steps], 2)]
        if not self._commit(steps, name):
            self.refused.update(pairs)
            return
        self.landed.update(pairs)
        before = self.table.reader.versions[-1].rows
        self.table.reader.advance()
        found = counted(self.table.reader.versions[-1].rows)
        if found not in map(counted, _in_each_order(before, steps)):
            shown = "\n  ".join(map(str, steps))
            self.wrong.append(f"{name}: {self.table.setting}\n  {shown}\n  before {before}\n  after {list(found.elements())}")

    def _commit(self, steps: Sequence[Step], name: str) -> bool:
        """Plan a stage for each step on the latest version, and commit all as one version, as the tasks of a Dag do."""
        log = self.table.log()
        snapshot = log.update()
        txn = OptimisticTransaction(
            log, snapshot, txn_id=str(uuid.uuid5(uuid.NAMESPACE_URL, name)), policy=policy_of(self.table.setting, steps[0])
        )
        handle = handle_of(self.table, log, snapshot, txn, steps[0])
        stages: list[StageActions] = []
        for number, step in enumerate(steps):
            stages += Planner(self.table, log, snapshot, handle, step, f"stage-{number}").plan()
        removed = [remove.path for stage in stages for remove in stage.removes]
        if len(set(removed)) < len(removed):  # refused when the stages are loaded
            return False
        view = TransactionView(log=log, handle=handle, read=ReadVersion(log, handle, snapshot), stages=tuple(stages))
        try:
            check_stages(view)
            replaced = find_replaced(view, txn)
        except StageConflictException:
            return False
        key = SetTransaction(app_id=handle.app_id, version=handle.txn_version, last_updated=1)
        operation = operation_of(txn.metadata, view.stages, replaced)
        txn.commit([key, *replaced.adds, *replaced.removes], operation, tags=feature_tags(txn, view.stages))
        return True


def _in_each_order(rows: Sequence[Row], steps: Sequence[Step]) -> Iterator[Sequence[Row]]:
    for order in permutations(steps):
        left = rows
        for step in order:
            left = step.apply(left)
        yield left


def test_stages_of_one_transaction_leave_what_an_order_of_them_leaves(
    tmp_path: Path, is_long: bool, seed: int, figures: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # mixed dataChange is meant
    count = 5_000 if is_long else 300
    landed, refused, wrong = Counter[tuple[str, str]](), Counter[tuple[str, str]](), list[str]()
    for number in range(count):
        judged = Judged(tmp_path / str(number), f"stages-{seed}-{number}")
        judged.run()
        shutil.rmtree(judged.directory, ignore_errors=True)
        landed += judged.landed
        refused += judged.refused
        wrong += judged.wrong
        wrong += judged.table.reader.wrong
    figures("stage_histories", tried=count, failed=len(wrong), seed=seed, landed=landed.total(), refused=refused.total())
    assert not wrong, f"FAULTS_SEED={seed}: {len(wrong)}\n" + "\n\n".join(wrong[:3])
    for pair in (("append", "delete"), ("append", "look"), ("delete", "delete"), ("append", "merge")):
        assert landed[pair], (pair, landed)
    for pair in (("delete", "look"), ("look", "look"), ("replace", "replace")):
        assert refused[pair], (pair, refused)
