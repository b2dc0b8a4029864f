"""Stages that read other tables at versions that belong together, as ``DeltaHook.get_versions`` has returned them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task
from airflow.sdk.definitions._internal import contextmanager
from deltalake import write_deltalake

from airflow_delta.exceptions import DeltaIllegalArgumentException, VersionNotFoundException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.operators.arrow import DeltaStageArrowOperator
from airflow_delta.operators.merge import DeltaMergeOperator, DeltaMergePySparkOperator
from airflow_delta.operators.pyspark import DeltaStagePySparkOperator
from airflow_delta.operators.scd2 import DeltaScd2MergeOperator
from airflow_delta.operators.sql import DeltaStageSqlOperator
from support.publications import BEFORE, NAMES, World, kill_at_an_entry, leave_at, world_of_three_tables  # noqa: F401
from support.running_tasks import context
from support.watching import start

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("outside_of_the_task_runner")]


def all_ids(table: Any) -> pa.Table:
    return pa.concat_tables([table.other(name) for name in NAMES])


@pytest.fixture(autouse=True)
def lake(tmp_path, monkeypatch):
    """A connection whose base path is the lake."""
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "delta", "host": str(tmp_path)}))


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Run a stage for a table of its own; ``read_versions`` comes as XCom, unless the Dag file has it."""

    def run(versions: Any, *, cls: Any = DeltaStageArrowOperator, declared: Any = None, **arguments: Any) -> dict[str, Any]:
        target = tmp_path / "report"
        write_deltalake(str(target), pa.table({"id": pa.array([], pa.int64())}), mode="ignore")
        handle = start(str(target), transaction_key="mine", delta_conn_id="lake")
        if cls is DeltaStageArrowOperator:
            arguments.setdefault("python_callable", all_ids)
        with DAG("reports", schedule=None) as dag:
            if declared is None:
                declared = task(task_id="versions")(lambda: None)()
            operator = cls(
                task_id="stage", transaction=handle, table=str(target), delta_conn_id="lake", read_versions=declared, **arguments
            )
        operator = copy.copy(operator)  # as Airflow runs it: the Dag keeps the task as it is in its file
        running = context(operator, dag=dag)
        for field in operator.template_fields:
            given = versions if field == "read_versions" else operator.render_template(getattr(operator, field), running)
            setattr(operator, field, given)
        monkeypatch.setattr(contextmanager, "_CURRENT_CONTEXT", [running])
        return operator.execute(running)

    return run


def versions() -> dict[str, int]:
    return DeltaHook("lake").get_versions(NAMES)


class TestWhatIsRead:
    def test_all_tables_of_a_publication(self, world, stage):
        world.publish()
        assert stage(versions())["numRecords"] == 9

    def test_none_of_a_publication_that_one_table_lacks(self, world, killed_at, stage):
        leave_at(world, killed_at, 5)
        assert stage(versions())["numRecords"] == 3
        assert world.rows() != BEFORE, "the first tables show it"

    def test_the_versions_of_then_not_the_newest(self, world, stage):
        then = versions()
        world.publish()
        assert stage(then)["numRecords"] == 3

    def test_rows_and_columns(self, world, stage):
        def some(table):
            return table.other("orders", "id > 0", columns=["id"], limit=5)

        world.publish()
        assert stage(versions(), python_callable=some)["numRecords"] == 2

    def test_it_is_no_read_of_the_own_table(self, world, stage):
        reads = stage(versions())["reads"]
        assert not reads.get("wholeTable")
        assert not reads.get("predicates")

    @pytest.mark.spark
    @pytest.mark.slow
    def test_sql(self, world, killed_at, stage, spark):
        leave_at(world, killed_at, 5)
        sql = "WITH every AS (SELECT id FROM orders UNION ALL SELECT id FROM LINES) SELECT * FROM every UNION ALL TABLE totals"
        assert stage(versions(), cls=DeltaStageSqlOperator, sql=sql)["numRecords"] == 3

    @pytest.mark.spark
    @pytest.mark.slow
    def test_pyspark(self, world, stage, spark):
        def rows(spark, table):
            return table.other("orders").union(table.other("lines", "id = 1"))

        world.publish()
        assert stage(versions(), cls=DeltaStagePySparkOperator, python_callable=rows)["numRecords"] == 4


class TestSourcesOfAMerge:
    @pytest.mark.spark
    @pytest.mark.slow
    def test_sql(self, world, killed_at, stage, spark):
        leave_at(world, killed_at, 5)
        source = "SELECT id FROM orders UNION ALL SELECT id FROM lines"
        merged = stage(versions(), cls=DeltaMergeOperator, source=source, condition="target.id = source.id")
        assert merged["numRecords"] == 2, "no row of the publication, which the third table lacks"

    @pytest.mark.spark
    @pytest.mark.slow
    def test_pyspark(self, world, stage, spark):
        def rows(spark, table):
            return table.other("orders").select("id")

        world.publish()
        function = {"python_callable": rows, "condition": "target.id = source.id"}
        assert stage(versions(), cls=DeltaMergePySparkOperator, **function)["numRecords"] == 3

    @pytest.mark.parametrize("source", [lambda spark: spark.range(1), {"format": "parquet", "path": "/landing"}])
    @pytest.mark.parametrize(
        ("cls", "arguments"),
        [(DeltaMergeOperator, {"condition": "true"}), (DeltaScd2MergeOperator, {"keys": "id", "effective_at": "now()"})],
    )
    def test_a_source_that_cannot_read_them(self, stage, cls, arguments, source):
        with pytest.raises(DeltaIllegalArgumentException, match="'stage' has read_versions: views for the SQL"):
            stage({"orders": 0}, cls=cls, source=source, **arguments)

    def test_one_of_an_application(self, stage):
        with pytest.raises(DeltaIllegalArgumentException, match="'stage' has read_versions: views for the SQL"):
            stage({"orders": 0}, cls=DeltaMergeOperator, condition="true", application="job.py")


class TestXComIsNotBelieved:
    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda found: [*found.items()], "must be a mapping"),
            (lambda found: "orders", "must be a mapping"),
            (lambda found: {**found, "orders": -1}, "no such table"),
            (lambda found: {**found, "orders": True}, "whole number"),
            (lambda found: {**found, "orders": "latest"}, "whole number"),
            (lambda found: {**found, "orders": None}, "no such table"),
            (lambda found: {**found, "orders": 1.5}, "whole number"),
            (lambda found: {**found, "": 1}, "not a string"),
            (lambda found: {**found, "../elsewhere": 1}, "neither the Dag file"),
            (lambda found: {**found, "s3://elsewhere/orders": 1}, "neither the Dag file"),
            (lambda found: {**found, "/elsewhere": 1}, "neither the Dag file"),
            (lambda found: {**found, "report": 0}, "its own transaction"),
            (lambda found: {**found, "orders/": found["orders"]}, "twice"),
            (lambda found: {**found, "orders": found["orders"] - 1}, "do not belong together"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_it_is_checked(self, world, stage, change, why):
        world.publish()
        with pytest.raises(DeltaIllegalArgumentException, match=why):
            stage(change(versions()))

    def test_a_version_that_is_not_there(self, world, stage):
        with pytest.raises(VersionNotFoundException):
            stage({"orders": 99})

    def test_a_location_that_the_dag_file_writes_out(self, world, stage):
        def rows(table):
            return table.other(world.table("orders"))

        declared = {world.table("orders"): "{{ ti.xcom_pull('versions')['orders'] }}"}
        assert stage({world.table("orders"): "0"}, declared=declared, python_callable=rows)["numRecords"] == 1

    def test_a_table_that_it_does_not_have(self, world, stage):
        found = versions()
        del found["totals"]
        with pytest.raises(DeltaIllegalArgumentException, match="'totals', which its read_versions do not have"):
            stage(found)

    def test_a_stage_without_any(self, world, stage):
        with pytest.raises(DeltaIllegalArgumentException, match="they have none"):
            stage({})

    def test_versions_that_nobody_has_looked_up(self, world, stage):
        """In SQL, the name would be that of a table in Spark's catalog."""
        with pytest.raises(DeltaIllegalArgumentException, match="None, but the Dag file has some"):
            stage(None)
