"""What a job is given holds no secret: neither of the table's connection, nor of a source."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from datetime import datetime

import deltalake
import pyarrow as pa
import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.execution_time import task_runner

from airflow_delta import delta_job, delta_transaction
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.optimize import DeltaOptimizeOperator
from support.running_tasks import context

pytestmark = pytest.mark.airflow

TABLE = "s3://lake/orders"
SECRETS = ("very-secret", "secret-of-spark", "secret-of-source")


class Service(BaseOperator):
    """Takes all that a job is given."""

    template_fields = ("application", "spark_application", "arguments", "request", "package", "submit_parameters")

    def __init__(self, *, job, **kwargs):
        super().__init__(**kwargs)
        for name in self.template_fields:
            setattr(self, name, getattr(job, name))


@pytest.fixture
def world(s3_lake, monkeypatch, outside_of_the_task_runner):
    """A Dag whose tasks run one by one, on a table in a store whose connection has secrets."""
    storage = {"AWS_ENDPOINT_URL": s3_lake.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    keys = {"AWS_ACCESS_KEY_ID": "the-key", "AWS_SECRET_ACCESS_KEY": "very-secret"}
    rows = pa.table({"id": pa.array(range(9), pa.int64())})
    for _ in range(2):
        deltalake.write_deltalake(TABLE, rows, mode="append", storage_options=storage | keys)
    source = {"conn_type": "jdbc", "host": "jdbc:x://db/sales", "login": "u", "password": "secret-of-source"}
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(source))
    return World(s3_lake.client)


class World:
    def __init__(self, client) -> None:
        self.client = client
        self.dag = DAG("a_dag", schedule=None, start_date=datetime(2026, 1, 1))
        self.shown: list[str] = []
        """Rendered fields, as Airflow shows them."""

    def run(self, task_id: str):
        operator = self.dag.task_dict[task_id].prepare_for_execution()
        running = context(operator)
        operator.render_template_fields(running)
        self.shown.append(json.dumps(task_runner._serialize_rendered_fields(operator)))
        result = operator.execute(running)
        task_runner.SUPERVISOR_COMMS.xcoms["a_run", task_id, -1, "return_value"] = result
        return result

    def stored(self) -> dict[str, bytes]:
        """Return every file below the staging directory; of a zip, those that it holds."""
        found = {}
        for each in self.client.list_objects_v2(Bucket="lake", Prefix="orders/staged/").get("Contents", ()):
            data = self.client.get_object(Bucket="lake", Key=each["Key"])["Body"].read()
            found[each["Key"]] = data
            if each["Key"].endswith(".zip"):
                archive = zipfile.ZipFile(io.BytesIO(data))
                found |= {f"{each['Key']}/{name}": archive.read(name) for name in archive.namelist()}
        return found


OPERATIONS = {
    "delete": (DeltaDeleteOperator, {"predicate": "id = 2"}),
    "update": (DeltaUpdateOperator, {"predicate": "id = 2", "set": {"id": "-2"}}),
    "merge": (
        DeltaMergeOperator,
        {
            "source": {"format": "parquet", "path": "s3a://lake/raw", "options": {"mergeSchema": "true"}},
            "condition": "target.id = source.id",
            "clauses": [{"kind": "matched", "action": "delete"}],
        },
    ),
    "optimize": (DeltaOptimizeOperator, {}),
    "program": (None, {"read": True}),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_a_job_is_given(world, name):
    kind, given = OPERATIONS[name]
    with world.dag, delta_transaction("t", table=TABLE, delta_conn_id="lake", outlets=[]), delta_job("j", kind, **given) as job:
        Service(job=job, task_id="run")
    for task_id in ("t.start", "t.j.plan"):
        world.run(task_id)
    run = world.dag.task_dict["t.j.run"].prepare_for_execution()
    run.render_template_fields(context(run))
    assert run.arguments[:2] == ["--delta-request", run.request]
    assert (run.application.partition("://")[0], run.spark_application) == ("s3", run.application.replace("s3://", "s3a://"))
    world.shown.append(json.dumps(task_runner._serialize_rendered_fields(run)))

    files = world.stored()
    assert {name.rpartition("/")[2] for name in files} >= {"request.json", "application.py", "airflow_delta.zip", "job.py"}
    xcoms = {str(place): str(value).encode() for place, value in task_runner.SUPERVISOR_COMMS.xcoms.items()}
    assert xcoms
    shown = {f"rendered {number}": text.encode() for number, text in enumerate(world.shown)}
    for place, data in (files | xcoms | shown).items():
        for secret in SECRETS:
            assert secret.encode() not in data, place
            assert base64.b64encode(secret.encode()).rstrip(b"=")[:-1] not in data, place


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"format": "jdbc", "conn_id": "db", "options": {"dbtable": "orders"}}, "secret options of a connection"),
        ({"format": "jdbc", "options": {"dbtable": "o", "url": "jdbc:x://db", "password": "secret-of-source"}}, "secret"),
    ],
    ids=["conn_id", "options"],
)
def test_a_source_with_secrets_is_refused_before_anything_is_stored(world, source, said):
    given = {**OPERATIONS["merge"][1], "source": source}
    with pytest.raises(DeltaIllegalArgumentException, match=said) as caught:  # noqa: PT012 - in the Dag file, or by the plan
        with (
            world.dag,
            delta_transaction("t", table=TABLE, delta_conn_id="lake", outlets=[]),
            delta_job("j", DeltaMergeOperator, **given) as job,
        ):
            Service(job=job, task_id="run")
        world.run("t.start")
        world.run("t.j.plan")
    assert "secret-of-source" not in str(caught.value)
    assert world.stored() == {}
