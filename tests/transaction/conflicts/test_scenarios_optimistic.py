"""Delta's OptimisticTransactionSuite, its parametrised checks (O1 to O14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    MetadataChangedException,
    ProtocolChangedException,
)
from support.actions import add, protocol, remove, txn
from support.table import metadata
from transaction.harness import Race, app_id, both, filters, whole_table

X = ("x",)
NEW_ID = "99999999-0000-0000-0000-000000000000"

SCENARIOS = [
    Race("O1 append / append", (), winner=[add("a")], ours=[add("b")]),
    Race("O2 disjoint txns", (), reads=app_id("t1"), winner=[txn("t2", 0)]),
    Race("O3 disjoint delete / read", X, [add("a", x=2)], filters("x = 1"), winner=[remove("a", x=2)]),
    Race("O4 disjoint add / read", X, reads=filters("x = 1"), winner=[add("a", x=2)]),
    Race(
        "O5 delete / delete",
        (),
        [add("a")],
        winner=[remove("a")],
        ours=[remove("a")],
        expected=ConcurrentDeleteDeleteException,
    ),
    Race(
        "O6 add / read + write",
        X,
        reads=filters("x = 1"),
        winner=[add("a", x=1)],
        ours=[add("b", x=1)],
        expected=ConcurrentAppendException,
        partition="[x=1]",
    ),
    Race("O7 add / read + no write", X, reads=filters("x = 1"), winner=[add("a", x=1)]),
    Race(
        "O8 add in part=2 / read from part=1,2 and write to part=1",
        X,
        reads=filters("x = 1", "x = 2"),
        winner=[add("a", x=1)],
        ours=[add("b", x=2)],
        expected=ConcurrentAppendException,
        partition="[x=1]",
    ),
    Race(
        "O9 delete / read",
        X,
        [add("a", x=1)],
        filters("x = 1"),
        winner=[remove("a", x=1)],
        expected=ConcurrentDeleteReadException,
        partition="[x=1]",
    ),
    Race("O10 schema change", (), winner=[metadata(id=NEW_ID)], expected=MetadataChangedException),
    Race("O11 conflicting txns", (), reads=app_id("t1"), winner=[txn("t1", 0)], expected=ConcurrentTransactionException),
    Race(
        "O12 upgrade / upgrade",
        (),
        winner=[protocol()],
        ours=[protocol()],
        expected=ProtocolChangedException,
    ),
    Race(
        "O13 taint whole table",
        X,
        reads=both(filters("x = 1"), whole_table),
        winner=[add("a", x=3)],
        ours=[add("b", x=4)],
        expected=ConcurrentAppendException,
        partition="[x=3]",
    ),
    Race(
        "O14 taint whole table + concurrent remove",
        (),
        [add("a")],
        whole_table,
        winner=[remove("a")],
        ours=[add("b")],
        expected=ConcurrentDeleteReadException,
    ),
]


@pytest.mark.parametrize("race", SCENARIOS, ids=lambda race: race.name.split()[0])
def test_scenario(race: Race, tmp_path: Path) -> None:
    race.run(tmp_path)
