"""Auto compaction as a request: a commit that leaves many small files asks for an OPTIMIZE, which somebody else runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.contract.partition_texts import partition_texts_of
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.transaction.events import record_event
from airflow_delta.transaction.policy import AutoCompactionRequest, CommitPolicy
from airflow_delta.transaction.reads.partition_set import PartitionSet

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log.actions.actions import Action
from airflow_delta.transaction.commit.hooks import CommittedTransaction, PostCommitHook

_EVENT = "delta.commit.hooks.autoOptimize"

_MAX_PARTITIONS = 128
"""Most partitions in one request (Delta: ``autoCompact.maxNumModifiedPartitions``)."""

Partition = tuple[tuple[str, str | None], ...]


def wants_auto_compaction(configuration: Mapping[str, str], policy: CommitPolicy) -> bool:
    """Tell whether auto compaction is on: the policy decides first, then the deprecated property, then the current one."""
    if policy.auto_compact is not None:
        return policy.auto_compact
    return any(
        configuration.get(key, "false").lower() == "true" for key in ("delta.autoOptimize", "delta.autoOptimize.autoCompact")
    )


class AutoCompactHook(PostCommitHook):
    """Requests compaction of partitions that a commit wrote to, if they hold enough small files (Delta's ``AutoCompact``).

    A file is small if it is up to half the size to write. Finding out reads the table's list of files.
    """

    name = "Auto Compact"

    def __eq__(self, other: object) -> bool:
        """Equal every other: one runs, however often it is registered."""
        return isinstance(other, AutoCompactHook)

    def __hash__(self) -> int:
        """Hash like all others."""
        return hash(AutoCompactHook)

    def run(self, txn: CommittedTransaction, version: int, actions: Sequence[Action]) -> None:
        """Add the request, if one is due, to the outcome of the commit, and hand it to the policy's callback."""
        written = {_key(action.partition_values) for action in actions if isinstance(action, AddFile) and action.data_change}
        if not written:
            record_event(_EVENT, txn.log.uri, {"status": "skipEmptyIngestion"})
            return
        policy = txn.policy
        min_size = policy.auto_compact_max_file_size // 2
        snapshot = txn.log.snapshot if txn.log.snapshot.version >= version else txn.log.update()
        partitions = PartitionSet.of((dict(key) for key in written), snapshot.partition_schema)
        found = small_files(partitions.select(snapshot.files(columns=["partition_values", "size"])), min_size, written)
        due = sorted(
            (key for key, (count, _size) in found.items() if count >= policy.auto_compact_min_files),
            key=lambda key: (-found[key][0], str(key)),
        )[:_MAX_PARTITIONS]
        if not due:
            record_event(_EVENT, txn.log.uri, {"status": "skipInsufficientFilesInModifiedPartitions"})
            return
        request = AutoCompactionRequest(
            table=txn.log.uri,
            version=snapshot.version,
            partitions=tuple(dict(key) for key in due),
            num_small_files=sum(found[key][0] for key in due),
            small_file_bytes=sum(found[key][1] for key in due),
            min_file_size=min_size,
            max_file_size=policy.auto_compact_max_file_size,
        )
        record_event(_EVENT, txn.log.uri, {"status": "runOnModifiedPartitions", "partitions": len(due)})
        if txn.outcome is not None:
            txn.outcome = replace(txn.outcome, auto_compaction=request)
        if policy.on_auto_compact is not None:
            policy.on_auto_compact(request)


def _key(partition_values: Mapping[str, str | None]) -> Partition:
    return tuple(sorted(partition_texts_of(partition_values).items()))


def small_files(files: pa.Table, min_size: int, partitions: set[Partition] | None = None) -> dict[Partition, tuple[int, int]]:
    """Return number and bytes of the files up to ``min_size``, by partition.

    :param files: with the columns ``partition_values`` and ``size``.
    :param partitions: only these.
    """
    import pyarrow.compute as pc

    from airflow_delta.log.arrow.arrays import scalar

    small = files.filter(pc.less_equal(files.column("size"), scalar(min_size)))
    found: dict[Partition, tuple[int, int]] = {}
    for batch in small.to_batches():
        for values, size in zip(batch.column("partition_values").to_pylist(), batch.column("size").to_pylist(), strict=True):
            key = _key(dict(values or ()))
            if partitions is None or key in partitions:
                count, total = found.get(key, (0, 0))
                found[key] = count + 1, total + size
    return found
