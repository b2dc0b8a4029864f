"""The open intents of a version are the same whatever files tell them: checksums of ours and of others, checkpoints, commits."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from airflow_delta.contract.intents import INTENT_APP, STATE_APP
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import Action, encode_actions
from airflow_delta.log.actions.intents import open_intents
from airflow_delta.log.checksum import checksum
from support import tables

NOW = int(time.time() * 1000)
RETENTION = "delta.setTransactionRetentionDuration"
FEATURES = {"reader_features": ["v2Checkpoint"], "writer_features": ["v2Checkpoint"]}


def of_other_engine(path: Path) -> None:
    """What Delta Spark writes if there are more transactions than it lists."""
    said = json.loads(path.read_text())
    for name in ("setTransactions", "airflowDelta", "txnId"):
        said.pop(name, None)
    path.write_text(json.dumps(said))


def actions(chance: random.Random, version: int, begun: list[str], v2: bool) -> list[Action]:
    kind = chance.choice(["add", "add", "app", "intent", "intent", "state", "retention"])
    if kind == "intent":
        begun.append(f"p{version}")
        return [tables.txn(f"{INTENT_APP}p{version}", 0, NOW)]
    if kind == "state" and begun:
        return [tables.txn(f"{STATE_APP}{begun.pop(chance.randrange(len(begun)))}", chance.randrange(1, 5), NOW)]
    if kind == "app":
        return [tables.txn(f"app{version}", 1), tables.txn(f"airflow.other{version}", 1)]
    if kind == "retention":
        kept = chance.choice([{}, {RETENTION: "interval 8 days"}, {RETENTION: "interval 9 days"}])
        return [properties(v2, **kept)]
    return [tables.add(f"f{version}", size=1)]


def properties(v2: bool, **more: str) -> Action:
    policy = "v2" if v2 else "classic"
    return tables.metadata(configuration={"delta.checkpointPolicy": policy, "delta.checkpointInterval": "1000", **more})


@pytest.mark.parametrize("limit", [0, 3, 1000])
@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_they_are_those_that_commits_tell(table: Path, seed: int, v2: bool, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "MAX_SET_TRANSACTIONS", limit)
    monkeypatch.setattr(checksum, "MAX_OWN_SET_TRANSACTIONS", limit)
    chance = random.Random(seed)
    log = DeltaLog.for_table(str(table), {"durable": "false"})
    begun: list[str] = []
    for version in range(40):
        first = [tables.protocol(3, 7, **FEATURES), properties(v2)] if version == 0 else []
        log.write_commit(version, encode_actions([tables.info(), *first, *actions(chance, version, begun, v2)]))
        if chance.random() < 0.3:  # another process
            log = DeltaLog.for_table(str(table), {"durable": "false"})
        snapshot = log.update()
        if chance.random() < 0.7:
            assert set(open_intents(snapshot.intents)) == set(begun), version
        if chance.random() < 0.1:
            log.checkpoint(snapshot)
        if chance.random() < 0.7:
            log.write_checksum(snapshot)
            if chance.random() < 0.4 and tables.crc_path(table, version).exists():
                of_other_engine(tables.crc_path(table, version))
        assert set(open_intents(DeltaLog.for_table(str(table)).snapshot.intents)) == set(begun), version
