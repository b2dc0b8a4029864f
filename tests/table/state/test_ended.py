"""How a task learns that its transaction has ended, what that costs, and whom it believes."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import StagingException
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.table.commit import publish as publishing
from airflow_delta.table.state.ended import ended
from support.table import Table
from support.tables import commit_path


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table(tmp_path / "table")
    handle = table.begin()
    table.publish(handle, stage(table, handle))
    return table


def stage(table: Table, handle: TransactionHandle) -> StagedWrite:
    return table.stage_rows(handle, [1, 2])


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What is asked of the store."""
    counts: Counter[str] = Counter()
    for name in ("head", "read", "list_from", "read_range", "put"):
        given = getattr(LocalStore, name)

        def counted(self: Any, *args: Any, given: Any = given, name: str = name, **kwargs: Any) -> Any:
            counts[name] += 1
            return given(self, *args, **kwargs)

        monkeypatch.setattr(LocalStore, name, counted)
    return counts


def test_a_first_try_asks_for_two_markers(table, requests):
    handle = table.begin()
    log = table.log()
    requests.clear()
    assert ended(log, handle, runs_again=False) is None
    assert requests == {"head": 2}


@pytest.mark.parametrize("runs_again", [False, True])
def test_committed(table, runs_again):
    handle = table.begin()
    table.publish(handle, stage(table, handle))
    found = ended(table.log(), handle, runs_again=runs_again)
    assert found is not None
    assert (found.committed.version, found.committed.num_records) == (1, 2)


def test_committed_and_maintained(table):
    """Maintenance deletes the markers of old commits; the log still tells, to a task that runs again."""
    handle = table.begin()
    table.publish(handle, stage(table, handle))
    (Path(handle.staging_path) / "_commit-0").unlink()
    assert ended(table.log(), handle, runs_again=True).committed.version == 1


def test_aborted(table):
    handle = table.begin()
    stage(table, handle)
    assert table.abort(handle).outcome == "deleted"
    for runs_again in (False, True):
        assert ended(table.log(), handle, runs_again=runs_again).committed is None


def test_reads_no_commit_before_the_transaction_began(table):
    for _ in range(3):
        other = table.begin()
        table.publish(other, stage(table, other))
    table.log().checkpoint()
    handle = table.begin()
    table.abort(handle)
    for version in range(3):
        commit_path(table.path, version).unlink()
    assert ended(table.log(), handle, runs_again=True).committed is None


def test_an_abort_that_a_commit_outran(table):
    """Its marker stays; the log comes first."""
    handle = table.begin()
    table.publish(handle, stage(table, handle))
    marker = Path(handle.staging_path) / "_aborted"
    marker.write_text(json.dumps({"transactionId": handle.transaction_id, "abortedAt": 1}))
    assert ended(table.log(), handle, runs_again=False).committed.version == 1


@pytest.mark.parametrize(
    "content",
    [json.dumps({"transactionId": str(uuid.uuid4()), "abortedAt": 1}), "{}", "[]", "", "half a mark"],
    ids=["another's", "empty", "list", "nothing", "damaged"],
)
def test_whom_a_live_transaction_does_not_believe(table, content):
    handle = table.begin()
    marker = Path(handle.staging_path) / "_aborted"
    marker.parent.mkdir(parents=True)
    marker.write_text(content)
    assert ended(table.log(), handle, runs_again=False) is None
    assert ended(table.log(), handle, runs_again=True) is None


def test_of_two_transactions_one_is_aborted(table):
    mine, other = table.begin(), table.begin()
    table.abort(other)
    assert ended(table.log(), mine, runs_again=True) is None


def test_a_failed_attempt_of_the_commit_ends_nothing(table, monkeypatch):
    handle = table.begin()
    write = stage(table, handle)
    monkeypatch.setattr(publishing, "check_stages", lambda _view: (_ for _ in ()).throw(StagingException("no")))
    with pytest.raises(StagingException):
        table.publish(handle, write)
    assert (Path(handle.staging_path) / "_commit-0").exists()
    assert ended(table.log(), handle, runs_again=False) is None


def test_a_table_that_is_created(tmp_path):
    table = Table(tmp_path / "table")
    handle = table.begin()
    assert ended(table.log(), handle, runs_again=True) is None
    table.abort(handle)
    assert ended(table.log(), handle, runs_again=True).committed is None


def test_a_report_that_claims_a_commit_is_not_believed(table):
    """An XCom of a stage says that there is nothing to publish, and the log knows nothing of it."""
    handle = table.begin()
    write = stage(table, handle)
    claim = {**write.to_dict(), "alreadyCommitted": True, "actions": [], "numFiles": 0, "numRecords": 0, "numBytes": 0}
    with pytest.raises(StagingException, match="the log does not hold it"):
        table.publish(handle, StagedWrite.from_dict(claim))
    assert table.log().update().version == 0


def test_the_commit_that_created_the_table(tmp_path):
    table = Table(tmp_path / "table")
    handle = table.begin()
    table.publish(handle, stage(table, handle))
    assert ended(table.log(), handle, runs_again=True).committed.version == 0


def test_a_later_transaction_of_the_same_application_is_another_one(table):
    handles = []
    for version in (1, 2):
        handles.append(table.begin(app_id="loader", txn_version=version))
        table.publish(handles[-1], stage(table, handles[-1]))
    assert [ended(table.log(), handle, runs_again=True).committed.version for handle in handles] == [1, 2]


@pytest.mark.parametrize(("left", "version"), [("marker", 1), ("files", 2), ("no commit", None)])
def test_a_commit_that_has_left_the_log(table, left, version):
    """Its marker says which version it was; without it, the files of the table show that it is part of the last one."""
    handle = table.begin()
    write = stage(table, handle)
    if left != "no commit":
        table.publish(handle, write)
    while len(table.versions()) < 3:
        other = table.begin()
        table.publish(other, stage(table, other))
    table.log().checkpoint()
    for number in table.versions()[:-1]:
        commit_path(table.path, number).unlink()
    if left == "files":
        (Path(handle.staging_path) / "_commit-0").unlink()
    found = ended(table.log(), handle, runs_again=True)
    assert (None if found is None else found.committed.version) == version


def test_a_commit_that_earlier_ones_have_left_behind(table):
    handle = table.begin()
    write = stage(table, handle)
    other = table.begin()
    table.publish(other, stage(table, other))
    table.publish(handle, write)
    table.log().checkpoint()
    for number in range(2):
        commit_path(table.path, number).unlink()
    committed = ended(table.log(), handle, runs_again=True).committed
    assert (committed.version, committed.num_records) == (2, 2)
