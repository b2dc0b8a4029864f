"""Keys that name a day, beside schedules of which two runs begin on one: refused when the Dag is parsed."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest
from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
    MultipleCronTriggerTimetable,
)

from airflow_delta import delta_transaction
from airflow_delta.dag_checks import _key_problems, check_dag
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator

START = datetime(2026, 1, 1)
DAY_KEYS = (
    "orders/{{ ds }}",
    "orders/{{ ds_nodash }}",
    "{{ 'orders/' ~ ds }}",
    "orders/{{ data_interval_start | ds }}",
    "orders/{{ dag_run.logical_date | ds_nodash }}",
    "orders/{{ logical_date.date() }}",
    "orders/{{ data_interval_end.strftime('%Y%m%d') }}",
    "orders/{{ data_interval_start.to_date_string() }}",
)
WITHIN_A_DAY = ("@hourly", "0 8,20 * * *", timedelta(hours=6), CronTriggerTimetable("30 */2 * * *", timezone="UTC"))


def dag_of(key, schedule, options=None, **arguments):
    with (
        DAG("keys", schedule=schedule, start_date=START, **arguments) as dag,
        delta_transaction("t", table="/t", transaction_key=key, **(options or {})),
    ):
        DeltaStageFilesOperator(task_id="stage", path="rows")
    return dag


@pytest.mark.parametrize("schedule", WITHIN_A_DAY, ids=str)
@pytest.mark.parametrize("key", DAY_KEYS)
def test_several_runs_a_day(key, schedule):
    with pytest.raises(
        DeltaIllegalArgumentException, match=r"is the same for two runs of the Dag: of .* 00:|of .* 07:|of .* 08:"
    ):
        check_dag(dag_of(key, schedule))


@pytest.mark.parametrize(
    ("expression", "zone", "refused"),
    [
        ("0 1 * * *", "Europe/Berlin", "of 2.*-03-.* 00:00 UTC and of .* 23:00 UTC"),
        ("0 19 * * *", "America/New_York", "UTC and of"),
        ("0 0 * * *", "Europe/Berlin", None),
        ("0 12 * * *", "Europe/Berlin", None),
        ("0 0 * * *", "UTC", None),
        ("0 0 1 * *", "Europe/Berlin", None),
    ],
)
def test_days_of_a_zone_with_daylight_saving(expression, zone, refused):
    dag = dag_of("orders/{{ ds }}", CronDataIntervalTimetable(expression, timezone=zone))
    if refused is None:
        check_dag(dag)
    else:
        with pytest.raises(DeltaIllegalArgumentException, match=refused):
            check_dag(dag)


def test_a_month_in_a_daily_dag():
    with pytest.raises(DeltaIllegalArgumentException, match=r"-01-01 00:00 UTC and of .*-01-02 00:00 UTC"):
        check_dag(dag_of("orders/{{ logical_date.strftime('%Y-%m') }}", "@daily"))


@pytest.mark.parametrize(
    ("key", "schedule", "options"),
    [
        ("orders/{{ ts }}", "@hourly", {}),
        ("orders/{{ data_interval_start.isoformat() }}", "@hourly", {}),
        ("orders/{{ data_interval_start | ts }}", "@hourly", {}),
        ("orders/{{ logical_date.strftime('%Y%m%dT%H') }}", "@hourly", {}),
        ("orders/{{ ds }}/{{ params.part }}", "@hourly", {}),
        ("orders/{{ ds }}/{{ run_id }}", "@hourly", {}),
        ("orders/{{ data_interval_start.in_timezone('Europe/Berlin') | ds }}", "0 1 * * *", {}),
        ("orders/{{ ds }}", "@daily", {}),
        ("orders/{{ ds }}", timedelta(days=1), {}),
        ("orders/{{ ds }}", None, {}),
        ("orders/{{ ds }}", "@hourly", {"key_check": "off"}),
        ("orders/{{ ds }}", "@hourly", {"rerun_policy": "append"}),
        ("orders", "@hourly", {}),
        (None, "@hourly", {}),
    ],
)
def test_what_is_not_refused(key, schedule, options):
    check_dag(dag_of(key, schedule, options))


@pytest.mark.parametrize(
    "key",
    [
        "{{ dag.dag_id }}/{{ ds }}",
        "o/{{ params.region }}/{{ ds }}",
        "o/{{ ts[:10] }}",
        "o/{{ logical_date.format('YYYY-MM-DD') }}",
        "o/{{ ds | trim }}",
        "o/{{ macros.ds_add(ds, 1) }}",
        "o/{{ macros.ds_format(ds, '%Y-%m-%d', '%Y%m') }}",
        "o/{{ '%s-%s' % (logical_date.year, logical_date.day_of_year) }}",
        "o/{{ task_instance_key_str }}",
        "o/{{ dag_run.conf.get('batch') or ds }}",
        "o/{% if dag_run.conf.get('batch') %}{{ dag_run.conf['batch'] }}{% else %}{{ dag_run.run_after | ds }}{% endif %}",
        "o/{{ logical_date.day }}",
        "o/{{ logical_date.strftime('%H') }}",
        "o/{{ logical_date.strftime('%m-%dT%H:%M') }}",
        "o/{{ area }}/{{ ds }}",
        "o/{{ logical_date.in_timezone('Europe/Berlin').strftime('%Y-%m-%dT%H') }}",
    ],
)
def test_what_a_key_is_not_how_it_is_spelled(key):
    """The last but one comes again after a year; the last one when clocks are put back."""
    more = {"params": {"region": "eu"}, "user_defined_macros": {"area": "north"}}
    with pytest.raises(DeltaIllegalArgumentException, match="is the same for two runs of the Dag"):
        check_dag(dag_of(key, "@hourly", **more))
    with pytest.raises(DeltaIllegalArgumentException, match="is the same for two runs of the Dag"):
        check_dag(dag_of(key, "@hourly", **more, render_template_as_native_obj=True))


@pytest.mark.parametrize(
    "schedule",
    [
        MultipleCronTriggerTimetable("0 1 * * *", "0 13 * * 1", timezone="UTC"),
        MultipleCronTriggerTimetable("0 1 * * *", "0 13 * * *", timezone="Europe/Berlin"),
        AssetOrTimeSchedule(timetable=CronTriggerTimetable("0 */6 * * *", timezone="UTC"), assets=[Asset("s3://lake/raw")]),
        DeltaTriggerTimetable(timedelta(hours=8)),
        CronPartitionTimetable("0 * * * *", timezone="UTC", key_format="%Y-%m-%d"),
        CronDataIntervalTimetable("0 1 * * *", timezone="Europe/Berlin"),
        MultipleCronTriggerTimetable("0 1 * * *", timezone="Europe/Berlin"),
        "@continuous",
    ],
    ids=lambda each: type(each).__name__,
)
def test_every_timetable_says_when_its_runs_begin(schedule):
    key = "o/{{ dag_run.partition_key }}" if isinstance(schedule, CronPartitionTimetable) else "o/{{ ds }}"
    extra = {"max_active_runs": 1} if schedule == "@continuous" else {}
    with pytest.raises(DeltaIllegalArgumentException, match="is the same for two runs of the Dag"):
        check_dag(dag_of(key, schedule, **extra))


@pytest.mark.parametrize(
    ("key", "schedule", "refused"),
    [
        ({"app_id": "orders", "txn_version": "{{ ds_nodash }}"}, "@hourly", "txn_version='{{ ds_nodash }}' is the same"),
        ({"app_id": "orders/{{ ds }}", "txn_version": 0}, "@hourly", "app_id='orders/{{ ds }}' and txn_version=0 is the same"),
        ({"app_id": "orders", "txn_version": "{{ logical_date.hour }}"}, "@hourly", "lower version .23, then 0."),
        ({"app_id": "orders", "txn_version": "{{ logical_date.format('DDMMYYYY') }}"}, "@daily", "lower version"),
        ({"app_id": "orders", "txn_version": "{{ logical_date.int_timestamp }}"}, "@hourly", None),
        ({"app_id": "orders", "txn_version": "{{ ts_nodash_with_tz[:8] }}"}, "@daily", None),
        ({"app_id": "orders/{{ logical_date.hour }}", "txn_version": "{{ ds_nodash }}"}, "@hourly", None),
        ({"app_id": "orders", "txn_version": "{{ params.batch }}"}, "@hourly", None),
        ({"app_id": "orders", "txn_version": 7}, "@hourly", None),
    ],
)
def test_versions_of_an_application_grow(key, schedule, refused):
    dag = dag_of(None, schedule, key)
    if refused is None:
        check_dag(dag)
    else:
        with pytest.raises(DeltaIllegalArgumentException, match=refused):
            check_dag(dag)


CALLED: list[object] = []


@pytest.mark.parametrize(
    "key",
    [
        "o/{{ ds }}/{{ var.value.region }}",
        "o/{{ ds }}/{{ var.value.get('region', 'eu') }}",
        "o/{{ ds }}/{{ conn.lake.host | default('') }}",
        "o/{{ ds }}/{{ ti.xcom_pull('before') }}",
        "o/{{ ds }}/{{ ti.start_date | default('') }}",
        "o/{{ ds }}/{{ dag_run.start_date is defined }}",
        "o/{{ ds }}/{{ prev_start_date_success | default('') }}",
        "o/{{ ds }}/{{ params.unknown }}",
        "o/{{ ds }}/{{ batch_of(ds) }}",
        "o/{{ ds | batch }}",
        "o/{{ ds }}/{{ run_id }}",
        "o/{{ ds }}/{{ macros.uuid.uuid4() }}",
        "o/{{ ds ",
        "o/{{ ds.nothing }}",
    ],
)
def test_what_only_a_run_knows_is_not_judged_and_no_code_of_an_author_runs(key):
    with DAG(
        "keys",
        schedule="@hourly",
        start_date=START,
        user_defined_macros={"batch_of": CALLED.append},
        user_defined_filters={"batch": CALLED.append},
    ) as dag:
        DeltaDeleteOperator(task_id="one", table="/t", predicate="id = 1", transaction_key=key)
    assert list(_key_problems(dag.get_task("one"))) == []
    assert CALLED == []


def test_a_dag_without_a_template_asks_no_timetable(monkeypatch):
    def asked(*_):
        raise AssertionError

    monkeypatch.setattr("airflow_delta.airflow_internals.timetables.encoded", asked)
    check_dag(dag_of("orders", "@hourly"))
    check_dag(dag_of(None, "@hourly"))


@pytest.mark.parametrize(
    ("expression", "key"),
    [("0 * * * *", "%Y%m%dT%H"), ("*/30 * * * *", "%Y%m%dT%H%M"), ("0 2,3 * * *", "%Y%m%dT%H")],
)
def test_the_hour_that_clocks_skip(expression, key):
    dag = dag_of(f"{{{{ logical_date.strftime('{key}') }}}}", CronDataIntervalTimetable(expression, timezone="Europe/Berlin"))
    check_dag(dag)


def test_frequent_schedules_cost_little():
    dag = dag_of("{{ logical_date.strftime('%Y%m%dT%H%M') }}", CronDataIntervalTimetable("* * * * *", timezone="Europe/Berlin"))
    started = time.process_time()
    for _ in range(20):
        check_dag(dag)
    assert time.process_time() - started < 3


def test_operations_and_mapped_ones():
    with DAG("keys", schedule="@hourly", start_date=START) as dag:
        DeltaDeleteOperator(task_id="one", table="/t", predicate="id = 1", transaction_key="{{ ds }}")
    with pytest.raises(DeltaIllegalArgumentException, match=r"transaction_key='{{ ds }}' is the same"):
        check_dag(dag)
    with DAG("keys", schedule="@hourly", start_date=START) as dag:
        DeltaDeleteOperator.partial(task_id="some", predicate="id = 1", transaction_key="{{ ds }}").expand(table=["/a", "/b"])
    with pytest.raises(DeltaIllegalArgumentException, match=r"transaction_key='{{ ds }}' is the same"):
        check_dag(dag)
