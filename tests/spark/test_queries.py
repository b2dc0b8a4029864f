"""SQL texts of an author: what runs on Spark's driver is refused in every spelling that Spark understands."""

from __future__ import annotations

import re

import pytest

from airflow_delta.contract.audit import SqlCheck
from airflow_delta.contract.queries import query_problem, with_escaped_quotes
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.spark.audit import query_answer
from airflow_delta.spark.queries import run_query
from airflow_delta.spark.run_operation import read_source

READS_HOME = "('java.lang.System', 'getenv', 'HOME')"

RUN_ON_THE_DRIVER = [
    f"SELECT reflect{READS_HOME}",
    f"SELECT ReFlect {READS_HOME}",
    f"SELECT `reflect`{READS_HOME}",
    f"SELECT system.builtin.reflect{READS_HOME}",
    f"SELECT `system`.`builtin`.`try_reflect` {READS_HOME}",
    f"SELECT java_method\n-- a comment\n{READS_HOME}",
    f"SELECT reflect/* a /* nested */ comment */{READS_HOME}",
    f"SELECT reflect -- continued \\\n still\n{READS_HOME}",
    f"SELECT /* ' */ reflect{READS_HOME} /* ' */",
    f"SELECT IDENTIFIER('reflect'){READS_HOME}",
    f"SELECT identifier('ref' || 'lect'){READS_HOME}",
    f"SELECT IDENTIFIER ( 'reflect' ) /**/ {READS_HOME}",
    f"WITH t AS (SELECT try_reflect{READS_HOME} AS a) SELECT * FROM t",
    "SELECT length('${env:HOME}')",
    'SELECT length(r"${system:user.home}")',
    "SELECT 1 -- ${env:HOME}",
    "SELECT TRANSFORM(1) USING 'cat' AS (a)",
    "FROM (SELECT 1 AS a) t MAP a USING\n-- x\n'cat' AS b",
    "SELECT TRANSFORM(1) USING /* x */ 'cat' AS (a)",
]

QUERIES = [
    "SELECT 'we reflect on USING it' AS a, 1 AS reflect, 2 AS java_method",
    "SELECT /*+ BROADCAST(b) */ * FROM VALUES (1) AS a(id) JOIN VALUES (1) AS b(id) USING (id)",
    "SELECT * FROM VALUES (1) AS a(id) JOIN VALUES (1) AS b(id)\nUSING\n(id)",
    "SELECT '$\\{env:HOME}' AS a, '$5' AS b, '${{x}}' AS c",
    "SELECT transform(array(1), x -> x + 1) AS a",
    "SELECT count(*) FROM IDENTIFIER('some_view')",
]


@pytest.mark.parametrize("text", RUN_ON_THE_DRIVER)
def test_what_runs_on_the_driver(spark, text):
    since = "4.2" if "builtin" in text else "4.0" if "try_reflect" in text else "3.5"
    if spark.version >= since:  # before, Spark knows no such names
        assert spark.sql(text).schema is not None, "Spark understands it"
    assert query_problem(text) is not None
    for run in (
        lambda: run_query(spark, text, whose="a test"),
        lambda: read_source(spark, {"sql": text}, {}),
        lambda: query_answer(spark, SqlCheck(name="a", sql=text)),
    ):
        with pytest.raises(DeltaIllegalArgumentException, match=r"never allowed|runs a script|contains|turns text"):
            run()


@pytest.mark.parametrize("text", QUERIES)
def test_what_only_reads(spark, text):
    spark.range(3).createOrReplaceTempView("some_view")
    assert query_problem(text) is None
    assert len(run_query(spark, text, whose="a test").take(1)) == 1
    assert spark.conf.get("spark.sql.variable.substitute") == "true"


def test_parameters(spark):
    text = "SELECT :day AS day, count(*) FROM IDENTIFIER(:name)"
    spark.range(3).createOrReplaceTempView("some_view")
    assert tuple(run_query(spark, text, whose="a", parameters={"day": "${env:HOME}", "name": "some_view"}).first()) == (
        "${env:HOME}",
        3,
    )


def test_a_check_reads_no_files(spark, tmp_path):
    (tmp_path / "secret").write_text("hush")
    text = f"SELECT true, value FROM text.`{tmp_path}/secret`"
    assert run_query(spark, text, whose="a stage may").first()["value"] == "hush"
    found = query_answer(spark, SqlCheck(name="a", sql=text))
    assert found.passed is None
    assert re.search("TABLE_OR_VIEW_NOT_FOUND", found.problem or "")
    assert spark.conf.get("spark.sql.runSQLOnFiles") == "true"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'it''s'", "it's"),
        ('"say ""a"", it\'\'s"', "say \"a\", it''s"),
        ("''''", "'"),
        ("'' || 'a'", "a"),
        (r"'a\''''", "a''"),
        (r"'a\\''b'", r"a\'b"),
        ("'a' 'b'", "ab"),
        ("r'a''b'", "ab"),
        ("concat('a', /* it''s ' */ '''')", "a'"),
        ("concat('a', -- it's ''\n 'b''')", "ab'"),
        ("named_struct('x''y', 'a').`x'y`", "a"),
    ],
)
def test_doubled_quotes_mean_the_same_in_every_spark(spark, text, value):
    from pyspark.sql import functions as sf

    escaped = with_escaped_quotes(text)
    assert with_escaped_quotes(escaped) == escaped
    assert spark.range(1).select(sf.expr(escaped)).first()[0] == value
