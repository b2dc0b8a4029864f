"""The page on services: its blocks as Dags, and the table that they are about, on a local file system or on S3."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa

from stores.tables import client, rows_of_copy, rows_on_store
from support import readers
from support.documents import ROOT, section

if TYPE_CHECKING:
    from services.aws import Aws

PAGE = ROOT / "docs" / "how-to" / "services.md"
FOLDER = ROOT / "dags_examples" / "services"

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

AWS = ("EMR Serverless", "EMR on EC2", "EMR on EKS", "Glue")

BLOCKS = {
    "EMR Serverless": DELETED,
    "EMR on EC2": MERGED,
    "EMR on EKS": UPDATED,
    "Glue": ORDERS,
    "Livy": DELETED,
    "Dataproc": MERGED,
    "Dataproc Serverless": UPDATED,
    "Databricks": DELETED,
    "Spark operator": MERGED,
    "Synapse": ORDERS,
}
"""What the table has after the block of each service."""

EXAMPLES = {
    "EMR Serverless": ("delta_emr_serverless", MERGED),
    "EMR on EC2": ("delta_emr_steps", DELETED),
    "EMR on EKS": ("delta_emr_on_eks", ORDERS),
    "Glue": ("delta_glue", UPDATED),
    "Livy": ("delta_livy", UPDATED),
    "Dataproc": ("delta_dataproc", DELETED),
    "Dataproc Serverless": ("delta_dataproc_serverless", MERGED),
    "Databricks": ("delta_databricks", ORDERS),
    "Spark operator": ("delta_spark_operator", DELETED),
    "Synapse": ("delta_synapse", UPDATED),
}
"""The example Dag of each service, and what the table has after it."""


def write_orders(uri: str, options: dict[str, str] | None = None) -> None:
    """Write the table, in three commits of delta-rs."""
    for start in range(0, len(ORDERS), 2):
        ids, amounts, cancelled = zip(*ORDERS[start : start + 2], strict=True)
        rows = pa.table({"id": pa.array(ids, pa.int64()), "amount": pa.array(amounts, pa.int64()), "cancelled": list(cancelled)})
        mode: Any = "append" if start else "overwrite"
        deltalake.write_deltalake(uri, rows, mode=mode, storage_options=options)


def block_of(service: str) -> str:
    """Return the block of Python below the heading of a service."""
    [block] = [found.text for found in section(PAGE, service) if found.kind == "python"]
    return block


def dag_of(block: str, name: str) -> str:
    """Return a file with a block as its Dag."""
    return HEADER.format(name=name) + textwrap.indent(block, "    ")


class Orders:
    """The table on a local file system, made anew.

    :param directory: an existing directory for it.
    """

    def __init__(self, directory: Path) -> None:
        self.root = directory / "tables"
        self.path = self.root / "orders"
        write_orders(str(self.path))
        self.made = self.version

    @property
    def version(self) -> int:
        """Its latest version."""
        return deltalake.DeltaTable(str(self.path)).version()

    @property
    def connections(self) -> dict[str, dict[str, Any]]:
        """The connection ``lake`` of the page, and what it needs."""
        return {"lake": {"conn_type": "delta", "host": f"file://{self.root}"}}

    def rows(self) -> list[tuple[Any, ...]]:
        """Its rows, on which delta-rs, DuckDB and Polars agree."""
        return sorted(tuple(row.values()) for row in readers.rows(self.path))


class OrdersOnS3:
    """The table in the bucket of an account, made anew.

    :param directory: an existing directory, for copies of it.
    """

    def __init__(self, aws: Aws, directory: Path) -> None:
        self.aws, self.directory = aws, directory
        self.uri = f"{aws.root}/tables/orders"
        write_orders(self.uri, aws.storage_options)
        self.made = self.version

    @property
    def version(self) -> int:
        """Its latest version."""
        return deltalake.DeltaTable(self.uri, storage_options=self.aws.storage_options).version()

    @property
    def connections(self) -> dict[str, dict[str, Any]]:
        """The connection ``lake`` of the page, and the one that it needs."""
        lake = {"conn_type": "delta", "host": f"{self.aws.root}/tables", "extra": {"aws_conn_id": "aws_default"}}
        return {"lake": lake, "aws_default": self.aws.connection}

    def rows(self) -> list[tuple[Any, ...]]:
        """Its rows, on which delta-rs, DuckDB and Polars agree, from S3 and from a copy."""
        options = self.aws.storage_options
        rows = rows_on_store(self.uri, options)
        assert rows_of_copy(self.directory / "copy", client(options, self.aws.root), "tables/orders") == rows
        return rows
