"""Where the demo keeps its table: in a local folder, or in a bucket of an S3 gateway that runs as long as the demo does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_services import DemoError

from airflow_delta.log import DeltaLog

if TYPE_CHECKING:
    from deltalake import DeltaTable

TESTS = Path(__file__).parents[2] / "tests"
BUCKET = "lake"
LOAD_CONNECTOR = """
from pyspark.sql import SparkSession
from airflow_delta.spark.connectors import coordinate, hadoop_version
packages = coordinate("s3a", hadoop_version())
settings = {"spark.master": "local[1]", "spark.jars.packages": packages, "spark.ui.enabled": "false"}
SparkSession.builder.config(map=settings).getOrCreate().stop()
print(packages)
"""


@dataclass(frozen=True)
class Place:
    """A table, for readers that do not know Airflow.

    :param options: storage options; none for a local folder.
    :param variables: environment variables by which the Dag finds the table.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def log(self) -> DeltaLog:
        return DeltaLog.for_table(self.uri, self.options or None)

    def delta_rs(self) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(self.uri, storage_options=dict(self.options) or None)


@contextmanager
def opened(store: str, root: Path, say: Callable[[str], None]) -> Iterator[Place]:
    """Yield the table's place.

    :param store: ``local`` or ``s3``.
    :param root: the demo's folder.
    :raises DemoError: if it is neither.
    """
    if store == "local":
        yield Place(str(root / "table"))
    elif store == "s3":
        with _gateway(root / "s3", say) as place:
            yield place
    else:
        raise DemoError(f"STORE={store} is not known. Use STORE=local or STORE=s3.")


@contextmanager
def _gateway(directory: Path, say: Callable[[str], None]) -> Iterator[Place]:
    sys.path.append(str(TESTS))
    from stores import install
    from stores.servers import Versitygw, s3_client

    install.main("python", "versitygw")
    _load_connector(say)
    directory.mkdir(exist_ok=True)
    with Versitygw(directory) as gateway:
        client = s3_client(gateway.options)
        if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
            client.create_bucket(Bucket=BUCKET)
        client.close()
        say(f"S3 gateway: ready at {gateway.url}, objects in {directory / 'objects'}")
        connection = {"conn_type": "delta", **gateway.connection(f"s3://{BUCKET}")}
        variables = {"AIRFLOW_CONN_DELTA_DEFAULT": json.dumps(connection), "FLIGHTS_DEMO_TABLE": "flights"}
        yield Place(f"s3://{BUCKET}/flights", gateway.options, variables)


def _load_connector(say: Callable[[str], None]) -> None:
    """Fetch Spark's connector once, before several tasks do so at a time: Ivy's cache is not made for several writers."""
    loaded = subprocess.run([sys.executable, "-c", LOAD_CONNECTOR], capture_output=True, text=True, check=False)
    if loaded.returncode:
        raise DemoError(f"Spark could not load its connector to S3.\n{loaded.stderr[-3000:]}")
    say(f"Spark's connector: {loaded.stdout.split()[-1]}")
