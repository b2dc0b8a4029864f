"""A process of a history: runs random transactions through the engine, and notes what it reads, plans and is told."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from airflow_delta.exceptions import (
    CommitStateUnknownException,
    DeltaConcurrentModificationException,
    InvalidCommittedVersionException,
)
from airflow_delta.log import AddFile, DeltaLog, RemoveFile, SetTransaction
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction
from faults.history.log import value_of
from faults.history.notes import Notes
from faults.history.publish import publish_again, publish_new
from faults.history.reads import Files, Reads

PUBLISHED = ("publish", "publish_replace")
PARTS = ("1", "2", "3", None)
Plan = dict[str, Any]


def statistics(rows: list[int]) -> str:
    values = [value_of(row) for row in rows]
    bounds = {"minValues": {"value": min(values)}, "maxValues": {"value": max(values)}, "nullCount": {"value": 0}}
    return json.dumps({"numRecords": len(rows), **bounds})


@dataclass
class Writer:
    """Runs transactions on a log.

    :param partitioned: the table has partitions.
    :param rows: the first row id that is free.
    :param pause: seconds that a transaction thinks, at most, between its steps.
    """

    log: DeltaLog
    notes: Notes
    random: random.Random
    partitioned: bool
    rows: int
    pause: float = 0.006
    policy: CommitPolicy = field(
        default_factory=lambda: CommitPolicy(total_timeout=20.0, max_wait=0.02, conflict_detection="delta")
    )

    def run(self, what: str, level: str | None) -> None:
        """Run one transaction, to whatever end."""
        if what in PUBLISHED:
            publish_new(self, what, level)
            return
        txn = self.name()
        note: dict[str, Any] = {"txn": txn, "what": what, "level": level, "begun": time.monotonic_ns()}
        transaction = OptimisticTransaction(self.log, txn_id=note["txn"], policy=self.policy, isolation_level=level)
        self._run(transaction, {**note, "again": False, "version": transaction.read_version}, None, [])

    def run_again(self, before: Mapping[str, Any], plan: Plan | None, reads: list[Mapping[str, Any]]) -> None:
        """Run a transaction of a process that was killed again: as it was, if it was planned."""
        if before["what"] in PUBLISHED:
            if plan is not None:
                publish_again(self, before, plan)
            return
        snapshot = self.log.snapshot_at(before["version"])
        transaction = OptimisticTransaction(
            self.log, snapshot, txn_id=before["txn"], policy=self.policy, isolation_level=before["level"]
        )
        note = {key: before[key] for key in ("txn", "what", "level", "version", "begun")}
        self._run(transaction, {**note, "again": True}, plan, reads)

    def _run(
        self, transaction: OptimisticTransaction, note: dict[str, Any], plan: Plan | None, known: list[Mapping[str, Any]]
    ) -> None:
        txn = note["txn"]
        self.notes.note("begin", **note)
        try:
            reads = Reads(self, transaction, txn)
            if plan is not None:
                for what in known:
                    reads.again(what)
            else:
                self.think()
                plan = getattr(self, f"_{note['what']}")(reads)
                self.think()
            self.notes.note("plan", txn=txn, **plan)
            version = self._commit(transaction, plan)
        except InvalidCommittedVersionException as error:
            self.notes.note("committed", txn=txn, version=error.version, error=type(error).__name__)
        except CommitStateUnknownException as error:
            self.notes.note("unknown", txn=txn, error=type(error).__name__)
        except Exception as error:
            winner = error.winning_version if isinstance(error, DeltaConcurrentModificationException) else None
            self.notes.note("failed", txn=txn, error=type(error).__name__, winner=winner, message=str(error)[:300])
        else:
            if version is None:
                self.notes.note("nothing", txn=txn)
            else:
                self.notes.note("committed", txn=txn, version=version)

    def think(self) -> None:
        time.sleep(min(self.random.expovariate(3 / self.pause), self.pause) if self.pause else 0)

    def _commit(self, transaction: OptimisticTransaction, plan: Plan) -> int | None:
        own = plan["metadata"]
        if own is not None:
            transaction.update_metadata(self._changed(transaction, own))
        changes = not plan["rearranges"]
        removes = [
            RemoveFile(path=path, deletion_timestamp=1, data_change=changes, extended_file_metadata=True, **known)
            for path, known in plan["removes"].items()
        ]
        adds = [
            AddFile(
                path=add["path"],
                partition_values={"part": add["part"]} if self.partitioned else {},
                size=1,
                modification_time=1,
                data_change=changes,
                stats=statistics(add["rows"]),
                tags={"rows": json.dumps(add["rows"])},
            )
            for add in plan["adds"]
        ]
        apps = [SetTransaction(app_id=app, version=version) for app, version in plan["apps"].items()]
        return transaction.commit_if_needed([*removes, *adds, *apps], OPERATIONS[plan["operation"]])

    @staticmethod
    def _changed(transaction: OptimisticTransaction, own: Mapping[str, Any]) -> Any:
        metadata = transaction.metadata
        if "column" in own:
            schema = json.loads(metadata.schema_string)
            if own["column"] not in [column["name"] for column in schema["fields"]]:
                schema["fields"].append({"name": own["column"], "type": "long", "nullable": True, "metadata": {}})
            return msgspec.structs.replace(metadata, schema_string=json.dumps(schema))
        return msgspec.structs.replace(metadata, configuration={**metadata.configuration, **own["properties"]})

    # -- what its transactions consist of ---------------------------------------------------------------------------------------

    statistics = staticmethod(statistics)

    def name(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128)))

    def predicate(self, parts: list[str | None] | None, above: int | None = None) -> str | None:
        """Return the text of a predicate; ``None`` if it selects everything."""
        texts = []
        if parts is not None and self.partitioned:
            named = ", ".join(part for part in parts if part is not None)
            choices = [f"part IN ({named})"] if named else []
            texts.append("(" + " OR ".join([*choices, *(["part IS NULL"] if None in parts else [])]) + ")")
        if above is not None:
            texts.append(f"value > {above}")
        return " AND ".join(texts) or None

    @staticmethod
    def what(parts: list[str | None] | None, above: int | None = None, **more: bool) -> dict[str, Any]:
        """Return a read as it is noted."""
        return {"kind": "files", "parts": parts, "above": above, "whole": False, "by_partition": False, **more}

    # -- what it may plan -------------------------------------------------------------------------------------------------------

    def part(self) -> str | None:
        return self.random.choice(PARTS)

    def file(self, part: str | None, rows: list[int] | None = None) -> dict[str, Any]:
        """Return a new file, with new rows unless it holds given ones."""
        if rows is None:
            count = self.random.randint(1, 3)
            rows = list(range(self.rows, self.rows + count))
            self.rows += count
        return {"path": f"{self.name()}.parquet", "part": part, "rows": sorted(rows)}

    def _append(self, _reads: Reads) -> Plan:
        return planned("WRITE", adds=[self.file(self.part()) for _ in range(self.random.randint(1, 2))])

    def _insert_select(self, reads: Reads) -> Plan:
        for _ in range(self.random.randint(1, 2)):
            reads.files([self.part()], self.random.choice((None, None, 5)))
        return planned("WRITE", adds=[self.file(self.part())])

    def _replace(self, reads: Reads) -> Plan:
        part = self.part()
        return planned("WRITE", adds=[self.file(part)], removes=reads.files([part]))

    def _overwrite(self, reads: Reads) -> Plan:
        return planned("WRITE", adds=[self.file(self.part())], removes=reads.files(None))

    def _replace_partitions(self, reads: Reads) -> Plan:
        part = self.part()
        return planned("WRITE", adds=[self.file(part)], removes=reads.partitions(part))

    def _delete(self, reads: Reads) -> Plan:
        above = self.random.choice((None, 4, 7))
        found = reads.files(self.random.sample(PARTS, self.random.randint(1, 2)), above)
        adds = []
        for known in found.values():
            kept = [] if above is None else [row for row in rows_of(known) if value_of(row) <= above]
            if kept:
                adds.append(self.file(part_of(known), kept))
        return planned("DELETE", adds=adds, removes=found)

    def _drop(self, reads: Reads) -> Plan:
        """Remove a file that somebody else has chosen, without a read."""
        found = reads.unrecorded()
        path = self.random.choice(sorted(found)) if found else None
        return planned("DELETE", removes={} if path is None else {path: found[path]})

    def _move(self, reads: Reads) -> Plan:
        found = reads.files([self.part()])
        path = self.random.choice(sorted(found)) if found else None
        if path is None:
            return planned("UPDATE")
        return planned("UPDATE", adds=[self.file(self.part(), rows_of(found[path]))], removes={path: found[path]})

    def _compact(self, reads: Reads) -> Plan:
        part = self.part()
        found = reads.files([part])
        if not self.partitioned:
            part = None
        if len(found) < 2:
            return planned("OPTIMIZE", rearranges=True)
        merged = sorted(row for known in found.values() for row in rows_of(known))
        return planned("OPTIMIZE", adds=[self.file(part, merged)], removes=found, rearranges=True)

    def _summary(self, reads: Reads) -> Plan:
        if self.random.random() < 0.5:
            reads.whole_table()
        else:
            reads.files(None, self.random.choice((None, 6)))
        return planned("WRITE", adds=[self.file(self.part())])

    def _count_up(self, reads: Reads) -> Plan:
        app = self.random.choice(("app", "other"))
        return planned("STREAMING UPDATE", adds=[self.file(self.part())], apps={app: reads.app(app) + 1})

    def _set_property(self, _reads: Reads) -> Plan:
        key = f"history.{self.random.randint(1, 3)}"
        return planned("SET TBLPROPERTIES", metadata={"properties": {key: str(self.random.getrandbits(16))}})

    def _enable_vectors(self, _reads: Reads) -> Plan:
        return planned("SET TBLPROPERTIES", metadata={"properties": {"delta.enableDeletionVectors": "true"}})

    def _add_column(self, _reads: Reads) -> Plan:
        return planned("WRITE", adds=[self.file(self.part())], metadata={"column": f"column{self.random.randint(1, 3)}"})

    def _constrain(self, reads: Reads) -> Plan:
        """As ADD CONSTRAINT: no row may break what the table then promises."""
        reads.files(None)
        return planned("SET TBLPROPERTIES", metadata={"properties": {"history.checked": str(self.random.getrandbits(16))}})

    def _look(self, reads: Reads) -> Plan:
        reads.files(None)
        return planned("WRITE", rearranges=True)


def planned(
    operation: str,
    *,
    adds: list[dict[str, Any]] | None = None,
    removes: Files | None = None,
    apps: dict[str, int] | None = None,
    metadata: dict[str, Any] | None = None,
    rearranges: bool = False,
) -> Plan:
    """Return what a transaction is to commit, as it is noted."""
    known: dict[str, Any] = {"adds": adds or [], "removes": removes or {}, "apps": apps or {}}
    empty = not (adds or removes or apps or metadata)
    return {"operation": operation, **known, "metadata": metadata, "rearranges": rearranges or empty}


def rows_of(known: Mapping[str, Any]) -> list[int]:
    return list(json.loads(known["tags"]["rows"]))


def part_of(known: Mapping[str, Any]) -> str | None:
    return next(iter(known["partition_values"].values()), None)


OPERATIONS = {
    "WRITE": Operation.write(),
    "STREAMING UPDATE": Operation.streaming_update("Append", "query", 1),
    "DELETE": Operation.delete(),
    "UPDATE": Operation.update(),
    "OPTIMIZE": Operation.optimize(),
    "SET TBLPROPERTIES": Operation.set_table_properties({}),
}
KINDS = (
    "append", "insert_select", "replace", "overwrite", "replace_partitions", "delete", "drop", "move", "compact", "summary",
    "count_up", "set_property", "enable_vectors", "add_column", "constrain", "look", *PUBLISHED,
)  # fmt: skip
