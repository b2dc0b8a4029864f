"""The publications of a page of a table's history: one row for each, from the tags of its entries in the log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.tags import PUBLICATION_TAG
from airflow_delta.ui.addresses import commit_url, table_url
from airflow_delta.ui.known import find_table
from airflow_delta.ui.problems import PageProblem

if TYPE_CHECKING:
    from airflow_delta.ui.access import Viewer
    from airflow_delta.ui.known import KnownTable

PUBLICATION_KEYS = ("airflow.publication/", "airflow.intent/")
"""Beginnings of application ids that are states of publications, and no keys of transactions."""

OTHER_TABLES = 8
"""Tables whose logs a page reads beside its own."""

logger = logging.getLogger(__name__)

_OPEN = "intent"
_STATES = (_OPEN, "published", "refused", "undone", "stands")


def publication_rows(
    viewer: Viewer, table: KnownTable, commits: Sequence[Mapping[str, Any]], prefix: str
) -> list[dict[str, Any]]:
    """Return the publications that have entries among some commits, newest first.

    ``state`` is that on this table: ``intent`` is one that is not decided, or not put here yet. Tables that the user may not see
    are only counted; those on other tables are for :func:`with_states_elsewhere`.

    :param commits: of a page of the history, newest first, each with ``tags`` and ``run``.
    """
    found: dict[str, dict[str, Any]] = {}
    for commit in commits:
        tags = commit.get("tags") or {}
        publication, state = tags.get(PUBLICATION_TAG), tags.get(f"{PUBLICATION_TAG}State")
        if not isinstance(publication, str) or state not in _STATES:
            continue
        entry = _entry(commit["version"], state, table.uri, prefix)
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
    for one in found.values():
        for other in one["tables"]:
            if other["table"] == table.uri:
                other.update(state=one["state"], entries=one["entries"])
    return list(found.values())


def _entry(version: int, state: str, uri: str, prefix: str) -> dict[str, Any]:
    return {"version": version, "state": state, "url": commit_url(prefix, uri, version)}


async def with_states_elsewhere(
    rows: Sequence[dict[str, Any]], uri: str, prefix: str, read: Callable[[str], Awaitable[Mapping[str, Any]]]
) -> None:
    """Add to publications how they stand on their other tables: ``state`` and ``entries``, or a ``problem``.

    :param rows: of :func:`publication_rows`, newest first.
    :param uri: of the table whose page it is.
    :param read: returns the newest history of a table that the user may see; a :class:`PageProblem` says why not. No error of
        another table is one of this page.
    """
    others = [other for one in rows for other in one["tables"] if other["table"] != uri]
    wanted = list(dict.fromkeys(other["table"] for other in others))[:OTHER_TABLES]
    answers = await asyncio.gather(*(read(other) for other in wanted), return_exceptions=True)
    histories: dict[str, list[Mapping[str, Any]]] = {}
    problems = dict.fromkeys({other["table"] for other in others} - set(wanted), "see its own page")
    for other, answer in zip(wanted, answers, strict=True):
        if isinstance(answer, PageProblem):
            problems[other] = f"cannot be read: {answer.title}"
        elif isinstance(answer, BaseException):
            logger.warning("Table %s cannot be read for the publications of %s", other, uri, exc_info=answer)
            problems[other] = "cannot be read"
        else:
            histories[other] = answer["commits"]
    for one in rows:
        for table in one["tables"]:
            if (commits := histories.get(table["table"])) is not None:
                table.update(_stands(one["publication"], table["table"], commits, prefix))
            elif table["table"] != uri:
                table["problem"] = problems[table["table"]]


def _stands(publication: str, uri: str, commits: Sequence[Mapping[str, Any]], prefix: str) -> dict[str, Any]:
    """Return how a publication stands on a table by its newest commits."""
    entries: list[dict[str, Any]] = []
    for commit in commits:
        tags = commit.get("tags") or {}
        state = tags.get(f"{PUBLICATION_TAG}State")
        if tags.get(PUBLICATION_TAG) == publication and state in _STATES:
            entries.insert(0, _entry(commit["version"], state, uri, prefix))
    if entries:
        return {"state": entries[-1]["state"], "entries": entries}
    return {"problem": f"not in its newest {len(commits)} commits"}


def _tables(tags: Mapping[str, Any]) -> list[str]:
    """Return the tables of a publication, the anchor first; any writer may have put anything into a tag."""
    try:
        uris = json.loads(tags.get(f"{PUBLICATION_TAG}Tables") or "[]")
    except ValueError:
        return []
    return [uri for uri in uris if isinstance(uri, str)][:32] if isinstance(uris, list) else []


def _seen(viewer: Viewer, uri: str, prefix: str) -> dict[str, Any] | None:
    try:
        table = find_table(viewer, uri)
    except PageProblem:
        return None
    return {
        "name": table.name,
        "table": table.uri,
        "url": table_url(prefix, table.uri),
        "state": None,
        "entries": [],
        "problem": None,
    }
