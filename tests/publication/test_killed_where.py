"""Each line of the table "killed where", at each table: whoever comes next brings the publication to the same end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from airflow_delta.contract.audit import HeldCheck
from airflow_delta.exceptions import DeltaError, PublicationUndoneException
from airflow_delta.publication import open_publications
from publication.points import at, kill, killed, seen, visited
from publication.world import DECISION, NAMES, PUTS, World


def test_these_are_all_puts(world: World) -> None:
    assert seen(world.publish) == PUTS
    world.check()
    assert world.shown() == 3


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", PUTS)
class TestKilled:
    def is_decided(self, point: str, when: str) -> bool:
        return PUTS.index(point) + (when == "after") > DECISION

    def test_the_retry_publishes(self, world: World, point: str, when: str) -> None:
        killed(world.publish, point, when)
        world.publish()
        assert world.shown() == 3
        world.check()

    def test_abort_refuses_or_rolls_forward(self, world: World, point: str, when: str) -> None:
        killed(world.publish, point, when)
        result = world.abort()
        decided = self.is_decided(point, when)
        assert result.outcome == ("published" if decided else "refused")
        assert world.shown() == (3 if decided else 0)
        world.check()
        if decided:
            world.publish()
        else:
            with pytest.raises(DeltaError):
                world.publish()
        world.check()

    def test_another_publication_settles_it_first(self, world: World, point: str, when: str) -> None:
        killed(world.publish, point, when)
        world.publish_another()
        if self.is_decided(point, when):
            assert world.shown() == 3
        else:
            assert world.shown() == 0
        world.check()
        with visited(lambda _when, _name: None):
            try:
                world.publish()
            except DeltaError:
                assert world.shown() == 0
        world.check()

    def test_cleanup_settles_it(self, world: World, point: str, when: str) -> None:
        killed(world.publish, point, when)
        world.clean_up()
        assert world.shown() in (0, 3)
        world.check()

    def test_a_zombie_changes_nothing(self, world: World, point: str, when: str) -> None:
        """The worker is only halted: another one comes, and then it goes on."""
        with visited(at(point, when, world.abort)):
            try:
                world.publish()
            except DeltaError:
                assert world.shown() == 0
        world.check()

    def test_two_workers_at_once(self, world: World, point: str, when: str) -> None:
        with visited(at(point, when, world.publish)):
            world.publish()
        assert world.shown() == 3
        world.check()


NEXT = ("publish", "abort", "publish_another", "clean_up")


class TestKilledWithAHeldCheck:
    """A check has read all of the third table, to which a foreign writer appends right after the worker is killed."""

    @pytest.mark.parametrize("comes", NEXT)
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("point", PUTS)
    def test_it_holds_in_what_is_published(self, world: World, point: str, when: str, comes: str) -> None:
        third = world.members[2]
        check = HeldCheck(name="check", version=third.handle.read_version, predicates=("part = 'a'",))
        world.members[2] = replace(third, held=[check])
        killed(world.publish, point, when)
        world.tables[2].append([99])
        for name in (comes, "publish", "clean_up"):
            with suppress(DeltaError):
                getattr(world, name)()
        is_there = (point, when) == ("published third", "after")
        assert [77 in table.ids() for table in world.tables] == [is_there] * 3
        assert world.tables[2].ids().count(99) == 1
        for table in world.tables:
            assert not open_publications(table.log())
        shown = [entry["version"] for entry in world.tables[2].entries() if entry["state"] == "published"]
        for version in shown if comes != "publish_another" else ():
            assert 99 not in world.tables[2].ids(version)


UNDO = {
    "second": ["refused second", "undone first", "refused third"],
    "third": ["refused third", "undone first", "undone second"],
}
"""The puts that take the publication back, by the table that refuses it late."""
UNDO_POINTS = [(late, point, when) for late, puts in UNDO.items() for point in puts for when in ("before", "after")]


class TestKilledInUndo:
    """A foreign commit changes the metadata of the second or third table right after the put of the one before it."""

    def late(self, world: World, late: str, point: str, when: str) -> None:
        number = NAMES.index(late)
        foreign = at(f"published {NAMES[number - 1]}", "after", world.tables[number].add_property)
        stop = at(point, when, kill)

        def visit(now: str, name: str) -> None:
            foreign(now, name)
            stop(now, name)

        with visited(visit):
            world.publish()

    @pytest.mark.parametrize("late", UNDO)
    def test_these_are_its_puts(self, world: World, late: str) -> None:
        def run() -> None:
            with pytest.raises(PublicationUndoneException) as error:
                self.late(world, late, "", "")
            assert error.value.table == world.tables[NAMES.index(late)].uri
            assert error.value.winning_version == 2

        assert seen(run) == [*PUTS[: PUTS.index(f"published {late}")], *UNDO[late]]
        world.check()
        assert world.shown() == 0

    @pytest.mark.parametrize(("late", "point", "when"), UNDO_POINTS)
    @pytest.mark.parametrize("who", ["publish", "abort", "clean_up", "publish_another"])
    def test_whoever_comes_takes_it_back(self, world: World, late: str, point: str, when: str, who: str) -> None:
        with pytest.raises(BaseException):  # noqa: B017, PT011 - killed
            self.late(world, late, point, when)
        if who == "publish":
            with pytest.raises(PublicationUndoneException):
                world.publish()
        elif who == "abort":
            result = world.abort()
            assert result.outcome == "undone"
            assert {found.outcome for found in result.tables.values()} <= {"undone", "deleted", "marked"}
        else:
            getattr(world, who)()
            with pytest.raises(PublicationUndoneException):
                world.publish()
        assert world.shown() == 0
        world.check()
