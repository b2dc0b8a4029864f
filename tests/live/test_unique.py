"""Ids are unique in the version that is published, by an audit without Spark, whoever commits after it."""

from __future__ import annotations

from live.runs import Live, Run

COMMIT = "txn.commit"


def at_once(live: Live, *ids: list[int]) -> list[Run]:
    """Start runs, and let their commits go when the audits of all have passed."""
    live.airflow.set_pool("gate_unique", 0)
    runs = [live.trigger("unique_ids", ids=each) for each in ids]
    audited = lambda: all(run.state_of("txn.audit") == "success" for run in runs)  # noqa: E731
    waiting = lambda: audited() and all(run.state_of(COMMIT) == "scheduled" for run in runs)  # noqa: E731
    live.until(waiting, "all commits wait", explain=lambda: "\n".join(run.explain() for run in runs))
    live.airflow.set_pool("gate_unique", 128)
    live.until(lambda: all(run.state in ("success", "failed") for run in runs), "all runs ended")
    return runs


def test_two_runs_with_one_id(live: Live) -> None:
    """Exactly one publishes, also when both make the table; one with other ids is in nobody's way."""
    table = live.table("unique")
    for version, (first, second, other) in enumerate([([1, 2, 3], [3, 4], [5]), ([10, 11], [11], [12, 13])]):
        runs = at_once(live, first, second, other)
        (loser,) = [run for run in runs if run.state == "failed"]
        assert loser is not runs[2], loser.explain()
        winner = runs[1 - runs.index(loser)]
        assert table.version == 2 * version + 1
        assert set(table.committed_by()[-2:]) == {winner.run_id, runs[2].run_id}
        note = loser.xcom(COMMIT, key="delta_commit_failure")
        assert note["exception"] == "DeltaAuditFailedException", note
        assert "the check unique of txn.audit holds for version" in loser.explain()
        assert f"with 1 key id ({second[0] if second[0] in first else 11}) that it stages as well" in loser.explain()
        assert loser.tries_of(COMMIT) == 1, "it is final for its transaction"
        assert loser.xcom("txn.abort")["outcome"] == "deleted"
        ids = [row["id"] for row in table.rows()]
        assert len(ids) == len(set(ids))


def test_example(live: Live) -> None:
    """As it is: a hundred ids, the same ones at the same time, and others."""
    live.unpause("delta_unique_ids")
    runs = [live.trigger("delta_unique_ids", first=1) for _ in range(2)]
    live.until(lambda: all(run.state in ("success", "failed") for run in runs), "both runs ended")
    assert sorted(run.state for run in runs) == ["failed", "success"]
    (loser,) = [run for run in runs if run.state == "failed"]
    assert "100 keys id (1, 2, 3, ...)" in loser.explain()
    live.trigger("delta_unique_ids", first=101).wait()
    ids = [row["id"] for row in live.table("members").rows()]
    assert sorted(ids) == list(range(1, 201))
