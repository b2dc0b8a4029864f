"""A process that has never imported publications knows their intents: it only opens a table, commits, and cleans up its log."""

from __future__ import annotations

import inspect
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_delta.contract.intents import INTENT_APP, INTENT_KINDS, STATE_APP
from airflow_delta.log import DeltaLog
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.log.intent_rules import IntentRules, rules_of
from support import tables

PUBLICATION = "anchor.0123456789abcdef.01234567.89abcdef"
DAY = 24 * 3600

OPEN = """
import logging, sys
logging.basicConfig(level=logging.INFO)
from airflow_delta.log import DeltaLog
log = DeltaLog.for_table(sys.argv[1])
"""
COMMIT = f"""{OPEN}
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction
from airflow_delta.transaction.intents import IntentRule
txn = OptimisticTransaction(log, policy=CommitPolicy(intents=IntentRule(patience=0.05)))
add = AddFile(path="mine", partition_values={{}}, size=1, modification_time=1, data_change=True)
print(txn.commit([add], Operation.write(mode="Append")))
print(sorted(log.update().transactions))
"""
CLEAN_UP = f"""{OPEN}
from airflow_delta.log.cleanup import clean_up_expired_logs
print(len(clean_up_expired_logs(log.snapshot)))
"""


def run(code: str, table: Path) -> tuple[str, str]:
    """Run a program in a process of its own; return what it printed and logged."""
    text = f"{code}\nprint('airflow_delta.publication' in sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", text, str(table)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def with_intent(table: Path, *, ended: int | None = None, plan: bool = True) -> None:
    """Make a table with commits of two months ago, the second one of a publication, and a checkpoint."""
    old = int((time.time() - 60 * DAY) * 1000)
    kept = {"delta.setTransactionRetentionDuration": "interval 7 days"}
    tables.create_table(table, configuration=kept)
    app_id = f"{INTENT_APP if ended is None else STATE_APP}{PUBLICATION}"
    txns = [tables.txn("expired", 1, old), tables.txn(app_id, ended or 0, old)]
    tables.write_commit(table, 1, tables.info(txn_id="anchor"), *txns)
    for version in range(2, 5):
        tables.append(table, version)
    if plan:
        folder = table / "staged" / "anchor"
        folder.mkdir(parents=True)
        (folder / "publication-0123456789abcdef.json").write_text("{}")
    write_checkpoint(DeltaLog.for_table(str(table)).snapshot_at(3))
    for file in (table / "_delta_log").iterdir():
        os.utime(file, (old / 1000, old / 1000))


def test_a_commit_waits_for_an_open_intent_that_does_not_expire(tmp_path: Path) -> None:
    with_intent(tmp_path / "table")
    os.utime(tmp_path / "table" / "_delta_log" / f"{1:020}.json")  # put just now, however old its writer's clock says that it is
    os.utime(tmp_path / "table" / "_delta_log" / f"{4:020}.json")
    printed, logged = run(COMMIT, tmp_path / "table")
    assert printed.splitlines() == ["5", f"['{INTENT_APP}{PUBLICATION}']", "False"]
    assert f"waiting for publication {PUBLICATION} of several tables to end" in logged
    assert f"`airflow delta settle <its tables> --publication {PUBLICATION}` ends it." in logged


@pytest.mark.parametrize(
    ("ended", "plan", "deleted"), [(None, True, False), (1, True, False), (1, False, True), (2, True, True), (3, True, True)]
)
def test_what_it_needs_stays_in_the_log(tmp_path: Path, ended: int | None, plan: bool, deleted: bool) -> None:
    """Where it is open, everything; where it is published, until it has ended on every table."""
    with_intent(tmp_path / "table", ended=ended, plan=plan)
    printed, logged = run(CLEAN_UP, tmp_path / "table")
    assert (int(printed.splitlines()[0]) > 0) == deleted
    assert (f"not deleting what publication {PUBLICATION} of several tables needs" in logged) != deleted


@pytest.mark.parametrize("kind", INTENT_KINDS, ids=lambda kind: kind.begins)
def test_the_module_that_a_kind_names_has_its_rules(kind) -> None:
    for name, asked in inspect.getmembers(IntentRules, inspect.isfunction):
        if not name.startswith("_"):
            parameters = [*inspect.signature(asked).parameters][1:]
            assert [*inspect.signature(getattr(rules_of(kind), name)).parameters] == parameters, name


def test_prefixes_tell_kinds_apart() -> None:
    prefixes = [prefix for kind in INTENT_KINDS for prefix in (kind.begins, kind.ends)]
    assert not [(one, other) for one, other in itertools.permutations(prefixes, 2) if one.startswith(other)]


def test_nothing_is_deleted_if_the_rules_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_delta.log.cleanup import clean_up_expired_logs

    with_intent(tmp_path / "table", ended=1)
    monkeypatch.setitem(sys.modules, INTENT_KINDS[0].rules, None)
    before = sorted((tmp_path / "table" / "_delta_log").iterdir())
    with pytest.raises(ImportError):
        clean_up_expired_logs(DeltaLog.for_table(str(tmp_path / "table")).snapshot)
    assert sorted((tmp_path / "table" / "_delta_log").iterdir()) == before
