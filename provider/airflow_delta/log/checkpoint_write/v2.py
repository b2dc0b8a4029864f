"""Writing the manifest of a V2 checkpoint after its sidecars (protocol, "V2 Spec"; Delta's Checkpoints)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Action, encode_actions
from airflow_delta.log.checkpoint.checkpoint_schema import MANIFEST, CheckpointSchema
from airflow_delta.log.checkpoint.last_checkpoint import ACTIONS_LISTED, LastCheckpointV2, short_schema
from airflow_delta.log.checkpoint.manifest import CheckpointMetadata, SidecarFile
from airflow_delta.log.checkpoint.reader import CheckpointReader
from airflow_delta.log.checkpoint.rows import metadata_rows, sidecar_rows, state_rows
from airflow_delta.log.checkpoint.spark_schema import spark_schema
from airflow_delta.log.features.protocol import features
from airflow_delta.log.storage.file_names import checkpoint_file, manifest_file

if TYPE_CHECKING:
    from airflow_delta.log.segment.segment import CheckpointFiles
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.log.storage.base import LogStore

SIDECAR_ACTIONS = 50_000
"""Default maximum number of actions in a sidecar, as in Delta."""


def uses_v2(snapshot: Snapshot) -> bool:
    """Tell whether a table gets V2 checkpoints: its property asks for them and its protocol allows them."""
    return snapshot.properties.checkpoint_policy == "v2" and "v2Checkpoint" in features(snapshot.protocol)


@dataclass(frozen=True, slots=True)
class WrittenManifest:
    """A manifest that has been written to the log.

    :param actions: number of actions in the manifest itself.
    :param schema: schema of a Parquet manifest, in Spark's JSON form; ``None`` for a JSON manifest.
    """

    hint: LastCheckpointV2
    actions: int
    schema: dict[str, Any] | None


def write_manifest(
    snapshot: Snapshot,
    sidecars: Sequence[SidecarFile],
    *,
    schema: CheckpointSchema,
    actions: int,
    adds: int,
    as_parquet: bool,
) -> WrittenManifest:
    """Write the manifest of a checkpoint whose sidecars are already in the log.

    :param schema: schema of the sidecars.
    :param actions: number of actions in all sidecars.
    :param adds: number of live files among them.
    """
    tags: dict[str, str | None] = {
        "sidecarNumActions": str(actions),
        "sidecarSizeInBytes": str(sum(sidecar.size_in_bytes for sidecar in sidecars)),
        "numOfAddFiles": str(adds),
    }
    described = short_schema(spark_schema(schema.files))
    if described is not None:
        tags["sidecarFileSchema"] = json.dumps(described, separators=(",", ":"))
    about = CheckpointMetadata(version=snapshot.version, tags=tags)
    # Protocol and metadata come last, so that a truncated manifest lacks one of them.
    state: list[Action] = [
        *sorted(snapshot.set_transactions.values(), key=lambda txn: txn.app_id),
        *sorted(snapshot.domain_metadata.values(), key=lambda domain: domain.domain),
        snapshot.metadata,
        snapshot.protocol,
    ]
    path = manifest_file(snapshot.version, str(uuid.uuid4()), "parquet" if as_parquet else "json")
    written = None
    if as_parquet:
        rows = state_rows(
            snapshot.protocol, snapshot.metadata, snapshot.set_transactions.values(), snapshot.domain_metadata.values()
        )
        data = _parquet(_content(about, sidecars, rows))
        written = short_schema(spark_schema(MANIFEST))
    else:
        head = [msgspec.json.encode({"checkpointMetadata": about}), *(msgspec.json.encode({"sidecar": s}) for s in sidecars)]
        data = b"\n".join(head) + b"\n" + encode_actions(state)
    snapshot.log.store.put(path, data)
    status = snapshot.log.store.head(path)
    own = len(state) + 1
    hint = LastCheckpointV2(
        path=path.rpartition("/")[2],
        size_in_bytes=len(data),
        modification_time=status.modification_time if status is not None else 0,
        non_file_actions=_listed(state, about) if own <= ACTIONS_LISTED else None,
        sidecar_files=msgspec.to_builtins(list(sidecars)) if len(sidecars) <= ACTIONS_LISTED else None,
    )
    return WrittenManifest(hint, own + len(sidecars), written)


def write_compatibility_checkpoint(store: LogStore, checkpoint: CheckpointFiles, *, table: str) -> None:
    """Write the content of a V2 checkpoint's manifest under the name of a classic checkpoint; the sidecars are shared."""
    (status,) = checkpoint.parts
    path = checkpoint_file(checkpoint.version)
    if status.path.endswith(".parquet"):
        data = store.read(status.path)
    else:
        reader = CheckpointReader(store, checkpoint.parts, version=checkpoint.version, table=table)
        manifest = reader.manifest
        if manifest is None or manifest.protocol is None or manifest.metadata is None or manifest.checkpoint_metadata is None:
            return
        if manifest.adds or manifest.removes:
            return  # files outside sidecars: Delta writes none, and a copy without them would be wrong
        state = state_rows(manifest.protocol, manifest.metadata, manifest.transactions, manifest.domains)
        data = _parquet(_content(manifest.checkpoint_metadata, manifest.sidecars, state))
    store.put(path, data)


def _parquet(content: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(content, sink, compression="snappy", store_schema=False)
    return bytes(sink.getvalue())


def _listed(state: Sequence[Action], about: CheckpointMetadata) -> list[dict[str, Any]]:
    return [
        *(json.loads(line) for line in encode_actions(state).splitlines()),
        {"checkpointMetadata": msgspec.to_builtins(about)},
    ]


def _content(about: CheckpointMetadata, sidecars: Sequence[SidecarFile], state: Iterable[tuple[str, pa.StructArray]]) -> pa.Table:
    rows = [("checkpointMetadata", metadata_rows(about)), ("sidecar", sidecar_rows(sidecars)), *state]
    columns = [
        pa.chunked_array([found if kind == f.name else pa.nulls(len(found), f.type) for kind, found in rows], f.type)
        for f in MANIFEST
    ]
    return pa.table(columns, schema=MANIFEST).combine_chunks()
