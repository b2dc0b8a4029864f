"""What a commit's page says of the checks before it, by its tag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_delta.contract.check_records import (
    CheckRecord,
    CheckRecords,
    answer_in_words,
    checks_of,
    result_in_words,
    stages_in_words,
    version_in_words,
)
from airflow_delta.shown_text import visible
from airflow_delta.ui.commit_rows import shortened
from airflow_delta.ui.task_runs import run_of, task_run

_CHECKS = 200
_WIDTH = 2_000
"""Rows, and characters of a cell, that are shown: any writer of a table may have written the tag."""


def checks_shown(tags: Mapping[str, str], root: str) -> dict[str, Any] | None:
    """Return what was checked before a commit; ``None`` if its tags do not say.

    :param tags: as the user may see them.
    """
    records, run = checks_of(tags), run_of(tags, root)
    if records is None or run is None:
        return None
    left_out = records.left_out + max(len(records.checks) - _CHECKS, 0)
    rows = [_row(check, records, run, root) for check in records.checks[:_CHECKS]]
    return {"rows": rows, "left_out": left_out, "num_stages": records.num_stages, "attempts": dict(records.attempts)}


def _row(check: CheckRecord, records: CheckRecords, run: Mapping[str, Any], root: str) -> dict[str, Any]:
    words = {
        "result": result_in_words(check),
        "version": version_in_words(check),
        "stages": stages_in_words(check, records),
        "answer": answer_in_words(check),
        "kind": check.kind,
        "definition": check.definition or "",
    }
    return {
        "task": task_run(root, run["dag_id"], run["run_id"], check.task_id, check.map_index),
        "state": "outdated" if check.outdated else check.result.replace(" ", "_"),
        **{name: visible(shortened(text, _WIDTH)) for name, text in words.items()},
    }
