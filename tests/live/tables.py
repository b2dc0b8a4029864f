"""What a table holds, as delta-rs reads it, and what its log says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from live.names import ROWS
from support.table import Table


class ScenarioTable(Table):
    """A table of a scenario."""

    def __str__(self) -> str:
        return self.uri

    @property
    def asset(self) -> str:
        """The URI of its asset."""
        return f"delta://file{self.path}"

    @property
    def version(self) -> int:
        """The latest version as delta-rs sees it; -1: there is no table."""
        import deltalake

        return deltalake.DeltaTable(str(self.path)).version() if deltalake.DeltaTable.is_deltatable(str(self.path)) else -1

    def rows(self, version: int | None = None) -> list[dict[str, Any]]:
        from support import readers

        return readers.rows(self.path, version) if self.version >= 0 else []

    def stages(self) -> dict[str, list[tuple[int, int]]]:
        """Return by run which stages are in the table: map index and try, each as often as it is there.

        A stage that is there in part, or one of whose rows is there twice, is an error.
        """
        found: dict[str, list[tuple[int, int]]] = {}
        counts = Counter((row["run"], row["instance"], row["attempt"], row["id"]) for row in self.rows())
        for run, instance, attempt in sorted({key[:3] for key in counts}):
            times = {counts[run, instance, attempt, number] for number in range(ROWS)}
            assert len(times) == 1, f"{self.path}: {run}[{instance}], try {attempt}, is there in part: {counts}"
            found.setdefault(run, []).extend([(instance, attempt)] * times.pop())
        return found

    def months(self) -> dict[str, set[str]]:
        """Return the runs whose rows each month has."""
        found: dict[str, set[str]] = {}
        for row in self.rows():
            found.setdefault(str(row["month"]), set()).add(row["run"])
        return found

    def commits(self) -> list[Mapping[str, Any]]:
        """Return the ``commitInfo`` of each version, oldest first."""
        return [self.info(version) for version in self.versions()]

    def committed_by(self) -> list[str]:
        """Return by version the run that committed it."""
        return [commit.get("tags", {}).get("airflow.runId", "-") for commit in self.commits()]

    def staged_files(self) -> set[str]:
        """Return all Parquet files under ``staged/``, published or not."""
        return {str(path.relative_to(self.path)) for path in self.path.glob("staged/**/*.parquet")}

    def live_files(self) -> set[str]:
        """Return the files of the latest version."""
        import deltalake

        if self.version < 0:
            return set()
        return set(deltalake.DeltaTable(str(self.path)).get_add_actions().column("path").to_pylist())

    def append(self, month: str, run: str = "another-writer") -> None:
        """Append a stage's rows as another engine: delta-rs."""
        import deltalake
        import pyarrow as pa

        columns = {
            "id": pa.array(range(ROWS), pa.int64()),
            "run": [run] * ROWS,
            "instance": pa.array([-1] * ROWS, pa.int32()),
            "attempt": pa.array([1] * ROWS, pa.int32()),
            "month": [month] * ROWS,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        deltalake.write_deltalake(str(self.path), pa.table(columns), mode="append", partition_by=["month"])
