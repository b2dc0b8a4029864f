"""The AWS services of ``docs/how-to/services.md``: each block as printed, on a table on S3, with the role's policy as printed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from services.aws import BUCKET, REGION, ROLE, WORKER_KEY, WORKER_SECRET, Aws, Job
from stores.tables import client, rows_of_copy, rows_on_store
from support.documents import ROOT, section, shell
from support.environments import clean_environment
from support.places import files

PAGE = ROOT / "docs" / "how-to" / "services.md"
FOLDER = ROOT / "dags_examples" / "services"
TABLE = f"s3://{BUCKET}/tables/orders"

HEADER = """
from datetime import datetime

from airflow.sdk import DAG

from airflow_delta import delta_job, delta_transaction
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.optimize import DeltaOptimizeOperator

with DAG({name!r}, schedule=None, start_date=datetime(2026, 1, 1)):
"""

ORDERS = [(n, n * 10, n % 2 == 1) for n in range(6)]
"""Id, amount and whether it was cancelled."""

DELETED = [row for row in ORDERS if not row[2]]
MERGED = sorted([row for row in ORDERS if row[0] != 1] + [(1, 7, False), (100, 8, False)])
UPDATED = [(n, amount + 1 if n < 3 else amount, cancelled) for n, amount, cancelled in ORDERS]

SERVICES = {"EMR Serverless": DELETED, "EMR on EC2": MERGED, "EMR on EKS": UPDATED, "Glue": ORDERS}
"""What the table has after the block of each service."""

EXAMPLES = {
    "delta_emr_serverless": ("EMR Serverless", MERGED),
    "delta_emr_steps": ("EMR on EC2", DELETED),
    "delta_emr_on_eks": ("EMR on EKS", ORDERS),
    "delta_glue": ("Glue", UPDATED),
}


@pytest.fixture(scope="module")
def aws(installed: None) -> Iterator[Aws]:
    with Aws() as account:
        [policy] = [block for block in section(PAGE, "What the job's role needs") if block.kind == "json"]
        account.permissions.policy = json.loads(policy.text)
        yield account


@pytest.fixture
def orders(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The table of the page, anew, in three commits of delta-rs; and what a worker knows of the account."""
    for start in range(0, len(ORDERS), 2):
        ids, amounts, cancelled = zip(*ORDERS[start : start + 2], strict=True)
        rows = pa.table({"id": pa.array(ids, pa.int64()), "amount": pa.array(amounts, pa.int64()), "cancelled": list(cancelled)})
        mode: Any = "append" if start else "overwrite"
        deltalake.write_deltalake(TABLE, rows, mode=mode, storage_options=aws.storage_options)
    lake = {"conn_type": "delta", "host": f"s3://{BUCKET}/tables", "extra": {"aws_conn_id": "aws_default"}}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(aws.connection))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(lake))
    names = {
        "job_role": ROLE,
        "emr_application": aws.application,
        "emr_cluster": aws.cluster,
        "emr_virtual_cluster": aws.virtual_cluster,
    }
    for name, value in names.items():
        monkeypatch.setenv(f"AIRFLOW_VAR_{name.upper()}", value)
    aws.permissions.refused.clear()
    yield TABLE
    store = aws.clients["s3"]
    for page in store.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for each in page.get("Contents", ()):
            store.delete_object(Bucket=BUCKET, Key=each["Key"])


@pytest.fixture
def impatient(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at a job every minute does so, too, when it has ended."""
    sleep = asyncio.sleep
    monkeypatch.setattr(time, "sleep", aws.ended.wait)

    async def wait(delay: float, result: Any = None) -> Any:
        until = time.monotonic() + delay
        while not aws.ended.is_set() and (left := until - time.monotonic()) > 0:
            await sleep(min(left, 0.2))
        return await sleep(0, result)

    monkeypatch.setattr(asyncio, "sleep", wait)


def judged(aws: Aws, directory: Path) -> list[tuple[Any, ...]]:
    """Return the rows of the table, on which delta-rs, DuckDB and Polars agree, from S3 and from a copy."""
    rows = rows_on_store(TABLE, aws.storage_options)
    assert rows_of_copy(directory / "copy", client(aws.storage_options, f"s3://{BUCKET}"), "tables/orders") == rows
    return rows


def check(aws: Aws, jobs: list[Job], service: str, run: Any, directory: Path) -> None:
    assert [job.service for job in jobs] == [service]
    assert run.state == "success", jobs[0].log[-5000:]


def version(aws: Aws) -> int:
    return deltalake.DeltaTable(TABLE, storage_options=aws.storage_options).version()


@pytest.mark.usefixtures("impatient", "orders")
@pytest.mark.parametrize("service", SERVICES)
def test_the_block_of_a_service_as_printed(service: str, aws: Aws, run_dag: Any, tmp_path: Path) -> None:
    [block] = [found for found in section(PAGE, service) if found.kind == "python"]
    name = service.lower().replace(" ", "_")
    before = version(aws)
    # EKS may run a driver twice, here at the same time: Spark 3.5 and Spark 4.
    sparks = [aws.spark(of, tmp_path / of) for of in (("3.5", "4") if service == "EMR on EKS" else ("3.5",))]
    with aws.running(*sparks) as jobs:
        run = run_dag(HEADER.format(name=name) + textwrap.indent(block.text, "    "), name)
    check(aws, jobs, service, run, tmp_path)
    assert version(aws) == before + 1
    assert judged(aws, tmp_path) == SERVICES[service]
    # Hadoop 3.3 tries to delete the markers of directories above.
    assert {(action, resource[-1]) for action, resource in aws.permissions.refused} <= {("s3:DeleteObject", "/")}


@pytest.mark.usefixtures("impatient", "orders")
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_service_defers(name: str, aws: Aws, run_dag: Any, tmp_path: Path) -> None:
    service, rows = EXAMPLES[name]
    before = version(aws)
    with aws.running(aws.spark("4", tmp_path / "4")) as jobs:
        run = run_dag(FOLDER / f"{name}.py", name)
    check(aws, jobs, service, run, tmp_path)
    assert version(aws) == before + 1
    assert judged(aws, tmp_path) == rows
    assert aws.permissions.refused == set()


@pytest.mark.timeout(1200)  # several processes of Airflow's, on a machine that may be busy
def test_from_an_empty_folder_to_the_first_commit(aws: Aws, tmp_path: Path) -> None:
    """Word for word, but for the application's id. Endpoint and credentials are where boto3 finds them, without a connection."""
    blocks = section(PAGE, "From an empty folder to the first commit")
    script = shell(blocks)
    assert script.count("00example") == 1
    environment = clean_environment(
        tmp_path,
        AWS_ENDPOINT_URL=aws.url,
        AWS_ACCESS_KEY_ID=WORKER_KEY,
        AWS_SECRET_ACCESS_KEY=WORKER_SECRET,
        AWS_DEFAULT_REGION=REGION,
        AWS_REGION=REGION,
        PATH=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        TERM="dumb",
    )
    with aws.running(aws.spark("3.5", tmp_path / "spark")) as jobs, (tmp_path / "output").open("w") as output:
        command = ["bash", "-c", script.replace("00example", aws.application)]
        with subprocess.Popen(
            command, stdout=output, stderr=output, cwd=tmp_path, env=environment, start_new_session=True
        ) as shell_:
            try:
                code = shell_.wait(500)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell_.pid, signal.SIGKILL)
    said = (tmp_path / "output").read_text()
    assert code == 0, said[-6000:] + "".join(job.log[-3000:] for job in jobs)
    assert [row[0] for row in rows_on_store(f"s3://{BUCKET}/tables/first_orders", aws.storage_options)] == list(range(1000))
    assert re.search(r"^0 +.* WRITE .*$", said, re.M), said[-3000:]  # of the history


def test_every_example_is_tested() -> None:
    assert {path.stem for path in files(FOLDER, "*.py")} >= EXAMPLES.keys()
    assert len(EXAMPLES) == len(SERVICES)
