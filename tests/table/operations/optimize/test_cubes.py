"""Which files OPTIMIZE of a clustered table takes, by Delta's rules."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.features.clustering import Cube
from airflow_delta.table.operations.optimize.cubes import files_to_cluster
from support.actions import add, vector

COLUMNS = [("id",), ("s", "v 1")]
SAME, OTHER = ("id", "s.`v 1`"), ("s.`v 1`", "id")


def fresh(path: str, **given: Any) -> AddFile:
    return add(path, size=10, **given)


def clustered(path: str, cube: str, columns: tuple[str, ...] = SAME, size: int = 10, provider: str | None = "liquid") -> AddFile:
    return add(path, size=size, tags=Cube(cube, columns).tags, clustering_provider=provider)


@pytest.mark.parametrize(
    ("files", "taken", "taken_by_full"),
    [
        ([], "", ""),
        ([fresh("a")], "a", "a"),
        ([clustered("a", "1"), clustered("b", "1")], "", ""),
        ([clustered("a", "2"), clustered("b", "1"), fresh("c"), clustered("d", "2")], "c b a d", "c b a d"),
        ([clustered("a", "1"), clustered("b", "2")], "a b", "a b"),
        ([clustered("a", "1", size=60), clustered("b", "1", size=40), clustered("c", "2")], "", ""),
        ([clustered("a", "1", size=60), clustered("b", "1", size=40), fresh("c")], "c", "c"),
        ([clustered("a", "1", size=60), clustered("b", "1", size=39), fresh("c")], "c a b", "c a b"),
        ([clustered("a", "1"), clustered("b", "3", OTHER), clustered("c", "2", OTHER)], "", "a c b"),
        ([clustered("a", "1", OTHER, size=500)], "", "a"),
        ([clustered("a", "1", size=500), clustered("b", "2", OTHER)], "", "b"),
        ([clustered("a", "1", provider="other"), fresh("b"), fresh("c", clustering_provider="other")], "b", "b c a"),
        ([clustered("a", "1", provider=None), fresh("b", clustering_provider="liquid")], "b a", "b a"),
        ([clustered("a", "1", ("ID", "s.`v 1`")), fresh("b")], "b", "b a"),
        ([fresh("a", tags={"ZCUBE_ID": "1"}), fresh("b", tags={"ZCUBE_ID": "1", "ZCUBE_ZORDER_BY": "?"})], "a b", "a b"),
    ],
)  # fmt: skip
def test_what_is_taken(files: list[AddFile], taken: str, taken_by_full: str) -> None:
    for full, wanted in ((False, taken), (True, taken_by_full)):
        found = files_to_cluster(files, COLUMNS, full=full, min_cube_size=100)
        assert [file.path for file in found] == wanted.split()


def test_deleted_rows_do_not_count_for_the_size_of_a_cube() -> None:
    whole = add("a", size=100, records=10, tags=Cube("1", SAME).tags, clustering_provider="liquid")
    halved = msgspec.structs.replace(whole, deletion_vector=vector(cardinality=5))
    unknown = msgspec.structs.replace(halved, stats=None)
    for file, taken in ((whole, 1), (halved, 2), (unknown, 1)):
        assert len(files_to_cluster([file, fresh("b")], COLUMNS, min_cube_size=100)) == taken
