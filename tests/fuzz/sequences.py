"""Random valid sequences of commits, with everything that the log format allows in odd places."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from support import tables

Action = dict[str, Any]
Commit = list[Action]

FEATURES = ["deletionVectors", "domainMetadata", "appendOnly", "invariants"]
PROTOCOL: Action = {
    "protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"], "writerFeatures": FEATURES}
}
PLAIN_PROTOCOL: Action = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}

VECTOR = {"storageType": "u", "offset": 1, "sizeInBytes": 40, "cardinality": 2}
STATS = {"minValues": {"id": -(2**63)}, "maxValues": {"id": 2**63 - 1}, "nullCount": {"id": 0}}
NAMES = (
    "a.parquet",
    "part=x/b.parquet",
    "sp%20ace.parquet",
    "%C3%BC.parquet",
    "part=%253A/c.parquet",
    "d+e.parquet",
    "deep/er/f.parquet",
)
APPS = ("app", "other/app", "üöä")
DOMAINS = ("delta.clustering", "my.domain")


@dataclass(frozen=True)
class Sequence_:
    """Commits from version 0 on.

    :param checkpoints: versions of which a checkpoint is written, right after their commit.
    :param vectors: the table may have deletion vectors and domains, which delta-rs does not read.
    """

    commits: list[Commit]
    checkpoints: frozenset[int]
    vectors: bool


def metadata(**configuration: str) -> Action:
    return {
        "metaData": {
            "id": tables.TABLE_ID,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": tables.SCHEMA,
            "partitionColumns": ["part"],
            "configuration": configuration,
            "createdTime": 1_700_000_000_000,
        }
    }


@st.composite
def sequences(draw: st.DrawFn, *, vectors: bool, max_commits: int = 12) -> Sequence_:
    """Draw commits in which nothing is removed that is not there and no two actions of one commit reconcile with each other."""
    live: dict[str, Action] = {}
    commits: list[Commit] = [[PROTOCOL if vectors else PLAIN_PROTOCOL, metadata(), *_files(draw, live, 0, vectors)]]
    for version in range(1, draw(st.integers(1, max_commits))):
        actions: Commit = []
        if draw(st.booleans()):
            actions.append({"commitInfo": {"timestamp": 1_700_000_000_000 + version, "operation": "WRITE", "x": {"y": [1]}}})
        actions += _files(draw, live, version, vectors)
        if draw(st.integers(0, 3)) == 0:
            actions.append({"txn": {"appId": draw(st.sampled_from(APPS)), "version": version, "lastUpdated": version}})
        if draw(st.integers(0, 5)) == 0:
            actions.append(metadata(**{"delta.checkpointInterval": str(version + 1)}))
        if vectors and draw(st.integers(0, 3)) == 0:
            removed = draw(st.booleans())
            domain = draw(st.sampled_from(DOMAINS))
            actions.append({"domainMetadata": {"domain": domain, "configuration": f'{{"v":{version}}}', "removed": removed}})
        if draw(st.integers(0, 5)) == 0:
            cdc = {"path": f"_change_data/{version}", "partitionValues": {"part": None}, "size": 1, "dataChange": False}
            actions.append({"cdc": cdc})
        commits.append(draw(st.permutations(actions)))
    checkpoints = draw(st.frozensets(st.integers(0, len(commits) - 1), max_size=2))
    return Sequence_(commits, checkpoints, vectors)


def _files(draw: st.DrawFn, live: dict[str, Action], version: int, vectors: bool) -> Commit:
    """File actions on distinct names: new files, removals, files removed before that come back, new statistics, new vectors."""
    actions: Commit = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4)):
        old = live.get(name)
        what = draw(st.sampled_from(("remove", "again", "vector"))) if old is not None else "add"
        if what == "add" or (what == "vector" and not vectors):
            live[name] = _add(draw, name, version)
            actions.append({"add": live[name]})
        elif what == "again" and old is not None:
            live[name] = {**old, "dataChange": False, "stats": json.dumps({"numRecords": version})}
            actions.append({"add": live[name]})
        elif old is not None:
            removed = {k: old[k] for k in ("path", "partitionValues", "size", "deletionVector") if k in old}
            actions.append({"remove": {**removed, "deletionTimestamp": 1_700_000_000_000, "dataChange": True}})
            del live[name]
            if what == "vector":
                live[name] = {**old, "deletionVector": {**VECTOR, "pathOrInlineDv": f"{version:020d}"}}
                actions.append({"add": live[name]})
    return actions


def _add(draw: st.DrawFn, name: str, version: int) -> Action:
    action: Action = {
        "path": name,
        "partitionValues": {"part": draw(st.sampled_from(("x", None, "ü %:", "")))},
        "size": draw(st.integers(0, 10**12)),
        "modificationTime": 1_700_000_000_000 + version,
        "dataChange": True,
    }
    if draw(st.booleans()):
        action["stats"] = json.dumps({"numRecords": version, **STATS})
    if draw(st.integers(0, 4)) == 0:
        action["tags"] = {"k": "v", "n": None}
    return action


def write(table: Path, commits: Sequence[Commit], start: int = 0) -> None:
    """Write commits as JSON files."""
    (table / "_delta_log").mkdir(parents=True, exist_ok=True)
    for version, actions in enumerate(commits, start):
        lines = [json.dumps(action, ensure_ascii=False) for action in actions] or ['{"commitInfo":{"operation":"Empty Commit"}}']
        tables.commit_path(table, version).write_text("\n".join(lines) + "\n")
