"""What must hold of publications, judged from the logs of their tables alone, and from the rows that delta-rs reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from publication.lake import LakeTable

Entry = dict[str, Any]

ENDS = ([], ["refused"], ["published"], ["published", "undone"], ["published", "stands"])
"""States of a publication on one table, oldest first, without its intent."""


def shown(logs: Mapping[str, list[Entry]], versions: Mapping[str, int]) -> dict[str, dict[str, bool]]:
    """Return for each publication, by URI of its tables, whether a version of the table shows it."""
    found: dict[str, dict[str, bool]] = {}
    for uri, entries in logs.items():
        for entry in entries:
            publication = entry["publication"]
            if publication is None or entry["version"] > versions[uri]:
                continue
            tables = found.setdefault(publication, dict.fromkeys(tables_of(entry), False))
            if entry["state"] in ("published", "undone"):
                tables[uri] = entry["state"] == "published"
    return found


def tables_of(entry: Entry) -> list[str]:
    """Return the URIs of the tables of a publication, as one of its entries names them."""
    info = next(line["commitInfo"] for line in entry["lines"] if "commitInfo" in line)
    return list(json.loads(info["tags"]["airflow.publicationTables"]))


def states(entries: Iterable[Entry], publication: str) -> list[str]:
    """Return the states of a publication in a log, oldest first."""
    return [entry["state"] for entry in entries if entry["publication"] == publication]


def judge_states(logs: Mapping[str, list[Entry]]) -> list[str]:
    """Check that every publication is on all of its tables or on none, but for one that is split and says so."""
    wrong = []
    for publication, on in shown(logs, {uri: len(entries) - 1 for uri, entries in logs.items()}).items():
        found = {uri: states(logs[uri], publication) for uri in on}
        for uri, of_one in found.items():
            if of_one.count("intent") > 1 or [state for state in of_one if state != "intent"] not in ENDS:
                wrong.append(f"{publication} has {of_one} on {uri}")
        if len(set(on.values())) > 1 and not any("stands" in of_one for of_one in found.values()):
            wrong.append(f"{publication} is half: {found}")
    return wrong


def judge_versions(uri: str, entries: list[Entry]) -> list[str]:
    """Check that the log has no gap."""
    return [] if [entry["version"] for entry in entries] == list(range(len(entries))) else [f"{uri} has a gap"]


def judge_rows(table: LakeTable, entries: list[Entry]) -> list[str]:
    """Check each version of a table against the one before it."""
    wrong = []
    before: set[int] = set()
    taken: dict[str, tuple[set[int], set[int]]] = {}
    for entry in entries:
        ids = table.ids(entry["version"])
        now = set(ids)
        if len(ids) != len(now):
            wrong.append(f"rows are doubled in version {entry['version']} of {table.uri}")
        added, removed = now - before, before - now
        if entry["state"] == "published":
            taken[entry["publication"]] = (added, removed)
        elif entry["state"] == "undone":
            then_added, then_removed = taken.get(entry["publication"], (set(), set()))
            if (added, removed) != (then_removed, then_added):
                wrong.append(f"version {entry['version']} of {table.uri} is not the inverse")
        elif entry["state"] is not None and (added or removed):
            wrong.append(f"version {entry['version']} of {table.uri} ({entry['state']}) changed rows")
        before = now
    return wrong
