"""What a Dag file says that cannot work: refused when Airflow parses it, or told by ``airflow delta check-dags``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.sdk import TriggerRule

from airflow_delta.contract.choices import choices_of
from airflow_delta.dag_checks import check_dag, dag_problems
from airflow_delta.dag_rules import trigger_rules
from airflow_delta.exceptions import DeltaDagWarning, DeltaIllegalArgumentException
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.shown_text import message_of
from support.dag_files import HEAD, bag_of

ROOT = Path(__file__).parents[2]


def audit(arguments: str) -> str:
    return f"{stage()}\nDeltaAuditOperator(task_id='a', transaction={{}}, {arguments})"


def merge(arguments: str = "") -> str:
    return f'DeltaMergeOperator(task_id="m", table="/lake/t", source="SELECT 1 AS id", condition="true", {arguments})'


def stage(arguments: str = "", around: str = "") -> str:
    return f"""
with delta_transaction("txn", table="/lake/t"{around}):
    @task.delta_stage({arguments})
    def rows(spark):
        return spark.range(1)
    rows()
"""


def arrow(arguments: str) -> str:
    return stage(f'engine="arrow", {arguments}').replace("(spark)", "(table)").replace("spark.range(1)", "table.table()")


REFUSED = [
    (stage('mode="overwrit"'), ["mode must be one of append, overwrite, dynamic, got 'overwrit'", "Did you mean 'overwrite'?"]),
    (stage('spark_credentials="theirs"'), ["spark_credentials must be one of own"]),
    (stage('create="replce"'), ["create must be one of"]),
    (stage(around=', rerun_policy="skp"'), ["rerun_policy must be one of skip, replace, append, fail, got 'skp'"]),
    (stage(around=', isolation_level="serializable"'), ["isolation_level", "Did you mean 'Serializable'?"]),
    (stage(around=', on_conflict="retry"'), ["on_conflict must be one of fail, restart, got 'retry'"]),
    (stage(around=', commit_kwargs={"checkpoint": "of"}'), ["checkpoint must be one of inline, off"]),
    (stage(around=', conflict_detection="row"'), ["conflict_detection must be one of"]),
    (stage(around=', stage_kwargs={"mode": "overwrit"}'), ["mode must be one of"]),
    (
        'DeltaCreateTableOperator(task_id="c", table="/lake/t", schema="id INT", mode="if_not_exists")',
        ["mode must be one of create,"],
    ),
    ('DeltaDeleteOperator(task_id="d", table="/lake/t", rerun_policy="never")', ["rerun_policy"]),
    ('DeltaMaintenanceOperator(task_id="m", tables="/lake/t", steps=["vacuum", "vacum"])', ["'vacum'", "Did you mean 'vacuum'?"]),
    (
        "@task.delta_stage\ndef rows(spark):\n    return spark.range(1)\nrows()",
        ["'rows': it stages rows, but belongs to no transaction", "with delta_transaction(...)"],
    ),
    ('DeltaDeleteOperator(task_id="d", predicate="id = 1")', ["'d': it has neither a table nor a transaction"]),
    (
        'DeltaDeleteOperator(task_id="one", table="/lake/t")\n'
        'DeltaDeleteOperator.partial(task_id="d", table="/lake/t").expand(rerun_policy=["skip", "nver"])',
        ["'d': rerun_policy must be one of", "'nver'"],
    ),
    (
        'DeltaDeleteOperator(task_id="one", table="/lake/t")\n'
        '@task.delta_stage(mode="all")\ndef rows(n, spark):\n    return spark.range(n)\nrows.expand(n=[1, 2])',
        ["'rows': mode must be one of"],
    ),
    (
        'DeltaDeleteOperator(task_id="one", table="/lake/t")\n'
        'DeltaStageFilesOperator.partial(task_id="f").expand(mode=["append", "append"])',
        ["'f': it stages rows, but belongs to no transaction"],
    ),
    (
        audit('value_range={"amount": {"minimum": 0}}'),
        ["'a': value_range.amount must be a mapping with min, max or both, got {'minimum': 0}"],
    ),
    (audit('value_range={"amount": (0, 9)}'), ["value_range.amount must be a mapping with min, max or both, got (0, 9)"]),
    (audit('value_range="0 to 9"'), ["value_range must be a mapping by column, got '0 to 9'"]),
    (audit('rows_change={"min": 1}'), ["rows_change must be a mapping with min_ratio, max_ratio or both"]),
    (
        stage() + 'DeltaAuditOperator.partial(task_id="m", transaction={}).expand(value_range=[{"a": {"min": 0}}, {"a": 1}])',
        ["'m': value_range.a must be a mapping with min, max or both, got 1"],
    ),
    (
        stage("replace_where=\"day = 'd1'\""),
        ["'txn.rows': replace_where needs mode='overwrite' and a predicate, got mode='append' and \"day = 'd1'\""],
    ),
    (
        stage('mode="dynamic", replace_where="day = 1"'),
        ["replace_where needs mode='overwrite' and a predicate, got mode='dynamic'"],
    ),
    (
        stage()
        + 'DeltaStageFilesOperator.partial(task_id="f", transaction={}, mode="append").expand(replace_where=["p = 1", "p = 2"])',
        ["'f': replace_where needs mode='overwrite' and a predicate, got mode='append' and 'p = 1'"],
    ),
    (
        arrow('mode="overwrite", replace_on="t.id = s.id"'),
        ["'txn.rows': replace_on cannot go with engine=\"arrow\"", 'Use engine="spark"'],
    ),
    (arrow('mode="overwrite", replace_using=["id"]'), ['replace_using cannot go with engine="arrow"']),
    (arrow('write_options={"compression": "brotli"}'), ["it has the write option compression='brotli'"]),
    (
        stage(around="").replace("/lake/t", "s4://lake/t"),
        ["'txn.start': table: The scheme s4:// of the location s4://lake/t is not supported"],
    ),
    (
        merge("clauses=[{'kind': 'not_matched', 'action': 'insert'}]"),
        ["'m': the MERGE has the clause 'not_matched' with action 'insert'; known are matched: update, delete; notMatched"],
    ),
    (
        merge("clauses=[{'kind': 'matched', 'action': 'update', 'conditions': 'source.n > 0'}]"),
        ["the MERGE has a clause with 'conditions' (did you mean 'condition'?); a clause has kind, action, condition, set"],
    ),
    (merge("clauses=[{'kind': 'matched'}]"), ["the MERGE has an invalid clause: MergeClause lacks the field action"]),
    (merge("clauses=[]"), ["'m': the MERGE has no clause: give at least one WHEN"]),
    (
        'DeltaMaintenanceOperator(task_id="m", tables=["/lake/t", "s4://lake/t"])',
        ["'m': tables: The scheme s4:// of"],
    ),
    (
        merge("clauses=[when_matched_update(), when_matched_update()]"),
        ["'m': the MERGE has a clause WHEN MATCHED without a condition before another one"],
    ),
    (
        merge().replace("SELECT 1 AS id", "contract.orders"),
        ["source of the task 'm' is 'contract.orders', which is not a query. Write the SELECT, or name files: source={"],
    ),
    (
        'DeltaAlterTableOperator(task_id="a", table="/lake/t", changes=[{"change": "SetPropertys", "properties": {}}])',
        ["'a': Not a change of ALTER TABLE: {'change': 'SetPropertys'", "Give one of AddColumns, ChangeColumn"],
    ),
    (
        'DeltaAlterTableOperator(task_id="a", table="/lake/t", changes=[{"change": "RenameColumn", "column": "a", "to": "b"}])',
        ["'a': RenameColumn has no field to; it has column, newName."],
    ),
]


@pytest.mark.parametrize(("body", "parts"), REFUSED)
def test_refused_when_the_dag_is_parsed(tmp_path, body, parts):
    bag = bag_of(tmp_path, body)
    (error,) = bag.import_errors.values()
    for part in parts:
        assert part in error


ACCEPTED = [
    merge("clauses=[{'kind': '{{ params.kind }}', 'action': 'insert'}]"),
    merge("clauses=[{'kind': 'matched', 'action': 'update', 'set': {'n': '{{ params.n }}'}}]"),
    stage('mode="{{ params.mode }}", replace_where="day = \'{{ ds }}\'"'),
    stage(around=", rerun_policy=\"{{ dag_run.conf['policy'] }}\""),
    'start = DeltaStartTransactionOperator(task_id="s", table="/lake/t")\n'
    'DeltaDeleteOperator(task_id="d", transaction=start.output)',
    'DeltaDeleteOperator.partial(task_id="d").expand_kwargs([{"table": "/lake/t"}])',
    'DeltaDeleteOperator.partial(task_id="d").expand(table=["/lake/t"])',
    stage('mode="{{ params.mode }}", replace_where="day = \'d1\'"'),
    stage('replace_where="{{ params.where }}"'),
    arrow('mode="overwrite", replace_where="day = 1", write_options={"compression": "{{ params.codec }}"}'),
    stage(around="").replace("/lake/t", "{{ params.scheme }}://lake/t"),
    stage('schema_policy="strict", expected_schema="id BIGINT, {{ params.columns }}"'),
    stage('schema_policy="strict", expected_schema="id BIGINT, tags ARRAY<STRING>"'),
    audit('value_range={"amount": {"min": "{{ params.least }}"}, "day": "{{ params.days }}"}, rows_change="{{ params.change }}"'),
    audit('value_range="{{ params.ranges }}", partitions="{{ params.days }}"'),
    'DeltaTableVersionSensor(task_id="s", table="s3://lake/t", partitions="day >= \'{{ ds }}\'")',
    merge('clauses="{{ params.clauses }}"'),
    merge('clauses=[{"kind": "{{ params.kind }}", "action": "delete"}]'),
    merge().replace("SELECT 1 AS id", "{{params.query}}"),
    'DeltaAlterTableOperator(task_id="a", table="/lake/t", changes="{{ params.changes }}")',
    'DeltaAlterTableOperator(task_id="a", table="/lake/t", changes=[{"change": "{{ params.kind }}"}])',
]


@pytest.mark.depends("sqlglot")
@pytest.mark.parametrize("body", ACCEPTED)
def test_what_is_known_only_later_is_not_refused(tmp_path, body):
    bag = bag_of(tmp_path, body)
    assert bag.import_errors == {}
    assert dag_problems(bag.dags["checked"]) == []


PREDICATES = [
    (
        stage('mode="overwrite", replace_where="day = = 1"'),
        "replace_where='day = = 1' is not valid Spark SQL: something is missing after '='",
    ),
    (stage('mode="overwrite", replace_where=""'), "replace_where='' is empty"),
    (stage('mode="overwrite", replace_where="day AS d"'), "is not a condition"),
    (stage('mode="overwrite", replace_on="t.id = s.id AND"'), "replace_on='t.id = s.id AND' is not valid Spark SQL"),
    ('DeltaDeleteOperator(task_id="d", table="/lake/t", predicate="WHERE id = 1")', "predicate='WHERE id = 1'"),
    ('DeltaDeleteOperator(task_id="d", table="/lake/t", predicate="SELECT 1")', "is a statement"),
    ('DeltaUpdateOperator(task_id="u", table="/lake/t", set={"a": "1 +"})', "set, column 'a': '1 +' is not valid Spark SQL"),
    (
        'DeltaMergeOperator(task_id="m", table="/lake/t", source="SELECT 1 AS id", '
        'condition="source.id = ", clauses=[when_matched_update()])',
        "condition='source.id = ' is not valid",
    ),
    (
        'DeltaMergeOperator(task_id="m", table="/lake/t", source="SELECT 1 AS id", '
        'condition="true", clauses=[when_matched_update({"id": "1 +"})])',
        "set of a clause, column 'id'",
    ),
    (audit('partitions="day == = 1"'), "partitions='day == = 1' is not valid Spark SQL: "),
    ('DeltaTableVersionSensor(task_id="s", table="/lake/t", partitions="day == = 1")', "partitions='day == = 1' is not valid"),
    (
        stage('schema_policy="strict", expected_schema="id BIGINTT, x"'),
        "expected_schema: The list of columns has 'bigintt' where a type is expected, at position 3",
    ),
    (
        stage('schema_policy="strict", expected_schema={"type": "struct", "fields": [{"name": "id"}]}'),
        "expected_schema: ",
    ),
    (
        'DeltaDeleteOperator.partial(task_id="d", table="/lake/t").expand(predicate=["id = 1", "id ="])',
        "predicate='id =' is not valid",
    ),
]


@pytest.mark.depends("sqlglot")
@pytest.mark.parametrize(("body", "said"), PREDICATES)
def test_predicates_are_checked_where_parsing_may_take_longer(tmp_path, body, said):
    bag = bag_of(tmp_path, body)
    assert bag.import_errors == {}
    dag = bag.dags["checked"]
    assert dag_problems(dag, predicates=False) == []
    (problem,) = dag_problems(dag)
    assert said in problem.message
    assert problem.dag_id == "checked"
    with pytest.raises(DeltaIllegalArgumentException, match=f"task {problem.task_id!r}"):
        check_dag(dag)


def two(first: str, second: str, around: str = "", call: str = "two()") -> str:
    return f"""
with delta_transaction("txn", table="/lake/t"{around}):
    @task.delta_stage({first})
    def one(spark):
        return spark.range(1)
    first = one()
    @task.delta_stage({second})
    def two(spark, n=0):
        return spark.range(1)
    {call}
"""


WHOLE = 'mode="overwrite"'
PART = 'mode="overwrite", replace_where="p = 1"'
OTHER = 'mode="overwrite", replace_where="p = 2"'
DAY = 'mode="overwrite", replace_where="day = \'{{ ds }}\'"'


@pytest.mark.parametrize(
    "body", [two(WHOLE, WHOLE), two(WHOLE, DAY), two(DAY, WHOLE), two(PART, PART), two(PART, PART, call="two.expand(n=[1, 2])")]
)
def test_two_overwrites_of_the_same_rows_are_refused(tmp_path, body):
    (error,) = bag_of(tmp_path, body).import_errors.values()
    assert "'txn.one' and 'txn.two' overwrite the same rows in one transaction" in error


@pytest.mark.parametrize(
    "body",
    [
        two(PART, OTHER),
        two(DAY, DAY),  # the commit looks at what they write
        two(WHOLE, f"{WHOLE}, after=[first]"),
        two(WHOLE, WHOLE, around=', commit_kwargs={"allow_skipped": True}'),  # branches
        two(WHOLE, 'mode="append"'),
        two(WHOLE, "mode='overwrite', replace_using=['id']"),
    ],
)
def test_overwrites_that_may_be_beside_each_other(tmp_path, body):
    assert bag_of(tmp_path, body).import_errors == {}


def test_parsing_a_dag_loads_no_parser_of_sql(tmp_path):
    body = stage('mode="overwrite", replace_where="day = 1"')
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    (tmp_path / "checked.py").write_text(f"{HEAD}{lines}\n")
    code = (
        f"from airflow.dag_processing.dagbag import DagBag\nbag = DagBag(dag_folder={str(tmp_path / 'checked.py')!r})\n"
        "assert list(bag.dags) == ['checked'], bag.import_errors\n"
        "import sys; print(*(m for m in ('sqlglot', 'pyarrow', 'pyspark', 'pandas', 'polars') if m in sys.modules))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "provider"), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].strip() == ""


def test_every_word_is_one_that_the_command_takes():
    from airflow_delta.operators.create import DeltaCreateTableOperator
    from airflow_delta.operators.stream import DeltaStreamOperator
    from airflow_delta.streaming.sink import OUTPUT_MODES
    from airflow_delta.table.definition.create import OPERATIONS

    assert set(choices_of(DeltaCreateTableOperator)["mode"]) == set(OPERATIONS)
    assert set(choices_of(DeltaStreamOperator)["mode"]) == set(OUTPUT_MODES)


def check_dags(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "provider"), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "airflow", "delta", "check-dags", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)


def test_literals_are_refused_where_the_task_is_made():
    with pytest.raises(DeltaIllegalArgumentException, match=r"'a': value_range\.amount must be a mapping with min, max or both"):
        DeltaAuditOperator(task_id="a", value_range={"amount": {"minimum": 0}})
    with pytest.raises(DeltaIllegalArgumentException, match="'f': replace_where needs mode='overwrite'"):
        DeltaStageFilesOperator(task_id="f", replace_where="day = 1")


def test_a_file_that_cannot_be_read_says_what_is_wrong_with_it(tmp_path):
    bag = bag_of(tmp_path, arrow('replacewhere="x = 1"'))
    (error,) = bag.import_errors.values()
    said = message_of(error)
    assert said.startswith("TypeError: Invalid arguments were passed to ")
    assert said.endswith("**kwargs: {'replacewhere': 'x = 1'}")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("", "cannot be read"),
        ("SyntaxError: it", "SyntaxError: it"),
        ('Traceback:\n  File "x.py", line 1\n    x\nValueError: one\n\ntwo\n', "ValueError: one two"),
        ('Traceback:\n  File "x.py", line 1\n    x', "x"),
    ],
)
def test_the_message_of_an_import_error(error, said):
    assert message_of(error) == said


class TestCommand:
    def test_it_lists_problems_and_ends_with_one(self, tmp_path, airflow_database):
        bag_of(tmp_path, 'DeltaDeleteOperator(task_id="d", table="/lake/t", predicate="id =")')
        (tmp_path / "broken.py").write_text('"""An airflow dag."""\nraise ValueError("no such thing")\n')
        done = check_dags(str(tmp_path), "--output", "json")
        assert done.returncode == 1, done.stderr
        broken, wrong = json.loads(done.stdout)
        assert broken["problem"] == "ValueError: no such thing"
        assert (wrong["dag"], wrong["task"]) == ("checked", "d")
        assert [broken["severity"], wrong["severity"]] == ["error"] * 2
        assert "something is missing after '='" in wrong["problem"]

    def test_nothing_is_wrong_and_modules_beside_the_file_are_found(self, tmp_path, airflow_database):
        (tmp_path / "tables.py").write_text("TABLE = '/lake/t'\n")
        bag_of(tmp_path, 'from tables import TABLE\nDeltaDeleteOperator(task_id="d", table=TABLE, predicate="id = 1")')
        done = check_dags(str(tmp_path))
        assert (done.returncode, done.stdout.strip()) == (0, "Checked 1 Dag: nothing is wrong with their Delta tasks."), (
            done.stderr
        )

    def test_it_shows_what_parsing_warns_of(self, tmp_path, airflow_database):
        """A warning alone is not a failure: these Dags run."""
        with_warning = 'DeltaDeleteOperator(task_id="d", table="/lake/t", predicate="id = {{ params.id }}")'
        with pytest.warns(DeltaDagWarning):
            bag_of(tmp_path, with_warning)
        done = check_dags(str(tmp_path), "--output", "plain")
        _, row, *_, last = done.stdout.strip().splitlines()
        assert done.returncode == 0, done.stdout + done.stderr
        assert row[row.index(" checked ") :].split()[:5] == ["checked", "d", "warning", "predicate", "puts"]
        assert last == "Checked 1 Dag: nothing is wrong with their Delta tasks."


def test_each_of_airflows_trigger_rules_is_judged_once():
    """A rule of a newer Airflow has to be judged, too."""
    judged = [*trigger_rules.SAFE_RULES, *trigger_rules.AUTHORS_RISK, *trigger_rules.RACING_RULES]
    assert sorted(judged) == sorted(rule.value for rule in TriggerRule)
