"""What cleans up one table knows nothing of the others: VACUUM, an abort by the id. Neither may take files of a publication."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from airflow_delta.exceptions import DeltaError, DeltaIllegalStateException, PublicationSplitException
from airflow_delta.publication import open_publications
from airflow_delta.table.abort import abort_transaction
from airflow_delta.table.operations.vacuum.run import vacuum
from publication.lake import LakeTable, forgetful
from publication.points import killed
from publication.world import DECISION, NAMES, PUTS, World

DAY = 24 * 3600 * 1000
POINTS = [(point, when) for point in PUTS for when in ("before", "after")]


def goes_on(world: World, point: str, when: str) -> None:
    """Check that the next worker ends the publication, everywhere or nowhere."""
    decided = PUTS.index(point) + (when == "after") > DECISION
    try:
        world.publish()
    except PublicationSplitException:
        raise
    except DeltaError:
        assert not decided
    assert not decided or world.shown() == 3
    world.check()


@pytest.mark.parametrize(("point", "when"), POINTS)
def test_vacuum_without_retention_deletes_no_file_of_it(world: World, point: str, when: str) -> None:
    killed(world.publish, point, when)
    began = time.monotonic()
    for table in world.tables:
        vacuum(table.log(), retention_hours=0, retention_check=False)
    assert time.monotonic() - began < 20, "VACUUM waits for nobody"
    goes_on(world, point, when)
    assert world.shown() == 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("point", "when"), POINTS)
def test_an_abort_of_one_table_alone_is_refused(world: World, point: str, when: str, name: str) -> None:
    killed(world.publish, point, when)
    number = NAMES.index(name)
    table, transaction = world.tables[number], world.members[number].handle.transaction_id
    if has_plan(table, transaction) and 77 not in table.ids():
        with pytest.raises(DeltaIllegalStateException, match="airflow delta settle"):
            abort_transaction(table.log(), transaction, force=True)
        world.publish()
        assert world.shown() == 3
    else:
        abort_transaction(table.log(), transaction, force=True)
        goes_on(world, point, when)
    world.check()


def has_plan(table: LakeTable, transaction: str) -> bool:
    return any((table.path / "staged" / transaction).glob("publication-[0-9a-f]*.json"))


def test_vacuum_knows_a_plan_beyond_the_age_of_staged_files(world: World) -> None:
    """The anchor has decided, and nobody came for eight days."""
    killed(world.publish, "published first", "after")
    later = int(time.time() * 1000) + 8 * DAY
    for table in world.tables:
        vacuum(table.log(), clock=lambda: later)
    world.publish()
    assert world.shown() == 3
    world.check()


def later(days: int) -> Callable[[], int]:
    now = int(time.time() * 1000) + days * DAY
    return lambda: now


@pytest.mark.parametrize(("point", "when"), POINTS)
class TestTheLogRetentionIsOver:
    """Nobody came for a month, and every table was vacuumed."""

    @pytest.fixture(autouse=True)
    def a_month_later(self, world: World, point: str, when: str) -> None:
        killed(world.publish, point, when)
        for table in world.tables:
            vacuum(table.log(), clock=later(31))

    def test_a_decided_one_is_published_by_the_next_try(self, world: World, point: str, when: str) -> None:
        goes_on(world, point, when)

    def test_whoever_settles_it_ends_it(self, world: World, point: str, when: str) -> None:
        world.clean_up()
        assert not any(open_publications(table.log()) for table in world.tables)
        assert world.shown() == (3 if PUTS.index(point) + (when == "after") > DECISION else 0)
        world.check()

    def test_what_has_ended_then_goes(self, world: World, point: str, when: str) -> None:
        world.clean_up()
        if world.shown():
            world.publish()
        else:
            world.abort()
        for table in world.tables:
            vacuum(table.log(), clock=later(62))
            assert not list(table.path.glob("staged/*/publication-*"))
        world.check()


def test_an_intent_holds_longer_than_keys(world: World) -> None:
    """Keys are forgotten after a week, and a publication that was decided is not over after a month."""
    killed(world.publish, "published first", "after")
    for table in world.tables:
        with forgetful(table):
            vacuum(table.log(), clock=later(31), logging_enabled=False)
            assert len(open_publications(table.log())) == (table is not world.tables[0])
    world.publish()
    assert world.shown() == 3
    world.check()


def test_plans_go_with_the_log(world: World) -> None:
    world.publish()
    later = int(time.time() * 1000) + 31 * DAY
    for table in world.tables:
        vacuum(table.log(), clock=lambda: later)
        assert not list(table.path.glob("staged/*/publication-*"))
    world.check()
