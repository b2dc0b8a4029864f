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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.aws import BUCKET, REGION, ROLE, WORKER_KEY, WORKER_SECRET, Aws, Job
from services.page import AWS, BLOCKS, EXAMPLES, FOLDER, PAGE, OrdersOnS3, block_of, dag_of
from stores.tables import rows_on_store
from support.documents import section, shell
from support.environments import clean_environment


@pytest.fixture(scope="module")
def aws(installed: None) -> Iterator[Aws]:
    with Aws() as account:
        [policy] = [block for block in section(PAGE, "What the job's role needs") if block.kind == "json"]
        account.permissions.policy = json.loads(policy.text)
        yield account


@pytest.fixture
def orders(aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OrdersOnS3]:
    """The table of the page, and what a worker knows of the account."""
    made = OrdersOnS3(aws, tmp_path)
    for name, connection in made.connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
    names = {
        "job_role": ROLE,
        "emr_application": aws.application,
        "emr_cluster": aws.cluster,
        "emr_virtual_cluster": aws.virtual_cluster,
    }
    for name, value in names.items():
        monkeypatch.setenv(f"AIRFLOW_VAR_{name.upper()}", value)
    aws.permissions.refused.clear()
    yield made
    aws.empty()


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


def check(jobs: list[Job], service: str, run: Any, orders: OrdersOnS3) -> None:
    assert [job.service for job in jobs] == [service]
    assert run.state == "success", jobs[0].log[-5000:]
    assert orders.version == orders.made + 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("service", AWS)
def test_the_block_of_a_service_as_printed(service: str, aws: Aws, orders: OrdersOnS3, run_dag: Any, tmp_path: Path) -> None:
    name = service.lower().replace(" ", "_")
    # EKS may run a driver twice, here at the same time: Spark 3.5 and Spark 4.
    sparks = [aws.spark(of, tmp_path / of) for of in (("3.5", "4") if service == "EMR on EKS" else ("3.5",))]
    with aws.running(*sparks) as jobs:
        run = run_dag(dag_of(block_of(service), name), name)
    check(jobs, service, run, orders)
    assert orders.rows() == BLOCKS[service]
    # Hadoop 3.3 tries to delete the markers of directories above.
    assert {(action, resource[-1]) for action, resource in aws.permissions.refused} <= {("s3:DeleteObject", "/")}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("service", AWS)
def test_the_example_of_a_service_defers(service: str, aws: Aws, orders: OrdersOnS3, run_dag: Any, tmp_path: Path) -> None:
    name, rows = EXAMPLES[service]
    with aws.running(aws.spark("4", tmp_path / "4")) as jobs:
        run = run_dag(FOLDER / f"{name}.py", name)
    check(jobs, service, run, orders)
    assert orders.rows() == rows
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
