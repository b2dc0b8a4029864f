"""The retry loop: rule 1.7 of Delta's engine, and what the seed says its log lines and its final error tell.

Puts that are not answered clearly are ``transaction/commit/test_loop.py``; processes that race for real are
``transaction/commit/test_processes.py``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import (
    CommitCancelledException,
    ConcurrentAppendException,
    DeltaError,
    MaxCommitRetriesExceededException,
    MetadataChangedException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.transaction import CommitPolicy, Operation, last_commit_version_in_session
from conformance.harness import MANUAL
from support.actions import add
from support.table import FAST, Table, metadata


class Contended(LocalStore):
    """A real local store on which others commit right before each of the first puts of a commit.

    :param others: for each put, what the others commit.
    """

    def __init__(self, table: Table, others: Sequence[Sequence[Any]]) -> None:
        super().__init__(str(table.path), FAST)
        self.table = table
        self.others = list(others)
        self.tried: list[int] = []
        self.listings = 0

    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path.endswith(".json"):
            self.tried.append(int(Path(path).stem))
            for action in self.others.pop(0) if self.others else ():
                self.table.commit(action)
        super().put_if_absent(path, data, durable=durable)


@dataclass(frozen=True)
class Contest:
    """A commit that others are in the way of.

    :param others: what they commit before each put of ours: one version for each action.
    :param tried: the versions that ours tries, in order.
    :param version: what it becomes; an exception otherwise.
    :param reads: what ours reads.
    :param policy: its bounds.
    """

    name: str
    others: Sequence[Sequence[Any]]
    tried: Sequence[int]
    version: int | type[DeltaError]
    reads: Callable[[Any], Any] | None = None
    policy: CommitPolicy = field(default_factory=lambda: CommitPolicy(max_wait=0.01))


def blind(*names: str) -> list[Any]:
    return [add(name) for name in names]


BOUNDED = CommitPolicy(max_attempts=2, max_wait=0.01)

CONTESTS = [
    Contest("nobody in the way", [], [1], 1),
    Contest("one loss", [blind("w")], [1, 2], 2),
    Contest("the next version is the one after all winners", [blind("w", "x", "y")], [1, 4], 4),
    Contest("a loss again and again", [blind("a"), blind("b"), blind("c")], [1, 2, 3, 4], 4),
    Contest(
        "no more tries than allowed",
        [blind("a"), blind("b"), blind("c")],
        [1, 2],
        MaxCommitRetriesExceededException,
        policy=BOUNDED,
    ),
    Contest("a conflict is not tried again", [blind("w")], [1], ConcurrentAppendException, lambda t: t.read_whole_table()),
    Contest("a conflict with the second winner", [[add("w"), metadata(description="d")]], [1], MetadataChangedException),
    Contest("cancelled before the put", [], [], CommitCancelledException, policy=CommitPolicy(cancelled=lambda: True)),
]


@pytest.mark.parametrize("contest", CONTESTS, ids=lambda contest: contest.name)
def test_contest(contest: Contest, tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create()
    store = Contended(table, contest.others)
    transaction = DeltaLog(store).start_transaction(policy=contest.policy)
    if contest.reads is not None:
        contest.reads(transaction)
    if isinstance(contest.version, int):
        assert transaction.commit([add("o")], Operation.write()) == contest.version
        assert transaction.outcome.attempts == len(contest.tried)
        assert transaction.outcome.versions_checked == contest.version - 1
        assert last_commit_version_in_session() == contest.version
    else:
        with pytest.raises(contest.version):
            transaction.commit([add("o")], Operation.write())
        assert not transaction.committed
        assert "o" not in table.live()
    assert store.tried == list(contest.tried)


def test_what_the_final_error_tells(tmp_path: Path) -> None:
    """Attempts, the versions between which it tried, the number of actions (with commitInfo), the time."""
    table = Table(tmp_path / "table")
    table.create()
    store = Contended(table, [blind("a"), blind("b", "c")])
    transaction = DeltaLog(store).start_transaction(policy=BOUNDED)
    with pytest.raises(MaxCommitRetriesExceededException) as caught:
        transaction.commit([add("o"), add("p")], MANUAL)
    text = str(caught.value)
    for fact in (
        "tried 2 times",
        "Commit started at version: 1",
        "Commit failed at version: 4",
        "Number of actions attempted to commit: 3",
        r"Total time spent attempting this commit: \d+ ms",
        re.escape(str(table.path)),
    ):
        assert re.search(fact, text), fact
    assert (caught.value.error_class, caught.value.version) == ("DELTA_MAX_COMMIT_RETRIES_EXCEEDED", 4)


def test_log_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the seed shows, in its order."""
    caplog.set_level(logging.DEBUG, logger="airflow_delta.transaction")
    table = Table(tmp_path / "table")
    table.create()
    transaction = DeltaLog(Contended(table, [blind("w", "x")])).start_transaction()
    caplog.clear()
    transaction.commit([add("o")], Operation.write())
    lines = iter([re.sub(r"\d+ ms", "N ms", record.getMessage()) for record in caplog.records])
    level = "with 2 actions with Serializable isolation level"
    wanted = [
        f"Attempting to commit version 1 {level}",
        "Completed checking for conflicts Version: 1 Attempt: 1 Time: N ms",
        "Completed checking for conflicts Version: 2 Attempt: 1 Time: N ms",
        "No logical conflicts with deltas [1, 3), retrying.",
        f"Attempting to commit version 3 {level}",
        f"Committed delta #3 to {table.path}/_delta_log",
    ]
    assert [line for line in wanted if line in lines] == wanted, "in this order, whatever the others log in between"


def test_a_winner_is_read_as_a_whole_and_in_order(tmp_path: Path) -> None:
    """1.7: one at a time, ascending; the first conflict decides."""
    table = Table(tmp_path / "table")
    table.create()
    ours = table.log().start_transaction()
    ours.read_whole_table()
    table.commit()
    table.commit(add("a"))
    table.commit(metadata(description="d"))
    with pytest.raises(ConcurrentAppendException) as caught:
        ours.commit([add("o")], Operation.write())
    assert caught.value.winning_version == 2
