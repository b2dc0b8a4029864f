"""The page on services: its blocks as Dags, and the table on a local file system that they are about."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from airflow_delta.contract.staging_directory import REPORT_DIRECTORY
from support.documents import ROOT, section

PAGE = ROOT / "docs" / "how-to" / "services.md"

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


def write_orders(uri: str, options: dict[str, str] | None = None) -> None:
    """Write the table, in three commits of delta-rs."""
    for start in range(0, len(ORDERS), 2):
        ids, amounts, cancelled = zip(*ORDERS[start : start + 2], strict=True)
        rows = pa.table({"id": pa.array(ids, pa.int64()), "amount": pa.array(amounts, pa.int64()), "cancelled": list(cancelled)})
        mode: Any = "append" if start else "overwrite"
        deltalake.write_deltalake(uri, rows, mode=mode, storage_options=options)


def block_of(service: str, number: int = 0) -> str:
    """Return a block of Python below the heading of a service."""
    return [found.text for found in section(PAGE, service) if found.kind == "python"][number]


def dag_of(block: str, name: str, *, deferrable: bool = False) -> str:
    """Return a file with a block as its Dag.

    :param deferrable: let the operator that runs the job wait in the triggerer.
    """
    if deferrable:
        changed = block.replace('task_id="run",', 'task_id="run", deferrable=True,')
        assert changed != block, block
        block = changed
    return HEADER.format(name=name) + textwrap.indent(block, "    ")


class Orders:
    """The table, made anew.

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
    def connection(self) -> dict[str, Any]:
        """The connection ``lake`` of the page."""
        return {"conn_type": "delta", "host": f"file://{self.root}"}

    @property
    def reports(self) -> int:
        """How many runs of jobs have left a report."""
        return len({part.parent for part in self.path.glob(f"**/{REPORT_DIRECTORY}/**/part-*") if "_temporary" not in part.parts})
