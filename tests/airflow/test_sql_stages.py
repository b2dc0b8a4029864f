"""Stages of SQL: files, ``{{ table }}`` as a view of the version read, what is refused, and what counts as read."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.definitions._internal import contextmanager

from airflow_delta.exceptions import (
    ConcurrentAppendException,
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
)
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.sql import DeltaStageSqlOperator
from airflow_delta.table.stage.write.sql_query import SqlQuery
from support.actions import column, schema
from support.running_tasks import context
from support.table import Table
from support.watching import commit, start

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.usefixtures("outside_of_the_task_runner")]

DAY = date(2026, 1, 1)
ROWS = "SELECT id, DATE'2025-01-01' AS day, 'old' AS note FROM range(3)"
OLD = [(number, date(2025, 1, 1), "old") for number in range(3)]


@pytest.mark.slow
def test_a_file_that_reads_the_table(run_dag, tables, spark):
    table = Table(Path(tables) / "sql_file", spark)
    table.write(ROWS)
    run = run_dag("sql_file")
    assert run.state == "success", run.tasks
    assert table.rows() == sorted([*OLD, *((number, DAY, "a;b") for number in (3, 4, 5))], key=repr)
    assert run.xcom("txn.daily")["reads"]["wholeTable"] is True


@pytest.mark.slow
def test_mapped_queries(run_dag, tables, spark):
    table = Table(Path(tables) / "sql_mapped", spark)
    table.write(ROWS)
    run = run_dag("sql_mapped")
    assert run.state == "success", run.tasks
    rows = table.rows()
    assert len(rows) == 5
    assert (3, DAY, "a;b") in rows
    assert len([row for row in rows if row[0] >= 100]) == 1
    assert len(table.versions()) == 2


@pytest.mark.slow
def test_the_source_of_a_merge_in_a_file(run_dag, tables, spark):
    table = Table(Path(tables) / "sql_merge", spark)
    table.write(ROWS)
    run = run_dag("sql_merge")
    assert run.state == "success", run.tasks
    assert sorted(row[2] for row in table.rows()) == ["2026-01-01old", "2026-01-01old", "old"]


class Stage:
    """A stage outside of a Dag run, with its fields rendered as a task's are."""

    def __init__(self, handle: Any, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> None:
        self.operator = DeltaStageSqlOperator(task_id="rows", transaction=handle, **arguments)
        running = context(self.operator)
        self.operator.render_template_fields({**running, "ds": "2026-01-01"})
        monkeypatch.setattr(contextmanager, "_CURRENT_CONTEXT", [running])
        self.context = running

    def run(self) -> dict[str, Any]:
        return self.operator.execute(self.context)


@pytest.fixture(scope="module")
def original(tmp_path_factory, spark) -> Table:
    found = Table(tmp_path_factory.mktemp("original") / "t", spark)
    found.write(ROWS)
    return found


@pytest.fixture
def table(tmp_path, spark, original) -> Table:
    found = Table(tmp_path / "t", spark)
    found.copy_from(original)
    return found


def publish(handle, staged):
    operator = commit(handle, staged)
    return operator.execute(context(operator))


READS = [
    # SQL, where, the other transaction's row, whether it conflicts
    ("SELECT id + 10 AS id, day, note FROM {{ table }}", None, 50, True),
    ("SELECT id + 10 AS id, day, note FROM {{ TABLE | default(table) }}", None, 50, True),
    ("SELECT id + 10 AS id, day, note FROM {{ table }}", "id < 3", 50, False),
    ("SELECT id + 10 AS id, day, note FROM {{ table }}", "id < 3", 2, True),
    ("SELECT 10L AS id, DATE'{{ ds }}' AS day, 'x' AS note", None, 50, False),
]


@pytest.mark.parametrize(("sql", "where", "other", "conflicts"), READS)
def test_what_counts_as_read(table, monkeypatch, sql, where, other, conflicts):
    handle = start(table.uri, transaction_key="mine", isolation_level="Serializable")
    table.write(f"SELECT {other}L AS id, DATE'2025-01-01' AS day, 'theirs' AS note")
    staged = Stage(handle, monkeypatch, sql=sql, where=where).run()
    assert staged["numRecords"] == (3 if "table" in sql.lower() else 1), "the version read, not the latest"
    if conflicts:
        with pytest.raises(ConcurrentAppendException):
            publish(handle, staged)
    else:
        assert publish(handle, staged)["version"] == 2


def test_as_earlier_stages_leave_it(table, monkeypatch):
    handle = start(table.uri, transaction_key="mine")
    first = Stage(handle, monkeypatch, sql="SELECT 7L AS id, current_date() AS day, 'new' AS note").run()
    second = Stage(handle, monkeypatch, sql="SELECT id + 10 AS id, day, note FROM {{ table }} WHERE note = 'new'", after=[first])
    assert second.run()["numRecords"] == 1


def test_a_table_that_does_not_exist_yet(tmp_path, spark, monkeypatch):
    """It is empty if its columns are known; whoever creates it with rows meanwhile is a conflict."""
    sql = "SELECT count(*) AS id FROM {{ table }}"
    handle = start(str(tmp_path / "none"), transaction_key="mine")
    with pytest.raises(DeltaTableNotFoundException):
        Stage(handle, monkeypatch, sql=sql).run()
    known = {"schema": schema(column("id", "long"))}
    for name in ("alone", "raced"):
        table = Table(tmp_path / name, spark)
        handle = start(table.uri, transaction_key="mine", **known)
        staged = Stage(handle, monkeypatch, sql=sql).run()
        if name == "raced":
            theirs = start(table.uri, transaction_key="theirs", **known)
            publish(theirs, Stage(theirs, monkeypatch, sql="SELECT 9L AS id").run())
            with pytest.raises(ConcurrentAppendException, match="has read rows"):
                publish(handle, staged)
        else:
            assert publish(handle, staged)["version"] == 0
            assert table.rows() == [(0,)]


REFUSED = [
    ("INSERT INTO t VALUES (1)", "leave out INSERT"),
    ("CREATE TABLE spark_catalog.default.leaked AS SELECT 1", "leave out INSERT"),
    ("DROP TABLE t", "is not a query"),
    ("CREATE TABLE x (a INT); SELECT 1", "only prepare"),
    ("CREATE TEMPORARY TABLE x USING parquet; SELECT 1", "only prepare"),
    ("SELECT 1 AS id; SELECT 2 AS id", "only prepare"),
    ("SET x.y = 1", "is not a query"),
    ("  -- nothing\n ; ", "is empty"),
    ("", "is empty"),
    ("SELEC 1", "is not a query"),
]


@pytest.mark.parametrize(("sql", "says"), REFUSED)
def test_what_is_refused_without_spark(table, monkeypatch, sql, says):
    stage = Stage(start(table.uri, transaction_key="mine"), monkeypatch, sql=sql)
    monkeypatch.setattr("airflow_delta.tasks.spark.session.TaskSession.session", None)
    with pytest.raises(DeltaAnalysisException, match=says) as raised:
        stage.run()
    assert "'rows'" in str(raised.value)


@pytest.mark.parametrize(
    "sql",
    [
        "WITH new AS (SELECT 1 AS id) INSERT INTO written SELECT * FROM new",
        "FROM range(3) INSERT INTO written SELECT id",
        "SELECT 1 AS id FROM",
    ],
)
def test_what_spark_refuses(table, monkeypatch, spark, tmp_path, sql):
    """A command would run when it is parsed, before there is anything to stage."""
    spark.range(0).write.parquet(f"{tmp_path}/written")
    spark.read.parquet(f"{tmp_path}/written").createOrReplaceTempView("written")
    with pytest.raises(DeltaAnalysisException, match="not a query that Spark can parse"):
        Stage(start(table.uri, transaction_key="mine"), monkeypatch, sql=sql).run()
    assert spark.read.parquet(f"{tmp_path}/written").count() == 0


def test_a_condition_that_nothing_uses(table, monkeypatch):
    with pytest.raises(DeltaIllegalArgumentException, match="does not name it"):
        Stage(start(table.uri, transaction_key="mine"), monkeypatch, sql="SELECT 1L AS id", where="id = 1").run()


def test_a_merge_that_reads_the_view_depends_on_the_table(table, monkeypatch):
    handle = start(table.uri, transaction_key="mine")
    source = "SELECT max(id) + 1 AS id, current_date() AS day, 'next' AS note FROM {{ table }}"
    operator = DeltaMergeOperator(task_id="m", transaction=handle, source=source, condition="target.id = source.id")
    operator.render_template_fields({})
    staged = operator.execute(context(operator))
    table.write("SELECT 50L AS id, DATE'2025-01-01' AS day, 'theirs' AS note")
    with pytest.raises(ConcurrentAppendException):
        publish(handle, staged)


def test_statements():
    text = "SET a.b=1; /* c; */ CREATE TEMP VIEW v AS SELECT ';' AS x; (SELECT 1); "
    query = SqlQuery.parse(text, whose="the stage 'x'")
    assert query.preparation == ("SET a.b=1", "CREATE TEMP VIEW v AS SELECT ';' AS x")
    assert query.query == "(SELECT 1)"
    assert [query.mentions(name) for name in ("V", "vv")] == [True, False]
