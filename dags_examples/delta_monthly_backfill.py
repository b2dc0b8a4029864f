"""### Monthly backfill with `replaceWhere`

Each run replaces its own month, so months can be backfilled in any order and several at a time: runs that replace different
months do not conflict. A run that is cleared replaces what it published before, since its source may have been corrected
(`rerun_policy="replace"`; by default it would find its earlier commit and publish nothing).

Prerequisites: Java. The source is made by the first task; the table by the first commit.
"""

import csv
import os
import random
import tempfile
from datetime import datetime

from airflow.sdk import CronDataIntervalTimetable, dag, task

from airflow_delta import delta_transaction

ROOT = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples")
CARRIERS = ("AA", "B6", "DL", "UA")


@dag(
    # A run for each month, after the month is over. A plain "@monthly" has an empty data interval in Airflow 3.
    schedule=CronDataIntervalTimetable("@monthly", timezone="UTC"),
    start_date=datetime(2013, 1, 1),
    catchup=False,
    doc_md=__doc__,
)
def delta_monthly_backfill():
    @task
    def export(data_interval_start) -> str:
        """Write the month's flights as CSV, as an operational system would."""
        path = f"{ROOT}/source/flights-{data_interval_start:%Y-%m}.csv"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        numbers = random.Random(path)
        with open(path, "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["day", "carrier", "flight", "dep_delay"])
            for day in range(1, 29):
                rows.writerow([day, numbers.choice(CARRIERS), numbers.randint(1, 9999), numbers.randint(-10, 90)])
        return path

    with delta_transaction("flights", table=f"{ROOT}/flights", partition_by=["month"], rerun_policy="replace"):

        @task.delta_stage(mode="overwrite", replace_where="month = '{{ data_interval_start | ds }}'")
        def transform(source, spark, data_interval_start):
            flights = spark.read.csv(source, header=True, schema="day INT, carrier STRING, flight INT, dep_delay INT")
            return flights.selectExpr(f"DATE'{data_interval_start:%Y-%m-%d}' AS month", "*")

        @task
        def audit(staged):
            """Nothing is public yet: a month without flights stops the run, and the table stays as it is."""
            if not staged["numRecords"]:
                raise ValueError("no flights this month")

        audit(transform(export()))


delta_monthly_backfill()
