"""### A year of flights, one Delta version for each month

The Dag of `make demo`. Each run replaces its month of the table; an audit stands between what was staged and what is published.
Several months run at once, and whichever commits first creates the table. Two tasks are killed on purpose, each in its first try:
one after it staged its rows, one after the commit was in the table's log and before Airflow heard of it. Neither leaves a trace
in the table.

Prerequisites: Java; the environment variables below and the source: `run.py` beside this file makes them.
"""

import os
import signal
import tempfile
from datetime import datetime, timedelta

from airflow.sdk import dag, task

from airflow_delta import delta_transaction

ROOT = os.environ.get("FLIGHTS_DEMO", f"{tempfile.gettempdir()}/flights-demo")
TABLE = os.environ.get("FLIGHTS_DEMO_TABLE", f"{ROOT}/table")  # a name: below the base path of the connection delta_default
KILLED_STAGE = os.environ.get("FLIGHTS_DEMO_KILLED_STAGE")  # month whose stage is killed, such as 2013-03
KILLED_COMMIT = os.environ.get("FLIGHTS_DEMO_KILLED_COMMIT")

COLUMNS = """year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,
    arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT, hour INT,
    minute INT, time_hour TIMESTAMP"""


def killed(month):
    """Return a hook that kills its task, with everything the task has done standing, in the first try of a month."""

    def after_execute(context, _result=None):
        if f"{context['logical_date']:%Y-%m}" == month and context["ti"].try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return after_execute


@dag(
    schedule="@monthly",
    start_date=datetime(2013, 1, 1),
    end_date=datetime(2013, 12, 1),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=2)},
    doc_md=__doc__,
)
def flights_demo():
    commit = {"post_execute": killed(KILLED_COMMIT)}
    with delta_transaction("flights", table=TABLE, partition_by=["month"], commit_kwargs=commit):

        @task.delta_stage(
            mode="overwrite",
            replace_where="month = {{ data_interval_start.month }}",
            spark_packages="auto",
            post_execute=killed(KILLED_STAGE),
        )
        def transform(spark, data_interval_start):
            source = f"{ROOT}/source/flights-{data_interval_start:%Y-%m}.csv"
            return spark.read.csv(source, header=True, schema=COLUMNS, nullValue="NA").coalesce(1)

        @task
        def audit(staged, data_interval_start):
            """Nothing is public yet: a month that lost rows on the way stops here, and the table stays as it is."""
            if staged["alreadyCommitted"]:
                return
            with open(f"{ROOT}/source/flights-{data_interval_start:%Y-%m}.csv") as lines:
                expected = sum(1 for _ in lines) - 1
            if staged["numRecords"] != expected:
                raise ValueError(f"{staged['numRecords']} rows were staged, the source has {expected}")

        audit(transform())


flights_demo()
