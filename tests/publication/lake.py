"""Several small tables, transactions on them step by step, and delta-rs as the engine that knows nothing of publications."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import deltalake
import pyarrow as pa

from airflow_delta.contract.intents import INTENT_APP
from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.log import DeltaLog
from airflow_delta.publication import Member, PublicationOptions, PublicationResult, publish_tables
from support.table import Table

SCHEMA = pa.schema([("part", pa.string()), ("id", pa.int64())])


class KilledError(BaseException):
    """The worker was killed."""


def rows(ids: Iterable[int], part: str = "a") -> pa.Table:
    found = list(ids)
    return pa.table({"part": [part] * len(found), "id": found}, SCHEMA)


class LakeTable(Table):
    """A table with the columns ``part`` and ``id``; delta-rs is the other engine."""

    # -- other engines ---------------------------------------------------------------------------------------------------------

    def fill(self, ids: Iterable[int] = (), part: str = "a", **options: Any) -> None:
        """Create the table."""
        deltalake.write_deltalake(self.uri, rows(ids, part), partition_by=["part"], **options)

    def append(self, ids: Iterable[int], part: str = "a") -> int:
        deltalake.write_deltalake(self.uri, rows(ids, part), mode="append")
        return deltalake.DeltaTable(self.uri).version()

    def delete(self, predicate: str) -> None:
        deltalake.DeltaTable(self.uri).delete(predicate)

    def overwrite(self, ids: Iterable[int]) -> None:
        deltalake.write_deltalake(self.uri, rows(ids), mode="overwrite")

    def replace(self) -> None:
        """Replace the table by an empty one, as ``CREATE OR REPLACE TABLE`` does."""
        schema = deltalake.DeltaTable(self.uri).schema()
        deltalake.DeltaTable.create(self.uri, schema, mode="overwrite", partition_by=["part"])

    def add_property(self) -> None:
        deltalake.DeltaTable(self.uri).alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})

    def ids(self, version: int | None = None) -> list[int]:
        """Return the ids, as delta-rs reads them."""
        table = deltalake.DeltaTable(self.uri, version=version)
        return sorted(table.to_pyarrow_table().column("id").to_pylist())

    # -- our transactions ------------------------------------------------------------------------------------------------------

    def begin(self, **options: Any) -> TransactionHandle:
        return super().begin(**{"partition_by": ["part"], **options})

    def stage_ids(
        self, handle: TransactionHandle, ids: Iterable[int], *, part: str = "a", replaces: str | None = None, **options: Any
    ) -> StagedWrite:
        """Stage rows.

        :param replaces: predicate of the rows that they replace; default: none.
        """
        if replaces is not None:
            options |= {"mode": "overwrite", "replace_where": replaces}
        return self.stage(handle, rows(ids, part), **options)

    def member(self, key: str, ids: Iterable[int], *, begin: Mapping[str, Any] | None = None, **options: Any) -> Member:
        """Begin a transaction and stage rows."""
        handle = self.begin(transaction_key=key, **(begin or {}))
        staged = [] if handle.committed is not None else [self.stage_ids(handle, ids, **options)]
        return Member(log=self.log(), handle=handle, staged=staged)

    def publish_ids(self, key: str, ids: Iterable[int], **options: Any) -> CommitResult:
        """Publish rows on this table alone."""
        member = self.member(key, ids, **options)
        return self.publish(member.handle, *member.staged)

    def entries(self) -> list[dict[str, Any]]:
        """Return the log, oldest first: version, operation, state and publication of each commit."""
        found = []
        for version in self.versions():
            lines = self.lines(version)
            info = next((line["commitInfo"] for line in lines if "commitInfo" in line), {})
            tags = info.get("tags") or {}
            entry = {"version": version, "operation": info.get("operation"), "lines": lines}
            found.append({**entry, "state": tags.get("airflow.publicationState"), "publication": tags.get("airflow.publication")})
        return found

    def states(self) -> list[str]:
        """Return the states that the log has, oldest first."""
        return [entry["state"] for entry in self.entries() if entry["state"] is not None]


@contextmanager
def forgetful(table: LakeTable) -> Iterator[None]:
    """Let a table forget keys after a week, with intents that are a month old."""
    files = [path for path in (table.path / "_delta_log").iterdir() if path.suffix in (".json", ".crc")]
    before = {path: path.read_bytes() for path in files}
    for path in files:
        if path.suffix == ".crc":
            path.unlink()
            continue
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            if "metaData" in action:
                action["metaData"]["configuration"]["delta.setTransactionRetentionDuration"] = "interval 7 days"
            if action.get("txn", {}).get("appId", "").startswith(INTENT_APP):
                action["txn"]["lastUpdated"] -= 31 * 24 * 3600 * 1000
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))
    yield
    for path, data in before.items():
        path.write_bytes(data)


def again(member: Member) -> Member:
    """Return the member as the next try of its task has it."""
    return replace(member, log=DeltaLog.for_table(member.log.uri))


def publish_all(members: Sequence[Member], **options: Any) -> PublicationResult:
    """Publish as one try of a commit task does; the result goes through JSON."""
    opened = options.pop("open_table", DeltaLog.for_table)
    chosen = PublicationOptions(**{"patience": 0.0, **options})
    result = publish_tables([again(member) for member in members], attempt=new_attempt(), options=chosen, open_table=opened)
    json.dumps(result.to_dict())
    return result


def keep(table: LakeTable, properties: Mapping[str, str]) -> None:
    deltalake.DeltaTable(table.uri).alter.set_table_properties(dict(properties))
