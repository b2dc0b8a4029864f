"""The write-conflict matrix (reference: Delta's engine, section 2.11), as data that any engine can be held against.

Rows are losers, columns are winners. A letter says what the loser gets: ``-`` nothing, ``A`` ConcurrentAppend, ``R`` DeleteRead,
``D`` DeleteDelete, ``M`` MetadataChanged, ``P`` ProtocolChanged, ``T`` ConcurrentTransaction, ``F`` a feature that cannot be
dropped any more. A loser works on anything with the methods of ``OptimisticTransaction`` that it calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_delta.log.actions.actions import AddFile
from airflow_delta.transaction import Operation
from support.actions import add, as_json, domain, protocol, remove, txn, vector
from support.table import Table, metadata

PART = ("part",)
LEVELS = ("Serializable", "WriteSerializable")
LISTED = ["appendOnly", "deletionVectors", "domainMetadata", "invariants"]
CONFIGURATION = {
    "delta.feature.domainMetadata": "supported",
    "delta.feature.invariants": "supported",
    "delta.enableDeletionVectors": "true",
}
UPGRADED = protocol(3, 7, ["deletionVectors", "vacuumProtocolCheck"], [*LISTED, "vacuumProtocolCheck"])
DROPPED = protocol(3, 7, ["deletionVectors"], [name for name in LISTED if name != "domainMetadata"])
_BLIND = ("append 1", "append 2")
MOVED = {"data_change": False}


def marked(offset: int) -> AddFile:
    """Return the file a with some of its rows deleted."""
    stats = '{"numRecords":10,"tightBounds":false}'
    return add("a", part=1, stats=stats, deletion_vector=vector(offset))


def table_metadata(level: str, **changes: Any) -> Any:
    configuration = {"delta.enableDeletionVectors": "true"}
    if level != "Serializable":
        configuration["delta.isolationLevel"] = level
    return metadata(PART, configuration=configuration, **changes)


def start(root: Path, level: str = "Serializable") -> Table:
    """Return a table with the files a and b in part 1, c in part 2."""
    table = Table(root / "table")
    table.create(PART, configuration=CONFIGURATION)
    if level != "Serializable":  # Delta honours it where it is, and lets nobody set it
        table.put_foreign(1, {"commitInfo": {"operation": "SET TBLPROPERTIES", "timestamp": 1}}, as_json(table_metadata(level)))
    table.commit(add("a", part=1), add("b", part=1), add("c", part=2))
    return table


def winner_of(name: str, level: str) -> tuple[list[Any], Operation]:
    """Return actions and operation of a winner. It works on part 1 (and 2 where it works on the whole table)."""
    winners: dict[str, tuple[list[Any], Operation]] = {
        "append 1": ([add("w", part=1)], Operation.write()),
        "append 2": ([add("w", part=2)], Operation.write()),
        "delete 1": ([remove("a", part=1)], Operation.delete(["part = 1"])),
        "update 1": ([remove("a", part=1), add("w", part=1)], Operation.update("value = 1")),
        "update 2": ([remove("c", part=2), add("w", part=2)], Operation.update("value = 1")),
        "overwrite": (
            [remove("a", part=1), remove("b", part=1), remove("c", part=2), add("w", part=3)],
            Operation.write("overwrite"),
        ),
        "replace 1": (
            [remove("a", part=1), remove("b", part=1), add("w", part=1)],
            Operation.write("overwrite", predicate="part = 1"),
        ),
        "vector 1": (
            [remove("a", part=1), marked(1)],
            Operation.delete(["value = 1"]),
        ),
        "optimize 1": (
            [remove("a", part=1, **MOVED), remove("b", part=1, **MOVED), add("w", part=1, **MOVED)],
            Operation.optimize(),
        ),
        "stats 1": ([add("a", part=1, **MOVED)], Operation.compute_stats()),
        "alter": ([table_metadata(level, description="new")], Operation.set_table_properties({"k": "v"})),
        "same metadata": ([table_metadata(level)], Operation.set_table_properties({"k": "v"})),
        "upgrade": ([UPGRADED], Operation("UPGRADE PROTOCOL", {"newProtocol": {}})),
        "drop": ([DROPPED], Operation("DROP FEATURE")),
        "empty": ([], Operation.vacuum_end("COMPLETED")),
        "same app": ([txn("app", 1)], Operation.manual_update()),
        "domain": ([domain("user.x")], Operation.manual_update()),
    }
    return winners[name]


def win(table: Table, winner: str, level: str = "Serializable") -> int:
    """Commit a winner, and return its version."""
    actions, operation = winner_of(winner, level)
    transaction = table.log().start_transaction()
    if winner not in _BLIND:
        transaction.filter_files("part = 1")
    return transaction.commit(actions, operation)


Loser = Callable[[Any, str], tuple[list[Any], Operation]]


def append(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    return [add("o", part=1)], Operation.write()


def streaming_append(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    transaction.txn_version("app")
    return [add("o", part=1), txn("app", 2)], Operation.streaming_update("Append", "app", 2)


def insert_select(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    transaction.filter_files("part = 1")
    return [add("o", part=3)], Operation.write()


def update_rows(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    transaction.filter_files("part = 1 AND value > 0")
    return [remove("a", part=1), add("o", part=1)], Operation.update("part = 1")


def delete_with_vector(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    transaction.filter_files("part = 1 AND value > 0")
    return [remove("a", part=1), marked(40)], Operation.delete(["part = 1 AND value > 0"])


def delete_all(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    files = transaction.filter_files()["path"].to_pylist()
    return [remove(path, part=2 if path == "c" else 1) for path in files], Operation.delete()


def replace_where(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    files = transaction.filter_files("part = 1")["path"].to_pylist()
    return [*[remove(path, part=1) for path in files], add("o", part=1)], Operation.write("overwrite", predicate="part = 1")


def dynamic_overwrite(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    new = add("o", part=1)
    files = transaction.filter_files_for_partitions([new])["path"].to_pylist()
    assert sorted(files) == ["a", "b"]
    return [*[remove(path, part=1) for path in files], new], Operation.write("overwrite", dynamic_partition_overwrite=True)


def unread_delete(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    return [remove("a", part=1)], Operation.manual_update()


def optimize(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    transaction.filter_files("part = 1")
    moved = [remove("a", part=1, **MOVED), remove("b", part=1, **MOVED), add("o", part=1, **MOVED)]
    return moved, Operation.optimize()


def moved_overwrite(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    """A DataFrame overwrite with the option ``dataChange=false``: at WriteSerializable it does not pass for a compaction."""
    actions, _ = optimize(transaction, level)
    return actions, Operation.write("overwrite")


def compute_stats(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    transaction.filter_files("part = 1")
    return [add("a", part=1, **MOVED), add("b", part=1, **MOVED)], Operation.compute_stats()


def alter(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    return [table_metadata(level, name="renamed")], Operation.set_table_properties({"k": "w"})


def add_constraint(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    transaction.filter_files()
    return [table_metadata(level, name="checked")], Operation("ADD CONSTRAINT")


def upgrade_protocol(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    return [UPGRADED], Operation("UPGRADE PROTOCOL", {"newProtocol": {}})


def drop_feature(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    return [DROPPED], Operation("DROP FEATURE", {"featureName": "domainMetadata"})


def set_domain(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    return [domain("user.x")], Operation.manual_update()


def vacuum(transaction: Any, level: str) -> tuple[list[Any], Operation]:
    return [], Operation.vacuum_end("COMPLETED")


COLUMNS = (
    *("append 1", "append 2", "delete 1", "update 1", "update 2", "overwrite", "replace 1", "vector 1", "optimize 1", "stats 1"),
    *("alter", "same metadata", "upgrade", "drop", "empty", "same app", "domain"),
)
MATRIX: list[tuple[Loser, str]] = [
    # winner:                ap1 ap2 de1 up1 up2 ovw rep vec opt sta alt same upg drop emp app dom
    (append, "                -   -   -   -   -   -   -   -   -   -   M   -   -   P   -   -   -"),
    (streaming_append, "      -   -   -   -   -   -   -   -   -   -   M   -   -   P   -   T   -"),
    (insert_select, "         A   -   R   A   -   R   A   A   A   A   M   -   -   P   -   -   -"),
    (update_rows, "           A   -   R   A   -   R   A   A   A   A   M   -   -   P   -   -   -"),
    (delete_with_vector, "    A   -   R   A   -   R   A   A   A   A   M   -   -   P   -   -   -"),
    (delete_all, "            A   A   R   A   A   A   A   A   A   A   M   -   -   P   -   -   -"),
    (replace_where, "         A   -   R   A   -   R   A   A   A   A   M   -   -   P   -   -   -"),
    (dynamic_overwrite, "     A   -   D   A   -   D   A   A   A   A   M   -   -   P   -   -   -"),
    (unread_delete, "         -   -   D   D   -   D   D   D   D   -   M   -   -   P   -   -   -"),
    (optimize, "              -   -   R   R   -   R   R   R   R   -   M   -   -   P   -   -   -"),
    (moved_overwrite, "       -   -   R   R   -   R   R   R   R   -   M   -   -   P   -   -   -"),
    (compute_stats, "         -   -   R   R   -   R   R   R   R   -   M   -   -   P   -   -   -"),
    (alter, "                 -   -   -   -   -   -   -   -   -   -   M   M   -   P   -   -   -"),
    (add_constraint, "        A   A   R   A   A   A   A   A   A   A   M   M   -   P   -   -   -"),
    (upgrade_protocol, "      -   -   -   -   -   -   -   -   -   -   M   -   P   P   -   -   -"),
    (drop_feature, "          -   -   -   -   -   -   -   -   -   -   M   -   P   P   -   -   F"),
    (set_domain, "            -   -   -   -   -   -   -   -   -   -   M   -   -   P   -   -   T"),
    (vacuum, "                -   -   -   -   -   -   -   -   -   -   M   -   -   P   -   -   -"),
]

_WRITE_SERIALIZABLE = {
    # Blind appends may be ordered before what was read, but for a commit that changes the metadata.
    **{(loser, winner): "-" for loser, _ in MATRIX if loser is not add_constraint for winner in _BLIND},
    # Nothing is added that was not read, but what the operation is counts, not what its files say.
    **{(moved_overwrite, winner): "A" for winner in ("update 1", "replace 1", "vector 1", "optimize 1", "stats 1")},
}


def cells() -> list[tuple[Loser, str, str, str]]:
    """Return loser, winner, isolation level and letter of every cell."""
    return [
        (loser, winner, level, _WRITE_SERIALIZABLE.get((loser, winner), letter) if level != "Serializable" else letter)
        for level in LEVELS
        for loser, row in MATRIX
        for winner, letter in zip(COLUMNS, row.split(), strict=True)
    ]


# -- metadata that a winner changes ------------------------------------------------------------------------------------------

_MAPPED = json.dumps(
    {
        "type": "struct",
        "fields": [
            {
                "name": "value",
                "type": "integer",
                "nullable": True,
                "metadata": {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "value"},
            }
        ],
    }
)
_NULLABLE = json.dumps(
    {"type": "struct", "fields": [{"name": "value", "type": "long", "nullable": True, "metadata": {}}]}, separators=(",", ":")
)
_SWITCHED_ON = {
    "delta.enableInCommitTimestamps": "true",
    "delta.inCommitTimestampEnablementVersion": "1",
    "delta.inCommitTimestampEnablementTimestamp": "1700000000000",
}
METADATA_CHANGES: dict[str, tuple[dict[str, Any], bool]] = {
    # what the winner sets (None removes a property), and whether a blind append loses
    "nothing": ({}, False),
    "id": ({"id": "other"}, True),
    "created": ({"createdTime": 7}, True),
    "name": ({"name": "other"}, True),
    "description": ({"description": "other"}, True),
    "user property": ({"configuration": {"user": "x"}}, True),
    "property removed": ({"configuration": {"user": None}}, True),
    "vectors on": ({"configuration": {"delta.enableDeletionVectors": "true"}}, False),
    "vectors off": ({"configuration": {"delta.enableDeletionVectors": "false"}}, True),
    "vectors and more": ({"configuration": {"delta.enableDeletionVectors": "true", "user": "x"}}, True),
    "highest id": ({"configuration": {"delta.columnMapping.maxColumnId": "4"}}, False),
    "mapping by name": (
        {"configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"}, "schemaString": _MAPPED},
        False,
    ),
    "mapping by id": (
        {"configuration": {"delta.columnMapping.mode": "id", "delta.columnMapping.maxColumnId": "1"}, "schemaString": _MAPPED},
        True,
    ),
    "mapped schema alone": ({"schemaString": _MAPPED}, True),
    "other type": ({"schemaString": _NULLABLE}, True),
    "checkpoints v2": ({"configuration": {"delta.checkpointPolicy": "v2"}}, False),
    "checkpoints classic": ({"configuration": {"delta.checkpointPolicy": "classic"}}, True),
    "timestamps": ({"configuration": _SWITCHED_ON}, False),
    "row tracking without the feature": ({"configuration": {"delta.enableRowTracking": "true"}}, True),
    "append only": ({"configuration": {"delta.appendOnly": "true"}}, True),
}


def start_for_metadata_changes(root: Path) -> Table:
    features = ("deletionVectors", "columnMapping", "v2Checkpoint", "inCommitTimestamp")
    table = Table(root / "table")
    table.create(configuration={"user": "v", **{f"delta.feature.{name}": "supported" for name in features}})
    return table


def change_metadata(table: Table, change: dict[str, Any]) -> None:
    """Commit changed metadata as version 1, as another engine does."""
    before = next(line["metaData"] for line in table.lines(0) if "metaData" in line)
    configuration = {**before["configuration"], **change.get("configuration", {})}
    after = {**before, **change, "configuration": {key: value for key, value in configuration.items() if value is not None}}
    info = {"operation": "SET TBLPROPERTIES", "timestamp": 1, "operationParameters": {}, "inCommitTimestamp": 1_700_000_000_000}
    table.put_foreign(1, {"commitInfo": info}, {"metaData": after})
