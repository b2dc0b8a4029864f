"""The publications of a page of a table's history: one row for each, from the tags of its entries in the log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.ui.known import commit_url, find_table, table_url
from airflow_delta.ui.problems import PageProblem

if TYPE_CHECKING:
    from airflow_delta.ui.access import Viewer
    from airflow_delta.ui.known import KnownTable

PUBLICATION_KEYS = ("airflow.publication/", "airflow.intent/")
"""Beginnings of application ids that are states of publications, and no keys of transactions."""

_TAG = "airflow.publication"
_OPEN = "intent"
_STATES = (_OPEN, "published", "refused", "undone", "stands")


def publication_rows(
    viewer: Viewer, table: KnownTable, commits: Sequence[Mapping[str, Any]], prefix: str
) -> list[dict[str, Any]]:
    """Return the publications that have entries among some commits, newest first.

    ``state`` is that on this table: ``intent`` is one that is not decided, or not put here yet. Tables that the user may not see
    are only counted.

    :param commits: of a page of the history, newest first, each with ``tags`` and ``run``.
    """
    found: dict[str, dict[str, Any]] = {}
    for commit in commits:
        tags = commit.get("tags") or {}
        publication, state = tags.get(_TAG), tags.get(f"{_TAG}State")
        if not isinstance(publication, str) or state not in _STATES:
            continue
        entry = {"version": commit["version"], "state": state, "url": commit_url(prefix, table.uri, commit["version"])}
        if publication in found:
            found[publication]["entries"].insert(0, entry)
            continue
        uris = _tables(tags)
        seen = [_seen(viewer, uri, prefix) for uri in uris]
        shown = [one for one in seen if one is not None]
        found[publication] = {
            "publication": publication,
            "state": state,
            "timestamp": commit["timestamp"],
            "run": commit.get("run"),
            "run_hidden": commit.get("run_hidden", False),
            "entries": [entry],
            "tables": shown,
            "num_hidden": len(seen) - len(shown),
            "settle": None,
        }
        if state == _OPEN and len(shown) == len(seen):
            found[publication]["settle"] = f"airflow delta settle {' '.join(uris)} --publication {publication}"
    return list(found.values())


def _tables(tags: Mapping[str, Any]) -> list[str]:
    """Return the tables of a publication, the anchor first; any writer may have put anything into a tag."""
    try:
        uris = json.loads(tags.get(f"{_TAG}Tables") or "[]")
    except ValueError:
        return []
    return [uri for uri in uris if isinstance(uri, str)][:32] if isinstance(uris, list) else []


def _seen(viewer: Viewer, uri: str, prefix: str) -> dict[str, Any] | None:
    try:
        table = find_table(viewer, uri)
    except PageProblem:
        return None
    return {"name": table.name, "table": table.uri, "url": table_url(prefix, table.uri)}
