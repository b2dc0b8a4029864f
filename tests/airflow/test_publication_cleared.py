"""A publication with ``on_late_conflict="keep"`` that is split: what its page names as the way out, by whole Dag runs."""

from __future__ import annotations

from datetime import UTC, datetime

import deltalake
import pyarrow as pa
import pytest

pytestmark = pytest.mark.airflow

REST = ("p.commit", "p.abort", "p.watcher")
MISSING = ("p.second.start", "p.second.rows", *REST)
CLEARED = {"the missing one": MISSING, "all": ("p.first.start", "p.first.rows", *MISSING)}


@pytest.mark.parametrize(("day", "cleared"), [(1, "the missing one"), (2, "all")])
def test_what_is_missing_is_published_alone(run_dag, clear_and_run, tables, day, cleared):
    lake = f"{tables}/kept_halves_{day}"

    def ids() -> list[list[int]]:
        return [
            sorted(deltalake.DeltaTable(f"{lake}/{name}").to_pyarrow_table()["id"].to_pylist()) for name in ("first", "second")
        ]

    for name in ("first", "second"):
        deltalake.write_deltalake(f"{lake}/{name}", pa.table({"id": pa.array([0], pa.int64())}))
    run = run_dag("kept_halves", datetime(2026, 1, day, tzinfo=UTC), lake=f"kept_halves_{day}", id="1")
    assert (run.state, run.state_of("p.commit"), ids()) == ("failed", "failed", [[0, 1], [0]])
    assert run.xcom("p.abort")["outcome"] == "split"

    run = clear_and_run(run, *CLEARED[cleared])
    assert (run.state, run.state_of("p.commit"), ids()) == ("success", "success", [[0, 1], [0, 1]])
    assert run.xcom("p.commit")["outcome"] == run.xcom("p.abort")["outcome"] == "published"
