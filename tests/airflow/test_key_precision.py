"""Keys that name a day, beside schedules of which two runs begin on one: refused when the Dag is parsed."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest
from airflow.sdk import DAG, CronDataIntervalTimetable, CronTriggerTimetable

from airflow_delta import delta_transaction
from airflow_delta.dag_checks import check_dag
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.key_precision import day_key_problem
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
        ("orders/{{ ds }}", "@continuous", {}),
        ("orders/{{ ds }}", "@hourly", {"key_check": "off"}),
        ("orders/{{ ds }}", "@hourly", {"rerun_policy": "append"}),
        ("orders", "@hourly", {}),
        (None, "@hourly", {}),
    ],
)
def test_what_is_not_refused(key, schedule, options):
    extra = {"max_active_runs": 1} if schedule == "@continuous" else {}
    check_dag(dag_of(key, schedule, options, **extra))


@pytest.mark.parametrize(
    ("expression", "key"),
    [("0 * * * *", "%Y%m%dT%H"), ("*/30 * * * *", "%Y%m%dT%H%M"), ("0 2,3 * * *", "%Y%m%dT%H")],
)
def test_the_hour_that_clocks_skip(expression, key):
    dag = dag_of(f"{{{{ logical_date.strftime('{key}') }}}}", CronDataIntervalTimetable(expression, timezone="Europe/Berlin"))
    check_dag(dag)


def test_frequent_schedules_cost_little():
    timetable = CronDataIntervalTimetable("* * * * *", timezone="UTC")
    started = time.process_time()
    for _ in range(20):
        assert day_key_problem("{{ logical_date.strftime('%Y%m%dT%H%M') }}", timetable) is None
    assert time.process_time() - started < 5  # all minutes of a year take 20 seconds


def test_operations_and_mapped_ones():
    with DAG("keys", schedule="@hourly", start_date=START) as dag:
        DeltaDeleteOperator(task_id="one", table="/t", predicate="id = 1", transaction_key="{{ ds }}")
    with pytest.raises(DeltaIllegalArgumentException, match=r"transaction_key='{{ ds }}' is the same"):
        check_dag(dag)
    with DAG("keys", schedule="@hourly", start_date=START) as dag:
        DeltaDeleteOperator.partial(task_id="some", predicate="id = 1", transaction_key="{{ ds }}").expand(table=["/a", "/b"])
    with pytest.raises(DeltaIllegalArgumentException, match=r"transaction_key='{{ ds }}' is the same"):
        check_dag(dag)
