"""delta-rs before and after every put of a publication, and in flight over it. Delta Spark: tests/delta_spark."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from deltalake.exceptions import CommitFailedError

from publication.foreign import KINDS, NAMES, PUTS, DeltaRs, Session, World, run_at, work
from publication.points import over
from support.slow import slow_except


@pytest.mark.parametrize("number", range(3), ids=NAMES)
@pytest.mark.parametrize("kind", slow_except(KINDS, "delete"))
def test_a_commit_at_each_put_is_never_lost(kind: str, number: int, tmp_path: Path) -> None:
    for point in PUTS:
        for when in ("before", "after"):
            run_at(tmp_path / f"{point} {when}", DeltaRs, number, point, when, kind)


@pytest.mark.parametrize("point", [put for put in PUTS if not put.startswith("plan")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_in_flight_over_a_put(kind: str, point: str, tmp_path: Path) -> None:
    """It loads the table before the put and commits after it. It may fail by its own rules, but an intent is no reason."""
    world = World.made(tmp_path)
    number = NAMES.index(point.rpartition(" ")[2])
    landed: list[int] = []

    def end(session: Session) -> None:
        landed.append(world.interfere(number, lambda: _attempt(session, kind)))

    world.publish(over(point, lambda: DeltaRs(world.tables[number]), end))
    if point.startswith("intent"):
        assert landed == [1]
    assert world.outcome in ("published", "undone")
    world.check(kind)


def _attempt(session: Session, kind: str) -> None:
    with suppress(CommitFailedError):
        work(session, kind)


@pytest.mark.parametrize(
    ("kind", "outcome"), [("append", "undone"), ("delete", "undone"), ("overwrite", "split"), ("change metadata", "split")]
)
def test_what_was_built_on_rows_that_are_taken_back_is_listed(kind: str, outcome: str, tmp_path: Path) -> None:
    """delta-rs changes the first table when it is published, and makes the second refuse it."""
    world = World.made(tmp_path)

    def visit(when: str, name: str) -> None:
        if (when, name) == ("after", "published first"):
            session = DeltaRs(world.tables[0])
            world.interfere(0, lambda: session.delete("part = 'b'") if kind == "delete" else work(session, kind))
            world.interfere(1, lambda: work(DeltaRs(world.tables[1]), "append"))

    assert world.publish(visit) == outcome
    world.check(kind)
    listed = [(world.tables[0].uri, 3, "DELETE")] if kind == "delete" else []
    assert [read for read in world.dirty_reads if read[2] != "WRITE"] == listed
    if kind == "append":
        assert world.tables[0].ids() == [1, 2, 3, 99, 101, 102]
