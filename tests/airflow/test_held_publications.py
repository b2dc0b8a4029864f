"""Audits of a publication that hold for the versions that it shows, by whole Dag runs: others write between audit and commit."""

from __future__ import annotations

from datetime import UTC, datetime

import deltalake
import pyarrow as pa
import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.table.observe.commit_summary import commit_summary
from support.readers import rows

pytestmark = pytest.mark.airflow

SUMS = "SELECT (SELECT sum(id) FROM orders) = (SELECT sum(id) FROM lines)"
FEW = "SELECT count(*) < 20 FROM lines WHERE id < 1000"


@pytest.fixture
def publish(run_dag, tables):
    """Run a publication of five rows each to two tables of ten, between whose audit and commit others write to ``lines``."""

    def run(kind: str, number: int, **conf):
        lake = f"held_{kind}_{number}"
        for name in ("orders", "lines"):
            deltalake.write_deltalake(f"{tables}/{lake}/{name}", pa.table({"id": pa.array(range(100, 110), pa.int64())}))
        given = {"lake": lake, "rows": "5", "others": [2000], **conf}
        run = run_dag(f"publication_held_by_{kind}", datetime(2026, 1, 1 + number, tzinfo=UTC), **given)
        run.counts = tuple(len(rows(f"{tables}/{lake}/{name}")) for name in ("orders", "lines"))
        return run

    return run


def report_uri(report: dict, name: str) -> str:
    return next(uri for uri in report["tables"] if uri.endswith(f"/{name}"))


@pytest.mark.parametrize(("number", "others", "most"), [(0, [2000], "1.5"), (1, "DELETE", "2")])
def test_the_rows_of_one_table_are_counted_again(publish, capfd, number, others, most):
    """Ten rows and five. With one of others it is less than half as many more; without eight of them, more than twice as many."""
    run = publish("statistics", number, others=others, most=most)
    report = run.xcom("p.lines.audit")
    assert [held["transactionId"] for held in report["held"]] == [report["transactionId"]]
    assert run.state_of("p.lines.audit") == "success"
    if others != "DELETE":
        assert (run.state, run.counts) == ("success", (15, 16))
        for uri, commit in run.xcom("p.commit")["tables"].items():  # each names the checks of the whole publication
            told = commit_summary(DeltaLog.for_table(uri), commit["version"]).checks
            assert sorted(told.attempts) == ["p.lines.stage", "p.orders.stage"]
            (audit,) = (check for check in told.checks if check.kind == "audit")
            assert (audit.task_id, audit.version, audit.held) == ("p.lines.audit", 0, ("rows_change",))
            assert audit.stages == ("p.lines.stage",)
        return
    assert (run.state_of("p.commit"), run.counts) == ("failed", (10, 2))
    said = "".join(capfd.readouterr())
    assert "the check rows_change of p.lines.audit holds for version 0, not after version 1" in said
    assert "2 rows before the commit and 7 after it, 3.5 times as many" in said


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("number", "sql", "holds_at", "published"),
    [(0, SUMS, "commit", False), (1, SUMS, "read", True), (2, FEW, "commit", True)],
    ids=["met", "as-read", "not-met"],
)
def test_sums_that_agree_do_so_in_what_is_published(publish, tables, capfd, number, sql, holds_at, published):
    run = publish("sql", number, sql=sql, holds_at=holds_at)
    report = run.xcom("p.totals")
    assert run.state_of("p.totals") == "success"
    assert set(report["versions"].values()) == {0}
    assert len(report["held"]) == {SUMS: 2 if holds_at == "commit" else 0, FEW: 1}[sql]
    assert run.state_of("p.commit") == ("success" if published else "failed")
    assert run.counts == ((15, 16) if published else (10, 11))
    if published:
        log = DeltaLog.for_table(f"{tables}/held_sql_{number}/lines")
        version = run.xcom("p.commit")["tables"][report_uri(report, "lines")]["version"]
        records = commit_summary(log, version).checks.checks
        found = next(record for record in records if record.task_id == "p.totals")
        assert found.versions == report["versions"]
        assert found.held == (("sums agree",) if holds_at == "commit" else ())
    else:
        said = "".join(capfd.readouterr())
        assert "ChecksOutdatedException" in said
        assert "the check sums agree of p.totals holds for version 0, and version 1 (WRITE) has changed the table since" in said
