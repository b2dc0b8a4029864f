"""What is looked up of the transactions of a version is what the list of all of them has, whatever files tell it."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from airflow_delta.contract.intents import INTENT_APP, STATE_APP
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import Action, encode_actions
from airflow_delta.log.checkpoint import part_files as checkpoint_files
from airflow_delta.log.checksum import checksum
from support import tables

NOW = int(time.time() * 1000)
PREFIXES = ("", "airflow.", INTENT_APP, STATE_APP, f"{STATE_APP}p1", "app", "none/", "ä")
FEATURES = {"reader_features": ["v2Checkpoint"], "writer_features": ["v2Checkpoint"]}
KEPT = {"delta.setTransactionRetentionDuration": "interval 8 days"}


def actions(chance: random.Random, version: int) -> list[Action]:
    kinds = [f"{INTENT_APP}p{{}}", f"{STATE_APP}p{{}}", "app{}", "airflow.other{}", "äpfel{}", "\U0001f34e{}"]
    ids = [chance.choice(kinds).format(chance.randrange(30)) for _ in range(chance.randrange(6))]
    written = chance.choice([None, NOW, NOW - 30 * 24 * 3600 * 1000])
    return [tables.add(f"f{version}", size=1), *(tables.txn(app_id, version, written) for app_id in dict.fromkeys(ids))]


@pytest.mark.parametrize("limit", [0, 1000])
@pytest.mark.parametrize("kept", [{}, KEPT], ids=["for good", "a week"])
@pytest.mark.parametrize("policy", ["classic", "v2"])
@pytest.mark.parametrize("seed", range(2))
def test_they_are_those_of_the_list(
    table: Path, seed: int, policy: str, kept: dict[str, str], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksum, "MAX_SET_TRANSACTIONS", limit)
    monkeypatch.setattr(checksum, "MAX_OWN_SET_TRANSACTIONS", limit)
    monkeypatch.setattr(checkpoint_files, "ROW_GROUP_ROWS", 3)
    chance = random.Random(seed)
    options = {"durable": "false"}
    configuration = {"delta.checkpointPolicy": policy, "delta.checkpointInterval": "1000", **kept}
    log = DeltaLog.for_table(str(table), options)
    committed: dict[str, int] = {}
    for version in range(14):
        first = [tables.protocol(3, 7, **FEATURES), tables.metadata(configuration=configuration)] if version == 0 else []
        new = actions(chance, version)
        log.write_commit(version, encode_actions([tables.info(), *first, *new]))
        committed |= {action.app_id: version for action in new[1:]}
        if chance.random() < 0.3:  # another process
            log = DeltaLog.for_table(str(table), options)
        everything = DeltaLog.for_table(str(table), options).snapshot.transactions
        if not kept:
            assert everything == committed
        for known in (log, DeltaLog.for_table(str(table), options)):
            snapshot = known.update()
            asked = [*chance.sample(sorted(committed), min(3, len(committed))), "none", f"{STATE_APP}p"]
            for app_id in asked if not kept else ():  # whether the end of an intent has expired, only both tell
                assert snapshot.transaction_version(app_id) == snapshot.transaction_version(app_id) == everything.get(app_id)
            for prefix in PREFIXES:
                found = {f"{prefix}{rest}": last for rest, last in snapshot.transaction_versions(prefix).items()}
                assert found == {app_id: last for app_id, last in everything.items() if app_id.startswith(prefix)}, version
        if chance.random() < 0.2:
            log.checkpoint()
        if chance.random() < 0.7:
            log.write_checksum(log.update())
            if limit == 0 and chance.random() < 0.5 and (path := tables.crc_path(table, version)).exists():
                said = json.loads(path.read_text())
                path.write_text(json.dumps({name: said[name] for name in said if name not in ("airflowDelta", "txnId")}))
