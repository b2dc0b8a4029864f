"""Several publications of the same tables at the same time, without a foreign writer: none is taken back, split or left open."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from airflow_delta.exceptions import ConcurrentTransactionException, PublicationPendingException
from airflow_delta.log import DeltaLog
from airflow_delta.publication import Member, open_publications, settle
from publication.lake import LakeTable, publish_all
from publication.points import at, killed, visited
from publication.together import PART, Together


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("seed", [5, 41, 55, 59])
def test_publications_at_the_same_time_end_without_being_taken_back(seed: int, beside: bool, tmp_path: Path) -> None:
    """Each of these was half for good, or taken back, when looks and checks were of two versions."""
    together = Together.drawn(tmp_path, seed)
    assert together.run(seed, beside=beside) == []
    assert "published" in {worker.outcome for worker in together.workers} or len(together.workers) == 2


@pytest.mark.slow
@pytest.mark.parametrize("beside", [False, True])
def test_random_histories_without_a_foreign_writer(tmp_path: Path, beside: bool) -> None:
    wrong = {}
    for seed in range(300):
        if found := Together.drawn(tmp_path / str(seed), seed).run(seed, beside=beside):
            wrong[seed] = found
    assert wrong == {}


@pytest.mark.parametrize("seed", range(6))
def test_two_publications_of_the_same_tables_in_opposite_orders(tmp_path: Path, seed: int) -> None:
    """Each works on its tables side by side and reads them all; of two that conflict, one is refused before it is decided."""
    together = Together.of(tmp_path, 3)
    together.add("p", together.tables, [True] * 3, anchor=together.tables[0], patience=0.0)
    together.add("q", together.tables[::-1], [True] * 3, anchor=together.tables[2], patience=0.0)
    assert together.run(seed, beside=True) == []
    assert {worker.outcome for worker in together.workers} <= {"published", "refused"}


@pytest.mark.slow
@pytest.mark.parametrize("reads", [False, True])
def test_two_publications_of_the_same_tables_in_threads(tmp_path: Path, reads: bool) -> None:
    """Real threads, as fast as they can: both are published, or one is refused before it is decided."""
    for number in range(100):
        together = Together.of(tmp_path / str(number), 2)
        for key in ("p", "q"):
            together.add(key, together.tables, [False, reads], anchor=together.tables[0], patience=60.0)
        threads = [threading.Thread(target=worker.publish, daemon=True) for worker in together.workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert together.judge() == []
        outcomes = sorted(worker.outcome for worker in together.workers)
        assert outcomes == (["published", "refused"] if reads else ["published", "published"]), number


def announced_twice(orders: LakeTable, lines: LakeTable, replaces: str | None) -> tuple[list[Member], list[Member]]:
    """Two publications that are decided, and both announced on ``lines``: their workers did not know each other's tables."""
    other = LakeTable(lines.path.with_name("other"))
    other.fill([100])
    one = [orders.member("k1", [7]), lines.member("k1", [40], replaces=replaces)]
    two = [other.member("k2", [8]), lines.member("k2", [41], replaces=replaces)]
    for members in (one, two):
        publish = partial(publish_all, members, anchor=members[0].log.uri, open_table=lambda _uri: None)
        killed(publish, "published lines", "before")
    assert lines.states() == ["intent", "intent"]
    return one, two


@pytest.mark.parametrize("first", [0, 1])
def test_two_decided_publications_that_meet_end(orders: LakeTable, lines: LakeTable, first: int) -> None:
    """Settling one settled the other, which settled the first, until the stack was full."""
    found = announced_twice(orders, lines, None)
    publish_all(found[first])
    publish_all(found[1 - first])
    assert lines.ids() == [10, 20, 30, 40, 41]
    assert open_publications(lines.log()) == []


@pytest.mark.parametrize("first", [0, 1])
def test_the_order_of_two_that_meet_does_not_depend_on_who_works(orders: LakeTable, lines: LakeTable, first: int) -> None:
    announced_twice(orders, lines, PART)
    ids = sorted(one.publication for one in open_publications(lines.log()))
    began = settle(lines.log(), ids[first], DeltaLog.for_table, patience=0.0)
    assert began.outcome == ("published", "undone")[first]
    assert settle(lines.log(), ids[0], DeltaLog.for_table, patience=0.0).outcome == "published"
    assert settle(lines.log(), ids[1], DeltaLog.for_table, patience=0.0).outcome == "undone"
    assert lines.ids() in ([40], [41])


def test_a_commit_that_goes_on_after_another_plan_has_published_ends(orders: LakeTable, lines: LakeTable) -> None:
    """The group of ``orders`` was cleared meanwhile; the stages of ``lines`` are those of both plans."""
    of_lines = lines.member("k", [40])
    one, two = [orders.member("k", [7]), of_lines], [orders.member("k", [8]), of_lines]
    errors: list[BaseException] = []

    def go_on() -> None:
        try:
            publish_all(one, anchor=orders.uri)
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=go_on, daemon=True)
    with visited(at("intent lines", "before", lambda: publish_all(two, anchor=orders.uri))):
        worker.start()
        worker.join(60)
    assert not worker.is_alive(), "it looks again and again"
    with pytest.raises(ConcurrentTransactionException, match="committed by another plan"):
        raise errors[0]
    assert (orders.ids(), lines.ids()) == ([1, 2, 3, 8], [10, 20, 30, 40])
    assert open_publications(lines.log()) == []


def test_a_loop_that_gets_nowhere_ends_and_says_why(
    orders: LakeTable, lines: LakeTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another writer is faster at every put of the intent."""
    monkeypatch.setattr("airflow_delta.publication.rounds.MOST_ROUNDS", 8)
    members = [orders.member("k", [7]), lines.member("k", [40])]
    faster = iter(range(100, 200))

    def overtake(when: str, name: str) -> None:
        if (when, name) == ("before", "intent lines"):
            lines.append([next(faster)], part="b")

    caplog.set_level("INFO", logger="airflow_delta.publication.rounds")
    with visited(overtake), pytest.raises(PublicationPendingException, match="it looked 8 times"):
        publish_all(members, anchor=orders.uri)
    assert "looking again: another commit is version" in caplog.text
    assert publish_all(members, anchor=orders.uri).outcome == "published"
