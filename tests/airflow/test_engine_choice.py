"""``engine="auto"``: Spark or the worker by the size of what the plan reads, and by what the worker can do."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.execution_time.context import set_current_context

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.tasks import engines
from airflow_delta.tasks.engines import EngineChoice, bytes_to_read
from support.actions import column
from support.feature_tables import create
from support.running_tasks import context
from support.table import WorkerTable

VECTORS = {"delta.enableDeletionVectors": "true"}
CHOSEN = re.compile(r"engine=auto: (\w+) of \S+ is done by (the worker|Spark): (\w+ \w+)")


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, ...]]]:
    """What tasks have said about their engines since it was asked last."""
    caplog.set_level("INFO", logger=engines.__name__)

    def read() -> list[tuple[str, ...]]:
        found = [match.groups() for match in CHOSEN.finditer(caplog.text)]
        caplog.clear()
        return found

    return read


def made(path: Path | str, **configuration: str) -> WorkerTable:
    table = WorkerTable(path)
    create(table, column("id", "long"), column("v", "long"), **configuration)
    for first in (0, 3, 6):
        table.write(pa.table({"id": range(first, first + 3), "v": [0] * 3}))
    return table


EXPECTED = [0, 2, 3, 4, 6, 7, 8]


@pytest.mark.airflow
@pytest.mark.spark
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_dag_runs(run_dag: Any, tables: str, told: Any, spark: Any, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    path = Path(tables) / "auto_engine"
    if path.exists():
        path.rename(path.with_name("auto_engine_before"))
    table = made(path, **VECTORS)
    if large:
        monkeypatch.setattr(engines, "AUTO_BYTES", 100)
    told()
    run = run_dag("auto_engine", None)
    assert run.state == "success"
    by = "Spark" if large else "the worker"
    assert told() == [
        ("DELETE", by, "the plan"),
        ("UPDATE", by, "the plan"),
        *([] if large else [("UPDATE", "Spark", "the worker")]),
        *[(operation, by, "the plan") for operation in ("MERGE", "MERGE")],
        *([] if large else [("MERGE", "Spark", "the worker")]),
        *[(operation, by, "the plan") for operation in ("OPTIMIZE", "OPTIMIZE", "DELETE", "REORG")],
    ]
    rows = dict(table.rows())
    assert rows[8] == 11, "what one MERGE set, and the other took up"
    assert sorted(rows) == EXPECTED
    assert rows[2] == spark.sql("SELECT pmod(xxhash64(2L), 7)").first()[0]
    assert len(table.live()) == 1


@pytest.mark.airflow
@pytest.mark.spark
@pytest.mark.slow
def test_what_is_too_large_is_submitted(run_dag: Any, tables: str, told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(f"{tables}/auto_submitted")
    monkeypatch.setattr(engines, "AUTO_BYTES", 100)
    run = run_dag("auto_submitted")
    gc.collect()
    assert run.state == "success"
    assert told() == [("DELETE", "Spark", "the plan")]
    assert [row[0] for row in table.rows()] == [0, *range(3, 9)]


@pytest.mark.spark
@pytest.mark.parametrize("first", ["the worker", "Spark"])
@pytest.mark.parametrize("configuration", [{}, VECTORS], ids=["copy on write", "deletion vectors"])
def test_a_second_try_may_choose_the_other_engine(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, configuration: dict[str, str]
) -> None:
    """What the first has staged, and never reported, is not part of the table."""
    table = made(tmp_path / "table", **configuration)
    operator = DeltaDeleteOperator(task_id="stage", table=table.uri, predicate="id % 3 = 1", engine="auto")
    handle = table.begin()
    for by in (first, "Spark" if first == "the worker" else "the worker"):
        monkeypatch.setattr(engines, "AUTO_BYTES", 1 << 20 if by == "the worker" else 0)
        stage = table.view(handle)
        planned = plan_delete(stage, predicate="id % 3 = 1")
        before = len(list((table.path / "staged").rglob("*.parquet")))
        asked, report = operator.work(stage, planned.request)
        assert len(list((table.path / "staged").rglob("*.parquet"))) > before
    result = table.publish(handle, planned.collect(asked, report))
    assert (result.num_removed_files, [row[0] for row in table.rows()]) == (3, [0, 2, 3, 5, 6, 8])


@pytest.mark.spark
def test_a_refusal_after_something_was_written_goes_to_spark(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows show only when they are reached that the worker does not know their value."""
    table = WorkerTable(tmp_path / "table")
    create(table, column("id", "long"), column("name", "string"))
    monkeypatch.setattr("airflow_delta.table.arrow.files.ROW_GROUP_BYTES", 1)
    monkeypatch.setattr("airflow_delta.table.arrow.files.FILE_BYTES", 1)
    for names in (["a", "b"], ["c", "ẞ"]):
        table.write(pa.table({"id": range(len(names)), "name": names}))
    values = {"name": "lower(name)"}
    operator = DeltaDeleteOperator(task_id="stage", table=table.uri, predicate="id = 1", engine="auto")
    handle = table.begin()
    stage = table.view(handle)
    planned = plan_update(stage, set=values)
    asked, report = operator.work(stage, planned.request)
    staged = planned.collect(asked, report)
    table.publish(handle, staged)
    expected = sorted(
        row[0] for row in spark.sql("SELECT lower(name) FROM VALUES ('a'), ('b'), ('c'), ('ẞ') AS t(name)").collect()
    )
    assert sorted(row[1] for row in table.rows()) == expected
    written = {path.name for path in (table.path / "staged").rglob("*.parquet")}
    assert {Path(path).name for path in table.live()} <= written


def test_the_plan_of_spark_is_good_for_the_worker(tmp_path: Path) -> None:
    """Its URIs may be others."""
    table = made(tmp_path / "table", **VECTORS)
    choice = EngineChoice.of(DeltaDeleteOperator(task_id="t", table="/t", predicate="id = 1", engine="auto"))
    elsewhere = f"file://{table.path}"
    assert choice.table_uri(table.log(), elsewhere) == elsewhere
    for plan, arguments in (
        (plan_delete, {"predicate": "id = 1"}),
        (plan_update, {"set": {"v": "id + 1"}, "predicate": "id > 6"}),
        (plan_optimize, {"z_order_by": ["id"], "max_file_size": 600}),
    ):
        handle = table.begin()
        planned = plan(table.view(handle, spark_table_uri=elsewhere), **arguments)
        assert planned.request.path.startswith("file:///")

        def never(_request: Any) -> Any:
            raise AssertionError("Spark is not asked")

        asked, report = choice.carry_out(table.log(), planned.request, never)
        table.publish(handle, planned.collect(asked, report))
    assert table.rows() == [(0, 0), *((i, 0) for i in range(2, 7)), (7, 8), (8, 9)]


def test_deletion_vectors_are_read_too(tmp_path: Path) -> None:
    table = made(tmp_path / "table", **VECTORS)
    before = bytes_to_read(plan_optimize(table.view(table.begin()), z_order_by=["id"]).request)
    assert before == sum(file.size for file in table.log().update().add_files())
    table.run(plan_delete, predicate="id IN (1, 3)")
    assert bytes_to_read(plan_optimize(table.view(table.begin()), z_order_by=["id"]).request) == before + 32


def test_what_an_earlier_try_has_submitted_is_waited_for(
    tmp_path: Path, outside_of_the_task_runner: Any, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the worker would do it now."""
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_delta.table.arrow.rewrite.run import run_in_worker
    from airflow_delta.table.stage.write.job_runs import put_request

    table = made(tmp_path / "table")
    handle = table.begin()

    def attempt(work: Callable[[Any], Any]) -> Any:
        operator = DeltaDeleteOperator(
            task_id="stage", table=table.uri, predicate="id = 1", engine="auto", spark_submit={}, package_uri="/p.zip"
        )
        stage = table.view(handle)
        request = plan_delete(stage, predicate="id = 1").request
        monkeypatch.setattr(SparkSubmitHook, "submit", lambda _hook, _application: work(request))
        with set_current_context(context(operator)):
            return operator.work(stage, request)

    def lost(request: Any) -> None:
        put_request(table.log(), request)
        report = run_in_worker(table.log(), request).to_dict()
        table.log().store.put(f"{request.directory}/reports/part-00000.txt", _json(report))
        raise SystemExit("the worker was killed")

    with monkeypatch.context() as small:
        small.setattr(engines, "AUTO_BYTES", 0)
        with pytest.raises(SystemExit):
            attempt(lost)
    told()
    first, report = attempt(lambda _request: pytest.fail("it was submitted again"))
    assert told() == [("DELETE", "Spark", "an earlier")]
    assert first.attempt == report.attempt
    second, _ = attempt(lambda _request: pytest.fail("it was submitted again"))
    assert told() == [("DELETE", "the worker", "the plan")]
    assert second.attempt != first.attempt


def _json(report: Any) -> bytes:
    import json

    return json.dumps(report).encode()


def test_what_goes_with_it() -> None:
    DeltaDeleteOperator(
        task_id="t", table="/t", predicate="id = 1", engine="auto", max_memory=1, spark_submit={}, application="a.py"
    )
    with pytest.raises(DeltaIllegalArgumentException, match="a function as source, which returns what one engine reads"):
        DeltaMergeOperator(task_id="t", table="/t", source=lambda table: table, condition="target.id = source.id", engine="auto")
    with pytest.raises(DeltaIllegalArgumentException, match="engine must be one of spark, arrow, auto"):
        DeltaDeleteOperator(task_id="t", table="/t", predicate="id = 1", engine="automatic")
