"""A lake in a folder, what a test asks of its tables, and the fixtures of pytest."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta import engine
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.testing.runs import DagRunner, new_database

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log import DeltaLog


Row = Mapping[str, Any]

_SHOWN = 10


class Lake:
    """A folder of Delta tables, and connections of type ``delta`` that lead to it.

    :param folder: the folder.
    :param set_variable: sets an environment variable for the length of the test.
    """

    def __init__(self, folder: Path, set_variable: Callable[[str, str], None]) -> None:
        self.folder = folder
        self._set_variable = set_variable

    def connect(self, conn_id: str) -> None:
        """Let a connection lead to this lake, whatever it leads to in production."""
        connection = {"conn_type": "delta", "host": str(self.folder)}
        self._set_variable(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))

    def table(self, name: str) -> LakeTable:
        """Return a table by the name that Dags use, below the connection's base path. It need not exist yet."""
        return LakeTable(self.folder / name)


class LakeTable:
    """A table of the lake. Rows are read by this package's own reader, without Spark.

    :param path: its directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def log(self) -> DeltaLog:
        """The table's log, read again."""
        return engine.DeltaLog.for_table(str(self.path))

    @property
    def version(self) -> int:
        """The latest version; -1 if there is no table."""
        return self.log.update().version

    def rows(self, *, version: int | None = None, where: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of a version, in no particular order; of a table that does not exist, none.

        :param version: default: the latest.
        :param where: Spark SQL predicate.
        """
        if version is None and self.version < 0:
            return []
        found: list[dict[str, Any]] = engine.read_table(self.log, version=version, where=where).to_table().to_pylist()
        return found

    def append(self, rows: pa.Table | Iterable[Row], *, partition_by: Sequence[str] = ()) -> int:
        """Append rows as one version, which creates the table if needed, and return the version: what a Dag finds.

        :param rows: an Arrow table, or rows as mappings.
        :param partition_by: partition columns of a new table.
        :raises ValueError: if there are no rows to take the columns from.
        """
        import pyarrow as pa

        data = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist([dict(row) for row in rows])
        if not data.num_columns:
            raise ValueError("append() got no rows, and so no columns. For a table without rows, pass an empty pyarrow.Table.")
        log = self.log
        handle = engine.begin(log, transaction_key=f"airflow_delta.testing/{uuid.uuid4()}", partition_by=tuple(partition_by))
        stage = engine.open_stage(log, handle, task_id="append", attempt=new_attempt())
        request = engine.plan_stage(stage)
        report = engine.stage_arrow(log, data, request)
        return engine.publish(log, handle, [engine.collect_stage(stage, request, report)], attempt=new_attempt()).version

    def assert_version(self, version: int) -> None:
        """Check the latest version; -1: there is no table."""
        found = self.version
        if found != version:
            raise AssertionError(f"{self.path.name} is at version {found}, not {version}:\n{self._history()}")

    def assert_rows(self, expected: Iterable[Row], *, version: int | None = None, where: str | None = None) -> None:
        """Check the rows of a version: each as often as expected, in any order.

        :param expected: rows as mappings; only the columns that they name are compared.
        """
        wanted = [dict(row) for row in expected]
        names = list(dict.fromkeys(name for row in wanted for name in row))
        rows = self.rows(version=version, where=where)
        if unknown := [name for name in names if rows and name not in rows[0]]:
            raise AssertionError(f"{self.path.name} has no column {', '.join(unknown)}, but {', '.join(rows[0])}")
        found = Counter(_frozen({name: row[name] for name in names} if names else row) for row in rows)
        want = Counter(_frozen({name: row.get(name) for name in names}) for row in wanted)
        missing, surplus = want - found, found - want
        if missing or surplus:
            at = "" if version is None else f" at version {version}"
            raise AssertionError(
                f"The rows of {self.path.name}{at} differ: {found.total()} found, {want.total()} expected."
                f"{_listed('Missing', missing)}{_listed('Not expected', surplus)}\n{self._history()}"
            )

    def _history(self) -> str:
        if self.version < 0:
            return "There is no such table."
        lines = [f"  version {entry.version}: {entry.operation}" for entry in self.log.history(20)]
        return "\n".join(["Its versions, newest first:", *lines])


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple((name, _frozen(each)) for name, each in value.items())
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _listed(title: str, rows: Counter[Any]) -> str:
    if not rows:
        return ""
    lines = [f"  {count} x {dict(row)}" if count > 1 else f"  {dict(row)}" for row, count in rows.items()][:_SHOWN]
    more = [f"  ... and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    return "\n".join([f"\n{title}:", *lines, *more])


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """An empty lake in a folder of the test; the connection ``delta_default`` leads to it, ``lake.connect(id)`` adds others."""
    folder = tmp_path / "lake"
    folder.mkdir()
    made = Lake(folder, monkeypatch.setenv)
    made.connect("delta_default")
    return made


@pytest.fixture
def run_dag(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> DagRunner:
    """Runs Dags on a real Airflow, which this test has for itself: ``run_dag("dags/orders.py")``."""
    return DagRunner(tmp_path / "airflow", lambda: new_database(tmp_path_factory.getbasetemp()))
