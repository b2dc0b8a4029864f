"""Transactions of a history that go the way of tasks: begin, a staged write, and a commit that is retried with its handle."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import attempt_directory, new_attempt
from airflow_delta.exceptions import CommitStateUnknownException, DeltaConcurrentModificationException
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.start.begin import begin

if TYPE_CHECKING:
    from faults.history.writer import Writer

SIZE = 4


def publish_new(writer: Writer, what: str, level: str | None) -> None:
    """Begin a transaction, stage a file, and publish it: beside the others, or in place of a partition's."""
    begun = time.monotonic_ns()
    handle = begin(writer.log, transaction_key=writer.name(), isolation_level=level)
    note = {"txn": handle.transaction_id, "what": what, "level": level, "begun": begun, "version": handle.read_version}
    writer.notes.note("begin", **note, again=False)
    key: dict[str, Any] = {"kind": "app", "app": handle.app_id}
    writer.notes.note("read", txn=handle.transaction_id, what=key, answer=-1)
    part = writer.part()
    removes: dict[str, Any] = {}
    predicate = None
    if what == "publish_replace":
        predicate = writer.predicate([part])
        snapshot = writer.log.snapshot_at(handle.read_version)
        removes = dict.fromkeys(sorted(snapshot.files(predicate, ["path"])["path"].to_pylist()))
        read = writer.what([part])
        writer.notes.note("read", txn=handle.transaction_id, what=read, answer=list(removes))
    writer.think()
    add = _stage(writer, handle, part)
    staged = StagedWrite(
        transaction_id=handle.transaction_id,
        stage="stage",
        task_id="stage",
        attempt="1",
        mode="append" if what == "publish" else "overwrite",
        replace_where=predicate,
        schema_string=handle.schema_string or "",
        partition_columns=handle.partition_columns,
        actions=({"add": add},),
        num_files=1,
        num_records=len(json.loads(add["tags"]["rows"])),
        num_bytes=SIZE,
    )
    plan = {
        "operation": "WRITE",
        "adds": [add],
        "removes": removes,
        "apps": {handle.app_id: handle.txn_version},
        "metadata": None,
        "rearranges": False,
        "handle": handle.to_dict(),
        "staged": staged.to_dict(),
    }
    writer.notes.note("plan", txn=handle.transaction_id, **plan)
    writer.think()
    _publish(writer, handle, staged)


def publish_again(writer: Writer, before: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    """Retry the commit task."""
    handle = TransactionHandle.from_dict(plan["handle"])
    note = {key: before[key] for key in ("txn", "what", "level", "version", "begun")}
    writer.notes.note("begin", **note, again=True)
    writer.notes.note("plan", txn=handle.transaction_id, **plan)
    _publish(writer, handle, StagedWrite.from_dict(plan["staged"]))


def _stage(writer: Writer, handle: TransactionHandle, part: str | None) -> dict[str, Any]:
    """Write a file below the transaction's directory, and return its ``add``."""
    file = writer.file(part)
    path = f"{attempt_directory(handle.transaction_id, 'stage', '1')}/{file['path']}"
    writer.log.store.put(path, b"x" * SIZE)
    return {
        "path": path,
        "partitionValues": {"part": part} if writer.partitioned else {},
        "size": SIZE,
        "modificationTime": 1,
        "dataChange": True,
        "stats": writer.statistics(file["rows"]),
        "tags": {"rows": json.dumps(file["rows"])},
    }


def _publish(writer: Writer, handle: TransactionHandle, staged: StagedWrite) -> None:
    txn = handle.transaction_id
    try:
        result = publish(writer.log, handle, [staged], attempt=new_attempt(), policy=writer.policy)
    except DeltaConcurrentModificationException as error:
        writer.notes.note("failed", txn=txn, error=type(error).__name__, winner=error.winning_version, message=str(error)[:300])
    except CommitStateUnknownException as error:
        writer.notes.note("unknown", txn=txn, error=type(error).__name__)
    except OSError as error:  # nothing was written; noted as unknown, the task is retried
        end = writer.random.choice(("failed", "unknown"))
        writer.notes.note(end, txn=txn, error=type(error).__name__, message=str(error)[:300])
    except Exception as error:
        writer.notes.note("failed", txn=txn, error=type(error).__name__, winner=None, message=str(error)[:300])
    else:
        writer.notes.note("committed", txn=txn, version=result.version)
