"""What one task reads: the log, the manifests of other stages, the handle and the schema, each of them once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk.definitions._internal import contextmanager

from airflow_delta.contract.payloads import ManifestRef, Payload, StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import MANIFEST_NAME
from airflow_delta.log import DeltaLog, delta_log
from airflow_delta.log.schema import types
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.operators.pyspark import DeltaStagePySparkOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from support import readers
from support.running_tasks import context
from support.watching import commit, start

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("outside_of_the_task_runner")]


class Counts(Counter[str]):
    """How often a task has read what; beginning to count forgets what is cached."""

    def of(self, task: Callable[[], Any]) -> Any:
        self.clear()
        types.parse_schema.cache_clear()
        return task()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    found = Counts()

    def count(owner: Any, name: str, key: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            found[key(*args)] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    from_dict = Payload.from_dict.__func__  # type: ignore[attr-defined]

    def parsed(cls: type[Payload], value: Any) -> Any:
        found[cls.__name__] += 1
        return from_dict(cls, value)

    monkeypatch.setattr(Payload, "from_dict", classmethod(parsed))
    count(DeltaLog, "update", lambda *_: "updates")
    count(delta_log, "load_segment", lambda *_, **__: "segments")
    count(LocalStore, "read", lambda _, path: "manifests" if path.endswith(MANIFEST_NAME) else "files")
    count(types, "_parse_type", lambda value: "schemas" if isinstance(value, dict) else "types")
    yield found
    types.parse_schema.cache_clear()


def stage_files(handle: dict[str, Any], task_id: str, partitions: range, files: int = 1) -> dict[str, Any]:
    for part in partitions:
        directory = Path(handle["stagingPath"].removeprefix("file://")) / task_id / f"p={part}"
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(files):
            pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), directory / f"part-{number}.parquet")
    operator = DeltaStageFilesOperator(task_id=task_id, transaction=handle, path=task_id)
    staged: dict[str, Any] = operator.execute(context(operator))
    return staged


def publish(handle: dict[str, Any], *staged: dict[str, Any], run_id: str = "a_run") -> dict[str, Any]:
    operator = commit(handle, *staged)
    return operator.execute(context(operator, run_id=run_id))


def test_a_task_reads_everything_once(tmp_path: Path, spark: Any, counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "table")
    handle = start(uri, partition_by="p", transaction_key="new")
    publish(handle, stage_files(handle, "files", range(3)), run_id="an_earlier_run")
    handle = start(uri, transaction_key="key")
    other = start(uri, transaction_key="other")
    publish(
        other, stage_files(other, "files", range(20, 21)), run_id="another_run"
    )  # the table moves on: the version that is read is not the latest

    first = counts.of(lambda: stage_files(handle, "first", range(10), files=12))
    assert first["manifest"], "so many files are for a manifest"
    found = tuple(counts[name] for name in ("updates", "segments", "files", "schemas"))
    assert found == (0, 2, 1, 1), "what the table is at the version that is read, and the latest version on the way"

    def rows(table: Any, spark: Any) -> Any:
        assert [table(f"p = '{part}'").count() for part in (1, 2)] == [13, 13]
        return spark.sql("SELECT 100L AS id, '1' AS p")

    operator = DeltaStagePySparkOperator(
        task_id="second",
        python_callable=rows,
        transaction=handle,
        after=[first],
        mode="overwrite",
        replace_where="id > 5 AND p = '1'",
    )
    monkeypatch.setattr(contextmanager, "_CURRENT_CONTEXT", [running := context(operator)])
    second = counts.of(lambda: operator.execute(running))
    kinds = [kind.__name__ for kind in (TransactionHandle, StagedWrite, ManifestRef)]
    assert {name: counts[name] for name in kinds} == dict.fromkeys(kinds, 1)
    assert {name: counts[name] for name in ("manifests", "schemas")} == {"manifests": 1, "schemas": 1}
    assert (counts["updates"], counts["segments"]) == (0, 2), "the latest version, and the one that is read"

    result = counts.of(lambda: publish(handle, first, second))
    assert (counts["TransactionHandle"], counts["StagedWrite"], counts["ManifestRef"]) == (1, 2, 1)
    assert (counts["manifests"], counts["schemas"], counts["updates"], counts["segments"]) == (1, 1, 1, 2)
    assert result["version"] == 2
    assert sorted(row["id"] for row in readers.rows(uri) if row["p"] == "1") == [0, 0, 1, 2, 3, 4, 5, 100]
