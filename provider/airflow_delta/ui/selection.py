"""Which commits of a history a page shows, and in which order: a filter and an order over a bounded range of versions.

They see what the user sees: a Dag or a key that is hidden from the user is not found either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from airflow_delta.light_dataclasses import dataclass

SEARCHED = 200
"""Versions that one page with a filter or an order looks at."""

Order = Literal[
    "version",
    "-version",
    "operation",
    "-operation",
    "committed",
    "-committed",
    "dag",
    "-dag",
    "rows",
    "-rows",
    "added",
    "-added",
    "removed",
    "-removed",
    "attempts",
    "-attempts",
    "checked",
    "-checked",
]
"""A column of the history; with a minus, in descending order."""

NEWEST_FIRST: Order = "-version"

_VALUES: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "version": lambda commit: commit["version"],
    "operation": lambda commit: commit["operation"],
    "committed": lambda commit: commit["timestamp"],
    "dag": lambda commit: (commit["run"] or {}).get("dag_id"),
    "rows": lambda commit: commit["num_records"],
    "added": lambda commit: commit["bytes_added"],
    "removed": lambda commit: commit["bytes_removed"],
    "attempts": lambda commit: commit["attempts"],
    "checked": lambda commit: commit["versions_checked"],
}


@dataclass(frozen=True, slots=True)
class Selection:
    """A filter and an order.

    :param operation: part of the operation's name, in any case; empty for all.
    :param dag: part of the Dag's id.
    :param key: part of a transaction key.
    """

    operation: str = ""
    dag: str = ""
    key: str = ""
    sort: Order = NEWEST_FIRST

    @property
    def is_filter(self) -> bool:
        """Return whether it leaves out commits."""
        return bool(self.operation or self.dag or self.key)

    @property
    def is_plain(self) -> bool:
        """Return whether it is neither a filter nor an order of its own."""
        return not self.is_filter and self.sort == NEWEST_FIRST

    def to_dict(self) -> dict[str, str]:
        """Return it as the parameters of a page."""
        return asdict(self)

    def of(self, commits: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the commits to show, in their order; unknown values come last.

        :param commits: as the user may see them, newest first.
        """
        value = _VALUES[self.sort.removeprefix("-")]
        found = [commit for commit in commits if self._has(commit)]
        known = [commit for commit in found if value(commit) is not None]
        known.sort(key=value, reverse=self.sort.startswith("-"))
        return known + [commit for commit in found if value(commit) is None]

    def _has(self, commit: Mapping[str, Any]) -> bool:
        run = commit["run"] or {}
        return (
            _is_in(self.operation, commit["operation"] or "")
            and _is_in(self.dag, run.get("dag_id", ""))
            and (not self.key or any(_is_in(self.key, key) for key in commit["app_transactions"]))
        )


def _is_in(part: str, text: str) -> bool:
    return part.casefold() in text.casefold()
