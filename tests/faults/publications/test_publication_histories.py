"""Random histories of publications, judged from the logs; and that each rule of the protocol is missed if it is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.publication.participant import Participant
from airflow_delta.publication.records import INTENT, PUBLISHED, REFUSED
from airflow_delta.publication.steps import Settlement
from airflow_delta.table.audit.held import HeldChecks
from airflow_delta.transaction.commit.loop import CommitLoop
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from faults.publications.world import run_histories


def test_publications_are_on_all_tables_or_on_none(
    tmp_path: Path, seed: int, is_long: bool, figures: Callable[..., None]
) -> None:
    count = 10_000 if is_long else 20
    ends, failed = run_histories(lambda n: tmp_path / str(n), range(seed, seed + count))
    figures("publications", tried=count, failed=len(failed), seed=seed, **ends)
    assert failed == []


def test_without_intents_too(tmp_path: Path, seed: int, is_long: bool) -> None:
    _, failed = run_histories(lambda n: tmp_path / str(n), range(seed, seed + (1000 if is_long else 10)), intents=False)
    assert failed == []


@contextmanager
def without_txn(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Own entries are not recognised in the log."""
    real = Participant.state_in
    patch.setattr(
        Participant, "state_in", lambda self, snapshot: None if real(self, snapshot) == PUBLISHED else real(self, snapshot)
    )
    patch.setattr(WinningCommit, "is_of", lambda _self, _txn_id: False)
    yield


@contextmanager
def without_fence(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A refusal at the anchor takes no place in the log."""

    def run(self: Settlement, give_up: bool, why: dict[str, Any]) -> str:
        if give_up and self.anchor.look() is None:
            return "refused"
        return str(real(self, give_up, why))

    real = Settlement._run
    patch.setattr(Settlement, "_run", run)
    yield


@contextmanager
def without_decision(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every table is published when its turn comes, the anchor last; an abort looks at the first."""

    def decide(self: Settlement) -> None:
        tables, self.tables = self.tables, [*self.tables, self.tables[0]]
        try:
            if self._forward():
                self.tables[0].put_state(REFUSED)
        finally:
            self.tables = tables

    patch.setattr(Settlement, "_decide", decide)
    yield


@contextmanager
def without_intents(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """No intent is put."""
    real = Participant.put_state
    patch.setattr(
        Participant,
        "put_state",
        lambda self, state, **options: True if state == INTENT else real(self, state, **options),
    )
    yield


@contextmanager
def without_checked_puts(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A put goes to the next free version, not to the one up to which the log was checked."""
    patch.setattr(CommitLoop, "check_for_conflicts", lambda _self, _winners: None)
    yield


@contextmanager
def without_help(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody minds the intents of others."""
    patch.setattr(Participant, "other_intent", None)
    patch.setattr(Participant, "_meet", lambda _self, _publication: False)
    yield


@contextmanager
def without_held_checks(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody asks again what a check has read."""
    patch.setattr(HeldChecks, "__call__", lambda *_: None)
    yield


MUTATIONS = [
    without_txn,
    without_fence,
    without_decision,
    without_intents,
    without_checked_puts,
    without_help,
    without_held_checks,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_missing_rule_is_noticed(mutation: Callable[..., Any], tmp_path: Path, figures: Callable[..., None]) -> None:
    with pytest.MonkeyPatch.context() as patch, mutation(patch):
        ends, failed = run_histories(lambda n: tmp_path / str(n), range(400), stop=True)
    figures(f"publications_{mutation.__name__}", histories=sum(ends.values()) // 2, noticed=bool(failed))
    assert failed, "400 histories did not notice it"
