"""What ``default_args`` of a Dag may do to a transaction: nothing that decides whether it is published."""

from __future__ import annotations

import deltalake
import pytest
from airflow.sdk import DAG, Asset, TaskGroup, task

from airflow_delta import delta_publication, delta_transaction
from airflow_delta.decorators.delta_merge import delta_merge_task
from airflow_delta.decorators.delta_stage import delta_stage_task
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.maintenance import DeltaMaintenanceOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.restore import DeltaRestoreOperator
from airflow_delta.operators.scd2 import DeltaScd2MergeOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.stream import DeltaStreamOperator
from airflow_delta.operators.transaction import DeltaAbortOperator, DeltaCommitOperator, DeltaStartTransactionOperator
from airflow_delta.sensors.delta import DeltaTableVersionSensor
from airflow_delta.tasks.settings import own_settings
from support.readers import rows
from support.slow import slow_except
from support.task_defaults import DEFAULTS

pytestmark = pytest.mark.airflow


def nothing(value=None): ...


@pytest.mark.parametrize(
    "name",  # all of them take minutes
    slow_except(DEFAULTS, "no_xcom"),
)
def test_defaults_of_a_dag_publish_nothing_that_an_audit_refused(run_dag, tables, name):
    run = run_dag(f"defaults_{name}")
    assert run.state == "failed"
    assert run.state_of("refused.commit") in ("failed", "upstream_failed")
    assert not deltalake.DeltaTable.is_deltatable(f"{tables}/defaults_{name}_refused")
    # Tasks that do not wait for those before them run in any order: without a transaction, or before what they were to check.
    if name == "trigger_rule_always" and run.state_of("accepted.commit") != "success":
        assert not deltalake.DeltaTable.is_deltatable(f"{tables}/defaults_{name}_accepted")
        return
    states = [run.state_of(f"accepted.{each}") for each in ("start", "stage", "audit", "told", "commit", "abort", "watcher")]
    assert states == ["success"] * 7
    assert run.state_of("refused.abort") == "success"
    assert [row["id"] for row in rows(f"{tables}/defaults_{name}_accepted")] == [1, 2, 3]
    told = {uri for uri, _ in run.events() if not uri.startswith("delta:")}
    assert told <= {"from-defaults"}


@pytest.mark.slow
def test_the_tasks_without_a_group(run_dag, tables, capfd):
    run = run_dag("defaults_plain_operators")
    states = {each: run.state_of(each) for each in ("start", "stage", "audit", "commit", "abort", "truncate")}
    assert states == {
        "start": "success",
        "stage": "success",
        "audit": "failed",
        "commit": "upstream_failed",
        "abort": "success",
        "truncate": "upstream_failed",
    }
    assert run.state == "failed"
    assert not deltalake.DeltaTable.is_deltatable(f"{tables}/defaults_plain_operators")


@pytest.mark.slow
def test_a_failure_counts_unless_the_commit_itself_names_a_rule(run_dag, tables, capfd):
    run = run_dag("defaults_and_names")
    assert (run.state_of("asked.commit"), run.state_of("hidden.commit")) == ("success", "failed")
    assert (run.state_of("hidden.told"), run.state_of("hidden.abort")) == ("success", "success")
    assert [row["id"] for row in rows(f"{tables}/defaults_and_names_asked")] == [1, 2, 3]
    assert not deltalake.DeltaTable.is_deltatable(f"{tables}/defaults_and_names_hidden")
    said = "".join(capfd.readouterr())
    assert "not every task has succeeded: hidden.audit (failed)" in said
    assert "as trigger_rule='all_done' of 'asked.commit' asks: asked.audit (failed)" in said


def test_a_commit_of_stages_that_were_all_skipped_is_skipped(run_dag, tables, capfd):
    run = run_dag("all_skipped")
    assert {each: run.state_of(f"txn.{each}") for each in ("skips", "mapped", "commit", "abort", "watcher")} == {
        "skips": "skipped",
        "mapped": "skipped",
        "commit": "skipped",
        "abort": "success",
        "watcher": "success",
    }
    assert run.state == "success"
    assert run.xcom("txn.abort")["outcome"] != "committed"
    assert run.events() == []
    assert not deltalake.DeltaTable.is_deltatable(f"{tables}/all_skipped")
    assert "nothing of it is published" not in "".join(capfd.readouterr())  # nobody has to look


class TestParsedOnly:
    """Read off the Dag, nothing runs."""

    DEFAULTS = {"trigger_rule": "all_done", "do_xcom_push": False, "outlets": [Asset("mine")]}
    PAST = {"wait_for_downstream": True, "depends_on_past": True}

    @pytest.fixture(params=["dag", "group", "transaction"])
    def made(self, request):
        given = {**self.DEFAULTS, **self.PAST}
        of = {level: given if level == request.param else {} for level in ("dag", "group", "transaction")}
        group = TaskGroup("g", default_args=of["group"], dag=(dag := DAG("d", schedule=None, default_args=of["dag"])))
        with dag, group, delta_transaction("t", table="/lake/t", default_args=of["transaction"]):
            DeltaStageFilesOperator(task_id="stage", path="rows")
            DeltaStageFilesOperator.partial(task_id="many").expand(path=["a", "b"])
            delta_stage_task(nothing, engine="arrow", task_id="arrow").expand(value=["a", "b"])
            task(nothing, task_id="authors")()
        return {each.task_id.removeprefix("g.t."): each for each in dag.tasks}

    def test_settings_of_their_own(self, made):
        rules = {name: made[name].trigger_rule.value for name in ("start", "commit", "abort", "watcher", "stage", "authors")}
        assert rules == {
            "start": "all_success",
            "commit": "all_success",
            "abort": "all_done_setup_success",
            "watcher": "all_success",
            "stage": "all_done",
            "authors": "all_done",
        }
        assert made["start"].do_xcom_push is made["commit"].do_xcom_push is made["stage"].do_xcom_push is True
        assert made["many"].partial_kwargs["do_xcom_push"] is True
        assert made["arrow"].partial_kwargs.get("do_xcom_push") is not False
        assert made["authors"].do_xcom_push is False

    def test_nothing_is_emitted_before_the_commit(self, made):
        given = {name: task.partial_kwargs["outlets"] if task.is_mapped else task.outlets for name, task in made.items()}
        emitting = {name for name, outlets in given.items() if outlets}
        assert emitting == {"commit", "authors"}

    def test_cleaning_up_does_not_depend_on_other_runs(self, made):
        waits = {name for name, task in made.items() if task.depends_on_past or task.wait_for_downstream}
        assert waits == set(made) - {"abort", "watcher"}

    def test_mapped_tasks(self):
        with DAG("d", schedule=None, default_args=self.DEFAULTS):
            start = DeltaStartTransactionOperator.partial(task_id="start").expand(table=["/lake/a", "/lake/b"])
            named = DeltaStartTransactionOperator.partial(task_id="named", trigger_rule="none_failed")
            abort = DeltaAbortOperator.partial(task_id="abort").expand(transaction=start.output)
            delete = DeltaDeleteOperator.partial(task_id="delete").expand(table=["/lake/a", "/lake/b"])
        assert {each.trigger_rule.value for each in (start, abort, delete)} == {"all_success"}
        assert [each.partial_kwargs["do_xcom_push"] for each in (start, delete)] == [True] * 2
        assert named.expand(table=["/lake/a"]).trigger_rule == "none_failed"

    def test_operations_of_their_own(self):
        with DAG("d", schedule=None, default_args=self.DEFAULTS):
            alone = DeltaDeleteOperator(task_id="alone", table="/lake/t")
            named = DeltaDeleteOperator(task_id="named", table="/lake/t", trigger_rule="all_done", do_xcom_push=False)
            keeps = DeltaMaintenanceOperator(task_id="keeps", tables="/lake/t")  # changes no rows
            with delta_transaction("t", table="/lake/t", stage_kwargs={"trigger_rule": "none_failed"}):
                stage = DeltaDeleteOperator(task_id="stage")
        rules = [each.trigger_rule.value for each in (alone, named, keeps, stage)]
        assert rules == ["all_success", "all_done", "all_done", "none_failed"]
        assert [asset.uri for asset in alone.outlets] == ["mine"]

    @pytest.mark.parametrize("operator", [DeltaStreamOperator, DeltaScd2MergeOperator, DeltaMergeOperator, DeltaRestoreOperator])
    def test_whatever_commits_rows_has_a_rule_of_its_own(self, operator):
        assert own_settings(operator, {})["trigger_rule"].value == "all_success"

    REFUSED = [
        # task, what its author names, what is said
        ("start", {"do_xcom_push": False}, "the start task hands on the handle"),
        ("stage", {"do_xcom_push": False}, "a stage task hands on its staged write"),
        ("commit", {"do_xcom_push": False}, "the commit task hands on its result"),
        ("commit", {"trigger_rule": "one_success"}, "would race its audits"),
        ("commit", {"trigger_rule": "one_failed"}, "would race its audits"),
        ("commit", {"trigger_rule": "one_done"}, "would race its audits"),
        ("commit", {"trigger_rule": "always"}, "would race its audits"),
    ]

    @pytest.mark.parametrize(("which", "named", "said"), REFUSED)
    def test_what_an_author_names_is_refused_with_the_reason(self, which, named, said):
        of = {each: named if each == which else {} for each in ("start", "stage", "commit")}
        with DAG("d", schedule=None) as dag:
            start = DeltaStartTransactionOperator(task_id="start", table="/lake/t", **of["start"])
            stage = DeltaStageFilesOperator(task_id="stage", transaction=start.output, path="rows", **of["stage"])
            DeltaCommitOperator(task_id="commit", transaction=start.output, staged=stage.output, **of["commit"])
        with pytest.raises(DeltaIllegalArgumentException, match=f"The task '{which}': .*{said}"):
            dag.resolve_template_files()

    def test_a_decorated_operation_that_is_mapped_is_refused(self):
        """Airflow makes it without asking the operator, so it has the trigger rule of ``default_args``."""
        with DAG("d", schedule=None, default_args={"trigger_rule": "all_done"}) as dag:
            merged = delta_merge_task(nothing, task_id="merge", table="/lake/t", condition="a = b")
            merged.expand(value=["a", "b"])
            DeltaDeleteOperator(task_id="asks", table="/lake/t")  # mapped tasks are not asked by Airflow
        with pytest.raises(DeltaIllegalArgumentException, match="trigger_rule='all_done' comes from default_args"):
            dag.resolve_template_files()


# -- defaults that say where and how ---------------------------------------------------------------------------------------------

LAKE = {"delta_conn_id": "lake", "rerun_policy": "fail", "key_check": "off", "on_conflict": "restart", "max_restarts": 7}


@pytest.mark.parametrize("where", ["Dag", "group around", "group"])
def test_start_and_commit_have_the_defaults_of_all_tasks(where):
    """Otherwise the stages would open another table than their start task."""
    defaults = {"Dag": {}, "group around": {}, "group": {}, where: LAKE}
    with (
        DAG("defaults", schedule=None, default_args=defaults["Dag"]) as dag,
        TaskGroup("g", default_args=defaults["group around"]),
    ):
        with delta_transaction("one", table="orders", default_args=defaults["group"]):
            DeltaStageFilesOperator(task_id="stage", path="p")
        with delta_transaction(
            "two", table="orders", delta_conn_id="own", rerun_policy="skip", on_conflict="fail", default_args=LAKE
        ):
            DeltaStageFilesOperator(task_id="stage", path="p")
    start, commit, stage = (dag.get_task(f"g.one.{name}") for name in ("start", "commit", "stage"))
    assert (start.delta_conn_id, start.rerun_policy, start.key_check) == ("lake", "fail", "off")
    assert (commit.on_conflict, commit.max_restarts, commit.on_clear) == ("restart", 7, "fail")
    assert stage.delta_conn_id in (None, "lake")
    assert [outlet.uri for outlet in commit.outlets] == ["delta://connection/lake/orders"]
    start, commit, stage = (dag.get_task(f"g.two.{name}") for name in ("start", "commit", "stage"))
    assert (start.delta_conn_id, start.rerun_policy, stage.delta_conn_id) == ("own", "skip", "own")
    assert (commit.on_conflict, commit.delta_conn_id, commit.table) == ("fail", None, None)


def test_the_watcher_needs_no_worker():
    """The scheduler ends an empty task by itself if nothing of it has to run."""
    defaults = {
        "on_success_callback": nothing,
        "on_execute_callback": nothing,
        "inlets": [Asset("in")],
        "outlets": [Asset("out")],
    }
    with DAG("defaults", schedule=None, default_args=defaults) as dag, delta_transaction("one", table="orders"):
        DeltaStageFilesOperator(task_id="stage", path="p")
    watcher = dag.get_task("one.watcher")
    assert not any((watcher.has_on_execute_callback, watcher.has_on_success_callback, watcher.inlets, watcher.outlets))


def test_without_defaults_nothing_changes():
    with DAG("defaults", schedule=None) as dag, delta_transaction("one", table="orders"):
        DeltaStageFilesOperator(task_id="stage", path="p")
    start, commit = dag.get_task("one.start"), dag.get_task("one.commit")
    assert (start.delta_conn_id, start.rerun_policy, start.key_check) == ("delta_default", "skip", "warn")
    assert (commit.on_conflict, commit.on_clear, commit.max_restarts) == ("fail", "fail", 3)


def test_a_publication_has_the_defaults_too():
    with (
        DAG("defaults", schedule=None, default_args={**LAKE, "on_late_conflict": "keep", "patience": 9.0}) as dag,
        delta_publication("p"),
    ):
        for name in ("orders", "lines"):
            with delta_transaction(name, table=name):
                DeltaStageFilesOperator(task_id="stage", path="p")
    commit, start = dag.get_task("p.commit"), dag.get_task("p.orders.start")
    assert (commit.on_conflict, commit.on_late_conflict, commit.patience) == ("restart", "keep", 9.0)
    assert (start.delta_conn_id, start.rerun_policy) == ("lake", "fail")
    with (
        pytest.raises(DeltaIllegalArgumentException, match="rerun_policy"),
        DAG("defaults", schedule=None),
        delta_publication("p", default_args={"rerun_policy": "never"}),
    ):
        pass


def test_the_table_of_a_transaction_is_not_that_of_the_defaults():
    dag = DAG("defaults", schedule=None, default_args={"table": "/other"})
    with dag, delta_transaction("one", table="/orders", preview=True):
        DeltaMergeOperator(task_id="merge", source="SELECT 1", condition="true")
    tables = {name: dag.get_task(f"one.{name}").table for name in ("start", "merge", "preview", "commit", "abort")}
    assert tables == {"start": "/orders", "merge": "/orders", "preview": None, "commit": None, "abort": None}


@pytest.mark.parametrize(
    ("given", "said"),
    [({"mode": "overwrite", "replaceWhere": "a = 1"}, "'replaceWhere', .* is 'replace_where' meant"), ({"x_y_z": 1}, "'x_y_z'")],
)
def test_a_misspelt_default_of_the_stages_is_refused(given, said):
    """Without its condition, an overwrite would replace the whole table."""
    with (
        DAG("defaults", schedule=None),
        pytest.raises(DeltaIllegalArgumentException, match=said),
        delta_transaction("one", table="/orders", stage_kwargs=given),
    ):
        DeltaStageFilesOperator(task_id="stage", path="p")


class TestMode:
    """Sensors have a parameter of that name, too."""

    @pytest.mark.parametrize("where", ["Dag", "group"])
    def test_that_of_sensors_is_none_of_stages(self, where):
        given = {"Dag": {}, "group": {}, where: {"mode": "reschedule", "poke_interval": 5}}
        with (
            DAG("defaults", schedule=None, default_args=given["Dag"]) as dag,
            delta_transaction("one", table="/orders", default_args=given["group"]),
        ):
            DeltaStageFilesOperator(task_id="stage", path="p")
            DeltaStageFilesOperator(task_id="named", path="p", mode="dynamic")
            DeltaStageFilesOperator.partial(task_id="many").expand(path=["p"])
            delta_stage_task(nothing, engine="arrow", task_id="arrow")("p")
            delta_stage_task(nothing, engine="arrow", task_id="arrows").expand(value=["p"])
            DeltaTableVersionSensor(task_id="wait", table="/orders")
        for name in ("stage", "named", "arrow", "wait"):
            dag.get_task(f"one.{name}").resolve_template_files()
        modes = {name: dag.get_task(f"one.{name}").mode for name in ("stage", "named", "arrow", "wait")}
        assert modes == {"stage": "append", "named": "dynamic", "arrow": "append", "wait": "reschedule"}
        assert [dag.get_task(f"one.{name}").partial_kwargs.get("mode") for name in ("many", "arrows")] == [None] * 2

    @pytest.mark.parametrize("defaults", [{}, {"mode": "reschedule"}, {"mode": "append"}], ids=str)
    def test_that_of_stages_is_none_of_sensors(self, defaults):
        with (
            DAG("defaults", schedule=None, default_args=defaults) as dag,
            delta_transaction("one", table="/orders", stage_kwargs={"mode": "overwrite"}, commit_kwargs={"allow_skipped": True}),
        ):
            DeltaStageFilesOperator(task_id="stage", path="p", replace_where="a = 1")
            DeltaStageFilesOperator(task_id="named", path="p", mode="dynamic")
            DeltaStageFilesOperator.partial(task_id="many").expand(path=["p"])
            delta_stage_task(nothing, engine="arrow", task_id="arrow")("p")
            delta_stage_task(nothing, engine="arrow", task_id="arrows").expand(value=["p"])
            with TaskGroup("inner"):
                DeltaStageFilesOperator(task_id="stage", path="p")
            DeltaStageFilesOperator(task_id="appends", path="p", mode="append")
            DeltaStageFilesOperator.partial(task_id="all_append", mode="append").expand(path=["p"])
            if defaults.get("mode") != "append":
                DeltaTableVersionSensor(task_id="wait", table="/orders")
        modes = {name: dag.get_task(f"one.{name}").mode for name in ("stage", "named", "arrow", "inner.stage")}
        assert modes == {"stage": "overwrite", "named": "dynamic", "arrow": "overwrite", "inner.stage": "overwrite"}
        assert [dag.get_task(f"one.{name}").partial_kwargs["mode"] for name in ("many", "arrows")] == ["overwrite"] * 2
        assert dag.get_task("one.appends").mode == dag.get_task("one.all_append").partial_kwargs["mode"] == "append"


def test_defaults_of_the_stages_may_be_for_other_tasks_of_the_block():
    with (
        DAG("defaults", schedule=None) as dag,
        delta_transaction("one", table="/orders", stage_kwargs={"pool": "p", "retries": 4}),
    ):
        delta_stage_task(nothing, task_id="stage")()
    assert (dag.get_task("one.stage").pool, dag.get_task("one.stage").retries) == ("p", 4)
