"""What tests of metrics, log lines and lineage share: operators outside of a Dag run, a statsd server, a logger that keeps."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.transaction import DeltaCommitOperator, DeltaStartTransactionOperator
from support.running_tasks import context


def start(uri: str, **kwargs):
    operator = DeltaStartTransactionOperator(task_id="start", table=uri, **kwargs)
    return operator.execute(context(operator))


def stage(handle, values=(1, 2, 3), *, task_id: str = "stage", **kwargs):
    """Return the operator and what it staged."""
    directory = Path(handle["stagingPath"].removeprefix("file://")) / task_id
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(values, pa.int64())}), directory / "part-0.parquet")
    operator = DeltaStageFilesOperator(task_id=task_id, transaction=handle, path=task_id, **kwargs)
    return operator, operator.execute(context(operator))


def commit(handle, *staged, **kwargs) -> DeltaCommitOperator:
    return DeltaCommitOperator(task_id="commit", transaction=handle, staged=list(staged), **kwargs)


class Lines:
    """A logger that keeps its lines as text."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __getattr__(self, level: str):
        if level not in ("debug", "info", "warning", "error", "exception"):
            raise AttributeError(level)

        def log(text: str, *args, **_more) -> None:
            self.lines.append((level, text % args if args else text))

        return log

    def texts(self, level: str = "info") -> list[str]:
        return [text for found, text in self.lines if found == level]


@dataclass(frozen=True)
class Metric:
    name: str
    value: float
    kind: str
    tags: dict[str, str]


class StatsdServer:
    """Takes what Airflow sends to statsd on a port of this machine."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.2)
        self.port = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()

    def received(self, seconds: float = 5.0) -> list[Metric]:
        """Return what has come so far under ``delta.``; waits until nothing comes any more."""
        found: list[Metric] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                packet = self._socket.recv(65536)
            except TimeoutError:
                break
            for line in packet.decode().splitlines():
                name, value, kind = re.fullmatch(r"(.+):([-0-9.]+)\|(c|ms|g)(?:\|@.*)?", line).groups()
                name, *tags = name.split(",")
                name = name.removeprefix("airflow.")
                if name.startswith("delta."):
                    found.append(Metric(name, float(value), kind, dict(tag.split("=", 1) for tag in tags)))
        return found


@pytest.fixture(name="statsd")
def airflow_statsd(monkeypatch):
    """A statsd server, and Airflow's Stats set up to send to it, as the task runner does it when a task begins."""
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    server = StatsdServer()
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(server.port))
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    made = []

    def factory():
        made.append(get_stats_factory()())
        return made[-1]

    stats.initialize(factory=factory, export_legacy_names=False)
    yield server
    monkeypatch.undo()
    stats.initialize(factory=get_stats_factory(), export_legacy_names=False)
    for logger in made:
        logger.statsd.close()
    server.close()
