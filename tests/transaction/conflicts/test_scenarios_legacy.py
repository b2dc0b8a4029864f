"""Delta's OptimisticTransactionLegacyTests (L1 to L34)."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    MetadataChangedException,
)
from airflow_delta.transaction import Operation
from support.actions import add, remove, txn
from support.table import metadata
from transaction.harness import Race, app_id, both, filters, whole_table

AB = ("a", "b")
READ_ALL = filters("")
NESTED = [add(f"a={a}/b={b}", a=a, b=b) for a in (1, 2) for b in (1, 2)]


def legacy(name: str, **options: object) -> Race:
    manual = Operation.manual_update()
    return Race(name, **{"operation": manual, "winner_operation": manual, **options})  # type: ignore[arg-type]


SCENARIOS = [
    legacy(
        "L1 blind append / metadata change",
        winner=[metadata(("part",), description="changed")],
        ours=[add("a", part=1)],
        expected=MetadataChangedException,
    ),
    legacy(
        "L2 read all + append / append",
        partition_by=(),
        reads=READ_ALL,
        winner=[add("a")],
        ours=[add("b")],
        expected=ConcurrentAppendException,
    ),
    legacy(
        "L3 blind append / remove and add", partition_by=(), setup=[add("a")], winner=[remove("a"), add("b")], ours=[add("c")]
    ),
    legacy(
        "L4 read all, delete and add / empty commit",
        partition_by=(),
        setup=[add("a")],
        reads=READ_ALL,
        ours=[remove("a"), add("b")],
    ),
    legacy(
        "L5 disjoint partitions",
        setup=[add("p1", part=1), add("p3", part=3)],
        reads=filters("part = 3"),
        winner_reads=READ_ALL,
        winner=[add("p1b", part=1)],
        ours=[add("p2", part=2), remove("p3", part=3)],
    ),
    legacy(
        "L6 disjoint partitions, winner rewrites another",
        setup=[add("p1", part=1), add("p2", part=2)],
        reads=filters("part IN (1)"),
        winner=[add("p2b", part=2), remove("p2", part=2)],
        ours=[add("p3", part=3), add("p3b", part=3)],
    ),
    legacy(
        "L7 read partition was appended to",
        setup=[add("p1", part=1)],
        reads=filters("part = 1"),
        winner=[add("p1b", part=1)],
        ours=[add("p2", part=2), add("p3", part=3)],
        expected=ConcurrentAppendException,
        partition="[part=1]",
    ),
    legacy(
        "L8 full scan and a filter",
        setup=[add("p1", part=1), add("p2", part=2)],
        reads=filters("part = 1", ""),
        winner=[add("p2b", part=2), remove("p2", part=2)],
        ours=[add("p3", part=3)],
        expected=ConcurrentAppendException,
        partition="[part=2]",
    ),
    legacy(
        "L9 nested partitions, disjoint",
        partition_by=AB,
        setup=NESTED,
        reads=filters("a = 1 AND b = 1"),
        winner=[add("w", a=1, b=2)],
        ours=[add("o", a=2, b=1)],
    ),
    legacy(
        "L10 nested partitions, ours adds where the winner did",
        partition_by=AB,
        setup=NESTED,
        reads=filters("a = 1 AND b = 1"),
        winner=[add("w", a=1, b=2)],
        ours=[add("o", a=1, b=2)],
    ),
    legacy(
        "L11 outer partition, disjoint",
        partition_by=AB,
        setup=NESTED,
        reads=filters("a = 1"),
        winner=[add("w", a=2, b=1)],
        ours=[add("o", a=3, b=1)],
    ),
    legacy(
        "L12 outer partition, winner removes inside",
        partition_by=AB,
        setup=NESTED,
        reads=filters("a = 1"),
        winner=[remove("a=1/b=1", a=1, b=1)],
        ours=[add("o", a=2, b=1)],
        expected=ConcurrentDeleteReadException,
        partition="[a=1, b=1]",
    ),
    legacy(
        "L13 nested partitions, full scan",
        partition_by=AB,
        setup=NESTED,
        reads=READ_ALL,
        winner=[add("w", a=1, b=2)],
        ours=[add("o", a=2, b=1)],
        expected=ConcurrentAppendException,
        partition="[a=1, b=2]",
    ),
    legacy(
        "L14 disjunction over partition columns",
        partition_by=AB,
        setup=NESTED,
        reads=filters("a >= 1 OR b > 1"),
        winner=[add("w", a=1, b=2)],
        ours=[add("o", a=2, b=1)],
        expected=ConcurrentAppendException,
        partition="[a=1, b=2]",
    ),
    legacy(
        "L15 both remove one file, read another partition",
        partition_by=AB,
        setup=[add("f", a=1, b=2)],
        reads=filters("a = 2"),
        winner=[remove("f", a=1, b=2)],
        ours=[remove("f", a=1, b=2), add("o", a=2, b=1)],
        expected=ConcurrentDeleteDeleteException,
        partition="[a=1, b=2]",
    ),
    legacy(
        "L16 as L15, the winner's remove has no partition values",
        partition_by=AB,
        setup=[add("f", a=1, b=2)],
        reads=filters("a = 2"),
        winner=[remove("f")],
        ours=[remove("f", a=1, b=2), add("o", a=2, b=1)],
        expected=ConcurrentDeleteDeleteException,
        partition="[a=1, b=2]",
    ),
    legacy(
        "L17 full scan, the winner's remove has no partition values",
        partition_by=AB,
        setup=[add("f", a=1, b=2)],
        reads=READ_ALL,
        winner=[remove("f")],
        ours=[add("o", a=2, b=1)],
        expected=ConcurrentDeleteReadException,
        delta_partition="[a=1, b=2]",
    ),
    legacy(
        "L18 full scan, winner removes and adds: the add is checked first",
        setup=[add("p1", part=1), add("p2", part=2)],
        reads=READ_ALL,
        winner=[remove("p2", part=2), add("p1b", part=1)],
        ours=[add("p3", part=3)],
        expected=ConcurrentAppendException,
        partition="[part=1]",
    ),
    legacy(
        "L19 full scan, winner removes, ours removes another file",
        setup=[add("p1", part=1), add("p1b", part=1)],
        reads=READ_ALL,
        winner=[remove("p1", part=1)],
        ours=[remove("p1b", part=1)],
        expected=ConcurrentDeleteReadException,
        partition="[part=1]",
    ),
    legacy(
        "L20 two replaceWhere, initially empty",
        reads=filters("part >= 2"),
        winner_reads=filters("part >= 2"),
        winner=[add("p3", part=3)],
        ours=[add("p2", part=2)],
        expected=ConcurrentAppendException,
        partition="[part=3]",
    ),
    legacy(
        "L21 disjoint replaceWhere, initially empty",
        reads=filters("part > 1 AND part <= 3"),
        winner_reads=filters("part > 3"),
        winner=[add("p4", part=4)],
        ours=[add("p2", part=2)],
    ),
    legacy(
        "L22 overlapping replaceWhere",
        setup=[add("p1", part=1), add("p4", part=4)],
        reads=filters("part >= 2"),
        winner_reads=filters("part <= 3"),
        winner=[remove("p1", part=1), add("p2", part=2)],
        ours=[remove("p4", part=4), add("p4b", part=4)],
        expected=ConcurrentAppendException,
        partition="[part=2]",
    ),
    legacy(
        "L23 read partition was appended to, ours adds elsewhere",
        setup=[add("p1", part=1)],
        reads=filters("part = 1"),
        winner=[add("p1b", part=1)],
        ours=[add("p3", part=3)],
        expected=ConcurrentAppendException,
        partition="[part=1]",
    ),
    legacy(
        "L24 read file was removed, ours adds elsewhere",
        setup=[add("p1", part=1)],
        reads=filters("part = 1"),
        winner=[remove("p1", part=1)],
        ours=[add("p3", part=3)],
        expected=ConcurrentDeleteReadException,
        partition="[part=1]",
    ),
    legacy(
        "L25 two replaceWhere on one partition",
        setup=[add("p1", part=1)],
        reads=filters("part = 1"),
        winner_reads=filters("part = 1"),
        winner=[remove("p1", part=1), add("p1b", part=1)],
        ours=[remove("p1", part=1), add("p1c", part=1)],
        expected=ConcurrentAppendException,
        partition="[part=1]",
    ),
    legacy(
        "L26 overlapping reads of several partitions",
        setup=[add("p1", part=1), add("p2", part=2), add("p3", part=3)],
        reads=filters("part = 3 OR part = 2"),
        winner_reads=filters("part = 3 OR part = 1"),
        winner=[remove("p1", part=1), remove("p3", part=3), add("p1b", part=1)],
        ours=[remove("p3", part=3), remove("p2", part=2), add("p2b", part=2)],
        expected=ConcurrentDeleteReadException,
        partition="[part=3]",
    ),
    legacy(
        "L27 the winner commits before our scan, which sees the old version",
        setup=[add("p1", part=1)],
        winner=[add("p1b", part=1)],
        reads_after=READ_ALL,
        ours=[add("p2", part=2)],
        expected=ConcurrentAppendException,
        partition="[part=1]",
    ),
    legacy(
        "L28 a filter over partition and data columns is a full scan",
        setup=[add("p1", part=1)],
        reads=filters("part = 1 OR value > 2019"),
        winner=[add("p3", part=3)],
        ours=[add("p2", part=2)],
        expected=ConcurrentAppendException,
        partition="[part=3]",
    ),
    legacy(
        "L29 a second scan after the winner",
        setup=[add("p1", part=1)],
        reads=filters("part = 1"),
        winner=[add("p2", part=2)],
        reads_after=filters("part = 2"),
        ours=[add("p3", part=3)],
        expected=ConcurrentAppendException,
        partition="[part=2]",
    ),
    legacy(
        "L30 a rearrangement, winner adds",
        partition_by=(),
        setup=[add("a"), add("b")],
        reads=READ_ALL,
        winner=[add("e")],
        ours=[remove("a", data_change=False), remove("b", data_change=False), add("ab", data_change=False)],
    ),
    legacy(
        "L31 a rearrangement, winner removes an input",
        partition_by=(),
        setup=[add("a"), add("b")],
        reads=READ_ALL,
        winner=[remove("b")],
        ours=[remove("a", data_change=False), remove("b", data_change=False), add("ab", data_change=False)],
        expected=ConcurrentDeleteReadException,
    ),
    legacy(
        "L32 whole table, winner removes",
        partition_by=(),
        setup=[add("a")],
        reads=whole_table,
        winner=[remove("a")],
        ours=[add("b")],
        expected=ConcurrentDeleteReadException,
    ),
    legacy(
        "L33 set-txn, different app ids",
        reads=app_id("t1"),
        winner_reads=app_id("t2"),
        winner=[txn("t2", 1)],
        ours=[txn("t1", 1)],
    ),
    legacy(
        "L34 set-txn, same app id, ours empty",
        reads=app_id("t1"),
        winner_reads=app_id("t1"),
        winner=[txn("t1", 1)],
        expected=ConcurrentTransactionException,
    ),
    legacy(
        "Q4 a rearrangement counts as added files",
        reads=both(filters("part = 1")),
        winner=[add("r", part=1, data_change=False)],
        ours=[add("b", part=1)],
        expected=ConcurrentAppendException,
        partition="[part=1]",
    ),
]


@pytest.mark.parametrize("race", SCENARIOS, ids=lambda race: race.name.split()[0])
def test_scenario(race: Race, tmp_path: Path) -> None:
    race.run(tmp_path)
