"""A Dag for each way in which a sensor waits; what it waits for comes with the run's conf."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from airflow.sdk import dag, task

from airflow_delta.sensors.delta import DeltaTableVersionSensor

WAYS = {"poke": {"mode": "poke"}, "reschedule": {"mode": "reschedule"}, "deferrable": {"deferrable": True}}


def of_conf(name: str) -> str:
    return f"{{{{ (dag_run.conf or {{}}).get('{name}', '') }}}}"


class Sensor(DeltaTableVersionSensor):
    """Leaves a file beside the table after each look, for the test that is to commit while the sensor waits."""

    def _look(self, context):
        found = super()._look(context)
        Path(f"{self.table}.looked").touch()
        return found


def make(name: str, way: dict) -> None:
    @dag(dag_id=f"sensor_{name}", schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
    def waits():
        sensor = Sensor(
            task_id="wait",
            table=of_conf("table"),
            version=of_conf("version"),
            after_version=of_conf("after_version"),
            operation=of_conf("operation"),
            partitions=of_conf("partitions"),
            parameters={"part": of_conf("part")},
            poke_interval=0.2,
            timeout=240,
            **{"deferrable": False, **way},
        )

        @task
        def read(commit, number):
            return [commit["version"], number]

        read(sensor.output, sensor.output["delta_table_version"])

    waits()


for name, way in WAYS.items():
    make(name, way)
