"""SQL checks of an audit on a Spark without Delta: what the views hold, and what counts as an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.audit import AuditCheck
from airflow_delta.contract.merge import when_matched_update, when_not_matched_insert
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.spark.run_operation import run_operation
from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.audit.sql_checks import judge_answers, parse_sql_checks, plan_sql_checks
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from support.actions import column
from support.feature_tables import create
from support.table import Table

pytestmark = pytest.mark.spark


@pytest.fixture
def table(tmp_path: Path, spark: Any) -> Table:
    return Table(tmp_path / "ta ble [x]ü", spark)


def made(table: Table, **configuration: str) -> None:
    """Make a table of ids 0 to 9, one file."""
    create(table, column("id", "long"), column("v", "integer"), **configuration)
    table.write("SELECT id, CAST(id AS INT) v FROM range(0, 10, 1, 1)")


@pytest.fixture
def ansi(spark):
    """Spark 4's default."""
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "true")
    yield
    spark.conf.set("spark.sql.ansi.enabled", before)


def ask(table: Table, handle: TransactionHandle, checks: dict[str, Any], *staged: StagedWrite) -> dict[str, AuditCheck]:
    """Ask SQL checks as the tasks would: what travels goes through JSON."""
    parsed = parse_sql_checks(checks)
    planned = plan_sql_checks(AuditedTable(table.log(), handle, staged), parsed, task_id="audit", attempt=new_attempt())
    request = StageRequest.from_dict(json.loads(json.dumps(planned.to_dict())))
    report = StageReport.from_dict(json.loads(json.dumps(run_operation(table.spark, request).to_dict())))
    return {outcome.name: outcome for outcome in judge_answers(parsed, report)}


def views(table: Table, handle: TransactionHandle, *staged: StagedWrite, what: str = "id") -> dict[str, str]:
    """What each view holds."""
    query = f"SELECT true, array_sort(collect_list({what})) AS found FROM "
    found = ask(table, handle, {name: query + name for name in ("staged", "result", "before")}, *staged)
    return {name: outcome.message.partition("found = ")[2] for name, outcome in found.items()}


def test_views_of_an_overwrite(table):
    made(table)
    handle = table.begin()
    staged = table.stage(handle, "SELECT id, 0 AS v FROM range(5, 7)", mode="overwrite", replace_where="id >= 5")
    assert views(table, handle, staged) == {
        "staged": "[5, 6]",
        "result": "[0, 1, 2, 3, 4, 5, 6]",
        "before": "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]",
    }
    table.publish(handle, staged)
    assert [row[0] for row in table.rows()] == list(range(7))


@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["true", "false"])
def test_views_of_a_delete(table, vectors):
    made(table, **{"delta.enableDeletionVectors": vectors})
    handle = table.begin()
    staged = table.operate(handle, plan_delete, predicate="id < 8")
    assert views(table, handle, staged) == {
        "staged": "[]",  # the rows that stay are no rows that the stage brings
        "result": "[8, 9]",
        "before": "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]",
    }


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_views_of_an_update(table, vectors):
    made(table, **{"delta.enableDeletionVectors": vectors})
    handle = table.begin()
    staged = table.operate(handle, plan_update, set={"v": "-1"}, predicate="id = 3")
    found = views(table, handle, staged, what="v")
    assert found["result"] == "[-1, 0, 1, 2, 4, 5, 6, 7, 8, 9]"
    # Without deletion vectors the rows that stay are written into the same files as those that change.
    assert found["staged"] == ("[-1]" if vectors == "true" else found["result"])


@pytest.mark.slow
def test_views_of_a_merge_on_top_of_a_write(table):
    made(table)
    handle = table.begin()
    first = table.stage(handle, "SELECT 20L AS id, 20 AS v")
    second = table.operate(
        handle,
        plan_merge,
        source="SELECT * FROM VALUES (20L, 21), (30L, 30) AS s(id, v)",
        condition="target.id = source.id",
        clauses=[when_matched_update(), when_not_matched_insert()],
        after=[first],
    )
    found = views(table, handle, first, second, what="v")
    assert found["result"] == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 21, 30]"
    assert found["staged"] == "[21, 30]"


def test_views_of_a_new_table_and_of_new_columns(table):
    handle = table.begin(partition_by=["p"])
    staged = table.stage(handle, "SELECT id, DATE'2026-01-01' AS p FROM range(2)")
    assert views(table, handle, staged, what="CAST(p AS STRING)") == {
        "staged": "['2026-01-01', '2026-01-01']",
        "result": "['2026-01-01', '2026-01-01']",
        "before": "[]",
    }
    table.publish(handle, staged)
    handle = table.begin()
    staged = table.stage(handle, "SELECT 7L AS id, DATE'2026-01-02' AS p, 'x' AS new", merge_schema=True)
    query = "SELECT count(*) = 3 AND count(new) = 1 FROM result"
    assert ask(table, handle, {"new": query}, staged)["new"].passed


def test_columns_have_their_logical_names(table):
    made(table, **{"delta.columnMapping.mode": "name"})
    handle = table.begin()
    staged = table.stage(handle, "SELECT 99L AS id, 99 AS v")
    assert views(table, handle, staged)["staged"] == "[99]"
    assert views(table, handle, staged, what="v")["result"] == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 99]"


ANSWERS: list[tuple[str, bool, Any, str]] = [
    # query, passed, value, part of the message
    ("SELECT count(*) = 2 FROM staged", True, True, "the query says true"),
    ("SELECT count(*) = 3, count(*) AS n, max(id) AS top FROM staged", False, False, "the query says false; n = 2, top = 1"),
    ("SELECT max(v) > 0 FROM staged WHERE id > 99", False, None, "the query says null"),
    ("SELECT NULL", False, None, "the query says null"),
    ("SELECT count(*) FROM staged", False, None, "is a bigint"),
    ("SELECT id > 0 FROM staged", False, None, "more than one row"),
    ("SELECT id > 0 FROM staged WHERE id > 99", False, None, "no row"),
    ("SELECT nothing FROM staged", False, None, "the query failed"),
    ("SELEKT 1", False, None, "the query failed"),
    ("SELECT count(*) > 0 FROM no_such_table", False, None, "the query failed"),
    ("SELECT max(id div (id - 1)) > 0 FROM staged", False, None, "the query failed: [DIVIDE_BY_ZERO]"),
]


def test_answers(table, ansi):
    made(table)
    handle = table.begin()
    staged = table.stage(handle, "SELECT id, CAST(id AS INT) AS v FROM range(2)")
    outcomes = ask(table, handle, {query: query for query, *_ in ANSWERS}, staged)
    found = [(name, o.passed, o.value) for name, o in outcomes.items()]
    assert found == [(query, passed, value) for query, passed, value, _ in ANSWERS]
    for query, _, _, part in ANSWERS:
        assert part in outcomes[query].message, outcomes[query].message


def test_figures_are_cut(table):
    made(table)
    handle = table.begin()
    staged = table.stage(handle, "SELECT 1L AS id, 1 AS v")
    outcome = ask(table, handle, {"a": "SELECT true, repeat('x', 100000) AS text FROM staged"}, staged)["a"]
    assert outcome.message == f"the query says true; text = {'x' * 1000}"


def test_views_are_gone_afterwards(table):
    made(table)
    handle = table.begin()
    staged = table.stage(handle, "SELECT 1L AS id, 1 AS v")
    assert ask(table, handle, {"a": "SELECT true FROM staged"}, staged)["a"].passed
    assert not any(table.spark.catalog.tableExists(name) for name in ("staged", "result", "before"))
