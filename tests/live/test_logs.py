"""What a person reads in the log of a task that has succeeded."""

from __future__ import annotations

from live.runs import Live


def test_a_green_stage_has_no_red_line(live: Live) -> None:
    """Airflow makes an error of each line on a task's stderr; of those, only the author's own is left."""
    run = live.trigger("spark_log", table=str(live.table("spark-log"))).wait()
    for task_id in ("txn.start", "txn.stage", "txn.commit", "txn.abort"):
        lines = run.log_lines(task_id)
        assert lines, task_id
        loud = [(line["level"], line["event"]) for line in lines if line.get("level") in ("warning", "error", "critical")]
        assert loud == ([("error", "said by the author")] if task_id == "txn.stage" else [])
    levels = {line["event"]: line["level"] for line in run.log_lines("txn.stage")}
    assert levels["said by a library"] == "info"
