"""``conflict_detection`` of a task: its check in the Dag file, its tag, and the report of resolved conflicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_delta.contract.tags import DETECTION_TAG
from airflow_delta.transaction.conflict_detection import DROPPED, KEYS, MOVED, ROWS, STATISTICS, check_level

_SHOWN_BY = {
    STATISTICS: "column bounds",
    KEYS: "the values of the columns that were read",
    ROWS: "the positions of rows",
    MOVED: "the rows, which only moved to other files",
    DROPPED: "leaving out files that were compacted or changed",
}


def check_literal_level(level: Any) -> None:
    """Check a level while the Dag is parsed; a template is checked when the task runs.

    :param level: as in the Dag file.
    """
    if isinstance(level, str) and "{" not in level:
        check_level(level)


def detection_tags(level: str) -> dict[str, str]:
    """Return the tag of ``commitInfo`` that says how closely a commit was checked."""
    return {DETECTION_TAG: level}


def resolved_lines(resolved: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each way in which winning commits turned out not to conflict.

    :param resolved: of a :class:`~airflow_delta.contract.payloads.CommitResult`.
    """
    for how, versions in resolved.items():
        named = f"versions {versions} conflict" if "-" in versions or "," in versions else f"version {versions} conflicts"
        yield f"{named} by Delta's rules, but not by {_SHOWN_BY.get(how, 'a closer look')} ({how})."
