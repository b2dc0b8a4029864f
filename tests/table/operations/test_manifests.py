"""GENERATE symlink_format_manifest as an operation; what manifests say: tests/transaction/commit, tests/delta_spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import DeltaTableNotFoundException, DeltaUnsupportedOperationException
from airflow_delta.table.operations import manifests
from airflow_delta.table.operations.manifests import ManifestResult, generate
from airflow_delta.transaction import Operation
from airflow_delta.transaction.commit.symlink_manifest import DIRECTORY
from support.actions import add, remove, vector
from support.table import Table

ENABLED = {"delta.compatibility.symlinkFormatManifest.enabled": "true"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


def listed(table: Table) -> list[str]:
    lines = (line for path in (table.path / DIRECTORY).rglob("manifest") for line in path.read_text().splitlines())
    return sorted(line.removeprefix(f"file:{table.path}/") for line in lines)


def test_the_files_of_the_latest_version(table: Table) -> None:
    table.create(("part",))
    table.commit(add("a", part=1), add("b", part=2))
    result = generate(table.log())
    assert result == ManifestResult(table.uri, 1, f"{table.uri}/{DIRECTORY}", 2)
    assert result.to_dict() == {"table": table.uri, "version": 1, "location": result.location, "numManifests": 2}
    table.commit(remove("a", part=1), operation=Operation.delete())
    assert listed(table) == ["a", "b"]
    assert generate(table.log()).num_manifests == 1
    assert listed(table) == ["b"]
    assert table.versions() == [0, 1, 2], "nothing is committed"


def test_a_table_that_does_not_exist(table: Table) -> None:
    with pytest.raises(DeltaTableNotFoundException):
        generate(table.log())
    assert not table.path.exists()


@pytest.mark.parametrize(
    ("configuration", "says"),
    [
        ({"delta.enableDeletionVectors": "true"}, "DELTA_UNSUPPORTED_GENERATE_WITH_DELETION_VECTORS"),
        ({"delta.columnMapping.mode": "name"}, "DELTA_UNSUPPORTED_MANIFEST_GENERATION_WITH_COLUMN_MAPPING"),
    ],
)
def test_tables_that_readers_of_manifests_would_read_wrongly(table: Table, configuration: dict[str, str], says: str) -> None:
    table.create(configuration=configuration)
    marked = "delta.enableDeletionVectors" in configuration
    table.commit(add("a", stats='{"numRecords":5}', deletion_vector=vector(cardinality=1) if marked else None))
    with pytest.raises(DeltaUnsupportedOperationException, match=says):
        generate(table.log())
    assert not (table.path / DIRECTORY).exists()


@pytest.mark.parametrize(("configuration", "max_restarts", "wanted"), [(ENABLED, 3, "ab"), (ENABLED, 0, "a"), ({}, 3, "a")])
def test_a_commit_that_comes_meanwhile(
    table: Table, monkeypatch: pytest.MonkeyPatch, configuration: dict[str, str], max_restarts: int, wanted: str
) -> None:
    """With the property, its own manifests would be overwritten by those of the version before."""
    table.create(configuration=configuration)
    table.commit(add("a"))
    write = manifests.generate_manifests
    commits = [lambda: table.commit(add("b"))]

    def slow(*arguments: Any) -> int:
        while commits:
            commits.pop()()
        return write(*arguments)

    monkeypatch.setattr(manifests, "generate_manifests", slow)
    result = generate(table.log(), max_restarts=max_restarts)
    assert "".join(listed(table)) == wanted
    assert result.version == len(wanted)
