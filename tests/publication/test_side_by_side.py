"""Tables that are worked on side by side: errors, kills and others' commits come to the same as one table after the other."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from pathlib import Path

import pytest

from airflow_delta.exceptions import ConcurrentAppendException, DeltaError, PublicationUndoneException
from airflow_delta.publication import open_publications
from airflow_delta.publication.side_by_side import AT_ONCE, StoppedError, Turn, side_by_side
from publication import beside, foreign
from publication.lake import KilledError
from publication.points import at, killed, seen, visited
from publication.world import DECISION, NAMES, PUTS, World

Called = list[str]


@pytest.fixture
def _beside(monkeypatch: pytest.MonkeyPatch):
    """As on object stores, where no commit waits for another of its process: a second worker inside of a put would for ever."""
    monkeypatch.setattr("airflow_delta.transaction.commit.lock.is_partial_write_visible", lambda _store: False)
    with beside.side_by_side():
        yield


class TestLine:
    def test_results_come_in_the_order_of_the_items(self) -> None:
        assert side_by_side(lambda item, _: -item, range(40), beside=True) == [-item for item in range(40)]
        assert side_by_side(lambda item, _: item, [], beside=True) == []

    def test_all_of_a_bounded_number_are_at_work_at_once(self) -> None:
        together = threading.Barrier(AT_ONCE, timeout=60)
        running, most = [0], [0]
        lock = threading.Lock()

        def work(_: int, __: Turn) -> None:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            together.wait()
            with lock:
                running[0] -= 1

        side_by_side(work, range(2 * AT_ONCE), beside=True)
        assert most == [AT_ONCE]

    def test_turns_are_taken_in_the_order_of_the_items_also_by_more_than_work_at_once(self) -> None:
        taken: list[int] = []

        def work(item: int, turn: Turn) -> None:
            turn.wait()
            taken.append(item)
            turn.pass_on()
            turn.wait()

        side_by_side(work, range(3 * AT_ONCE), beside=True)
        assert taken == list(range(3 * AT_ONCE))

    def test_the_next_has_its_turn_before_the_one_before_it_has_ended(self) -> None:
        ended = threading.Event()

        def work(item: int, turn: Turn) -> None:
            turn.wait()
            turn.pass_on()
            if item == 0:
                assert ended.wait(60), "the next waits for the end"
            else:
                ended.set()

        side_by_side(work, [0, 1], beside=True)

    @pytest.mark.parametrize("beside", [True, False])
    def test_the_first_error_in_the_order_is_raised_and_nobody_behind_it_has_a_turn(self, beside: bool) -> None:
        has_failed, puts = threading.Event(), list[int]()

        def work(item: int, turn: Turn) -> None:
            if item == 3:
                has_failed.set()
                raise ValueError(item)
            if item == 1:
                assert not beside or has_failed.wait(60)
                raise KilledError(item)
            turn.wait()
            puts.append(item)

        with pytest.raises(KilledError) as error:
            side_by_side(work, range(6), beside=beside)
        assert error.value.args == (1,)
        assert puts == [0]

    def test_the_others_have_ended_when_an_error_is_raised(self) -> None:
        before = set(threading.enumerate())
        at_work, goes_on, ended = threading.Event(), threading.Event(), list[int]()

        def work(item: int, _: Turn) -> None:
            if item == 0:
                assert at_work.wait(60)
                threading.Timer(0.2, goes_on.set).start()
                raise ValueError
            at_work.set()
            assert goes_on.wait(60)
            ended.append(item)

        with pytest.raises(ValueError):  # noqa: PT011 - it has no message
            side_by_side(work, [0, 1], beside=True)
        assert ended == [1]
        assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("delta-tables")]

    def test_a_task_that_is_to_end_lets_nobody_have_a_turn_and_waits_for_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As Airflow's timeout and its signals do: the thread that waits gets an exception."""
        at_work, puts, stopped = threading.Event(), list[int](), list[int]()

        def interrupt(_: object) -> None:
            assert at_work.wait(60)
            raise KeyboardInterrupt

        def work(item: int, turn: Turn) -> None:
            if item == 0:
                at_work.set()
                while item not in stopped:
                    try:
                        turn.wait()
                    except StoppedError:
                        stopped.append(item)
            turn.wait()
            puts.append(item)

        monkeypatch.setattr("airflow_delta.publication.side_by_side.wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            side_by_side(work, range(4), beside=True)
        assert (stopped, puts) == ([0], [])

    def test_each_runs_in_the_context_of_the_caller(self) -> None:
        name = ContextVar[str]("name")
        name.set("mine")

        def work(item: int, _: Turn) -> str:
            found = name.get()
            name.set(str(item))
            return found

        assert side_by_side(work, range(4), beside=True) == ["mine"] * 4
        assert name.get() == "mine"


@pytest.mark.usefixtures("_beside")
class TestSideBySide:
    def test_entries_are_put_in_the_order_of_the_plan(self, world: World) -> None:
        names = seen(world.publish)
        assert names[0] == PUTS[0]
        assert sorted(names[:3]) == PUTS[:3]
        assert names[3:] == PUTS[3:]
        world.check()

    @pytest.mark.parametrize("who", ["publish", "abort", "publish_another", "clean_up"])
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("point", PUTS)
    def test_whoever_comes_after_a_kill_ends_it(self, world: World, point: str, when: str, who: str) -> None:
        killed(world.publish, point, when)
        decided = PUTS.index(point) + (when == "after") > DECISION
        getattr(world, who)()
        if who != "clean_up" or decided:
            assert world.shown() == (3 if decided or who == "publish" else 0)
        world.clean_up()
        world.check()
        for table in world.tables:
            assert not open_publications(table.log())

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("point", PUTS)
    def test_a_zombie_changes_nothing(self, world: World, point: str, when: str) -> None:
        with visited(at(point, when, world.abort)):
            try:
                world.publish()
            except DeltaError:
                assert world.shown() == 0
        world.check()

    @pytest.mark.parametrize("point", PUTS)
    def test_two_workers_at_once(self, world: World, point: str) -> None:
        with visited(at(point, "before", world.publish)):
            world.publish()
        assert world.shown() == 3
        world.check()

    def test_a_conflict_on_one_table_refuses_it_while_the_others_go_on(self, world: World) -> None:
        world.tables[1].append([9])
        with pytest.raises(ConcurrentAppendException) as error:
            world.publish()
        assert error.value.table == world.tables[1].uri
        assert [table.states() for table in world.tables] == [["refused"], [], []]

    def test_a_late_conflict_on_one_table_takes_back_those_before_it(self, world: World) -> None:
        with visited(at("published first", "after", world.tables[1].add_property)), pytest.raises(PublicationUndoneException):
            world.publish()
        states = [table.states() for table in world.tables]
        assert states == [["published", "undone"], ["intent", "refused"], ["intent", "refused"]]
        world.check()

    def test_an_error_of_the_store_at_one_table_ends_the_try_and_the_next_one_publishes(self, world: World) -> None:
        def fail() -> None:
            raise PermissionError("the store refused it")

        for point in ("intent second", "published second"):
            with visited(at(point, "before", fail)), pytest.raises(PermissionError):
                world.publish()
            assert world.tables[2].states().count("published") == 0
        world.publish()
        assert world.shown() == 3
        world.check()

    @pytest.mark.parametrize("number", range(3), ids=NAMES)
    @pytest.mark.parametrize("kind", ["append", "change metadata"])
    def test_a_foreign_commit_at_each_put_is_never_lost(self, kind: str, number: int, tmp_path: Path) -> None:
        for point in PUTS[3:]:
            for when in ("before", "after"):
                foreign.run_at(tmp_path / f"{point} {when}", foreign.DeltaRs, number, point, when, kind)
