"""Reading a checkpoint, classic or V2: only the needed leaf columns and row groups, streamed in batches.

A checkpoint has one action per row, in the column of its kind; all other columns of the row are null (protocol, "Checkpoint
Specs"). A row group is skipped if its footer says that a required leaf of a kind is null in all rows; if the footer has no
statistics, it is read. A V2 checkpoint keeps its files in sidecars, which are opened only to read files; a checkpoint with a
classic name may have V2 content (compatibility checkpoints).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from airflow_delta.log.actions.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import array, scalar
from airflow_delta.log.checkpoint.inline_files import inline_part
from airflow_delta.log.checkpoint.manifest import (
    CheckpointMetadata,
    Manifest,
    SidecarFile,
    check_checkpoint_manifest,
    decode_manifest,
)
from airflow_delta.log.checkpoint.part import MARKERS, CheckpointPart, InputStore, PartStatus, RowGroup
from airflow_delta.log.schema.walk import Path
from airflow_delta.log.storage.file_names import SIDECAR_DIRECTORY, is_uuid_checkpoint, split_version
from airflow_delta.log.storage.progress import tracked

Action = TypeVar("Action", Metadata, Protocol, SetTransaction, DomainMetadata, SidecarFile, CheckpointMetadata)

_FOOTERS_AT_ONCE = 8


_TXN = ("appId", "version", "lastUpdated")


class CheckpointReader:
    """The actions of one checkpoint: single, multi-part or V2.

    :param store: where the log is.
    :param parts: its files in ``_delta_log`` itself, in order.
    :param version: version of the checkpoint.
    :param table: URI of the table, for error messages.
    :raises DeltaLogCorruptedException: from every method, if a file is missing, empty, truncated or otherwise damaged.
    """

    def __init__(self, store: InputStore, parts: Sequence[PartStatus], *, version: int, table: str) -> None:
        self.version = version
        self.table = table
        self._store = store
        self._top = [CheckpointPart(store, part, table=table, version=version) for part in parts]
        self._is_json = self._top[0].path.endswith(".json")
        self._is_manifest = is_uuid_checkpoint((split_version(self._top[0].path.rpartition("/")[2]) or (0, ""))[1])

    # -- where the actions are -----------------------------------------------------------------------------------------------

    @cached_property
    def manifest(self) -> Manifest | None:
        """Return the JSON manifest of a V2 checkpoint, ``None`` for all other checkpoints."""
        if not self._is_json:
            return None
        (top,) = self._top
        try:
            data = top.read()
        except FileNotFoundError as error:
            raise top.corrupted("is missing") from error
        manifest = decode_manifest(data, top.corrupted)
        complete = manifest.protocol is not None and manifest.metadata is not None
        check_checkpoint_manifest(
            self.version, manifest.checkpoint_metadata, manifest.sidecars, complete=complete, corrupted=top.corrupted
        )
        return manifest

    @property
    def _state_parts(self) -> list[CheckpointPart]:
        """Return the Parquet files that hold non-file actions."""
        return [] if self._is_json else self._top

    @cached_property
    def sidecars(self) -> list[SidecarFile]:
        """Return the sidecars of the checkpoint; none if its content is classic."""
        found = self.manifest.sidecars if self.manifest is not None else list(self._actions("sidecar", SidecarFile))
        outside = next((sidecar for sidecar in found if "/" in sidecar.name or sidecar.name in ("", ".", "..")), None)
        if outside is not None:
            raise self._top[0].corrupted(f"names the sidecar {outside.path}, which is not a file of {SIDECAR_DIRECTORY}")
        if self.manifest is not None:
            return found
        if self._is_manifest:
            about = None
            for about in self._actions("checkpointMetadata", CheckpointMetadata):  # noqa: B007 - the last one counts
                pass
            (top,) = self._top
            complete = None not in self.protocol_and_metadata()
            check_checkpoint_manifest(self.version, about, found, complete=complete, corrupted=top.corrupted)
        return found

    @cached_property
    def parts(self) -> list[CheckpointPart]:
        """Return the Parquet files that may hold files and tombstones, sidecars included."""
        parts = list(self._state_parts)
        manifest = self.manifest
        if manifest is not None and (manifest.adds or manifest.removes):
            path = self._top[0].path
            parts.append(inline_part(path, manifest.adds, manifest.removes, table=self.table, version=self.version))
        parts += [CheckpointPart(self._store, s.status, table=self.table, version=self.version) for s in self.sidecars]
        if len(parts) > 1 and self._store.local_root is None:
            # Each footer costs a round trip.
            with ThreadPoolExecutor(_FOOTERS_AT_ONCE, thread_name_prefix="delta-checkpoint") as pool:
                footers = pool.map(lambda part: part.metadata, parts)
                list(tracked(footers, f"Opening the checkpoint of {self.table}", len(parts), "parts"))
        return parts

    # -- non-file actions ------------------------------------------------------------------------------------------------

    def protocol_and_metadata(self) -> tuple[Protocol | None, Metadata | None]:
        """Return the protocol and the metadata; ``None`` for what the checkpoint does not have."""
        if self.manifest is not None:
            return self.manifest.protocol, self.manifest.metadata
        protocol: Protocol | None = None
        metadata: Metadata | None = None
        for part in self._state_parts:
            groups = [g for g in part.row_groups if g.may_hold("protocol") or g.may_hold("metaData")]
            for batch in part.batches(groups, ["protocol", "metaData"]):
                protocol = self._last(part, batch, "protocol", Protocol) or protocol
                metadata = self._last(part, batch, "metaData", Metadata) or metadata
        return protocol, metadata

    def set_transactions(self) -> dict[str, SetTransaction]:
        """Return the last transaction of every application, by its id."""
        return {txn.app_id: txn for txn in self.transactions_of(("",))}

    def transactions(self, prefix: str = "") -> dict[str, int]:
        """Return the last version of every application whose id begins so, by what follows in it; reads only their rows."""
        found: dict[str, int] = {}
        for batch in self._txns((prefix,), _TXN[:2]):
            if batch is None:
                return {txn.app_id.removeprefix(prefix): txn.version for txn in self.transactions_of((prefix,))}
            rest = [app_id[len(prefix) :] for app_id in batch.column("appId").to_pylist()]
            found.update(zip(rest, batch.column("version").to_pylist(), strict=True))
        return found

    def transactions_of(self, prefixes: tuple[str, ...]) -> list[SetTransaction]:
        """Return the last transactions of the applications whose id begins so; reads only such ``txn`` rows."""
        found: list[SetTransaction] = []
        for batch in self._txns(prefixes, _TXN):
            if batch is None:
                return [txn for txn in self._actions("txn", SetTransaction) if txn.app_id.startswith(prefixes)]
            names = set(batch.schema.names)
            columns = [batch.column(name).to_pylist() if name in names else [None] * batch.num_rows for name in _TXN]
            found += [
                SetTransaction(app_id=app_id, version=version, last_updated=when)
                for app_id, version, when in zip(*columns, strict=True)
            ]
        return found

    def _txns(self, prefixes: tuple[str, ...], columns: Sequence[str]) -> Iterator[pa.RecordBatch | None]:
        """Yield the ``txn`` rows of the applications whose id begins so, from the row groups that may have such ids.

        ``None`` if rows have to be taken one by one: those of a manifest are actions already, and of those that lack an id or a
        version, the action says which is invalid, and in which file.
        """
        if self.manifest is not None:
            yield None
            return
        leaf = tuple(MARKERS["txn"].split("."))
        for batch in self._batches(self._state_parts, "txn", columns, lambda group: group.may_begin(leaf, prefixes)):
            ids = batch.column("appId")
            if ids.null_count or "version" not in batch.schema.names or batch.column("version").null_count:
                yield None
                return
            masks = [kernels.starts_with(ids, prefix) for prefix in prefixes]
            yield batch if "" in prefixes else kernels.filter(batch, functools.reduce(kernels.or_, masks))

    def set_transaction(self, app_id: str) -> SetTransaction | None:
        """Return the last transaction of one application, or ``None``; reads only the ``txn`` rows."""
        found: SetTransaction | None = None
        if self.manifest is not None:
            return {txn.app_id: txn for txn in self.manifest.transactions}.get(app_id)
        leaf = tuple(MARKERS["txn"].split("."))
        for batch in self._batches(self._state_parts, "txn", _TXN, lambda group: group.may_begin(leaf, (app_id,))):
            for row in kernels.filter(batch, kernels.equal(batch.column("appId"), scalar(app_id))).to_pylist():
                found = SetTransaction(app_id=app_id, version=row["version"], last_updated=row.get("lastUpdated"))
        return found

    def transaction_version(self, app_id: str) -> int | None:
        """Return the last version of one application, or ``None``; reads only the ``txn`` rows."""
        found = self.set_transaction(app_id)
        return None if found is None else found.version

    def domain_metadata(self) -> dict[str, DomainMetadata]:
        """Return the domains by name, without removed ones."""
        return {d.domain: d for d in self._actions("domainMetadata", DomainMetadata) if not d.removed}

    def _actions(self, kind: str, action: type[Action]) -> Iterator[Action]:
        yield from (found for found in self._listed() if isinstance(found, action))
        for part in self._state_parts:
            groups = [g for g in part.row_groups if g.may_hold(kind)]
            for batch in part.batches(groups, [kind]) if groups else ():
                yield from self._convert(part, batch, kind, action)

    def _listed(self) -> list[SetTransaction | DomainMetadata]:
        """Return the transactions and domains in a JSON manifest, the only kinds that are read by kind."""
        manifest = self.manifest
        return [] if manifest is None else [*manifest.transactions, *manifest.domains]

    def _last(self, part: CheckpointPart, batch: pa.RecordBatch, kind: str, action: type[Action]) -> Action | None:
        found = None
        for found in self._convert(part, batch, kind, action):  # noqa: B007 - the last one counts
            pass
        return found

    def _convert(self, part: CheckpointPart, batch: pa.RecordBatch, kind: str, action: type[Action]) -> Iterator[Action]:
        if kind not in batch.schema.names:
            return
        marker = MARKERS[kind].split(".")[1]
        for row in kernels.drop_null(batch.column(kind)).to_pylist():
            if row.get(marker) is None:
                continue
            try:
                yield msgspec.convert(_plain(row), action)
            except msgspec.ValidationError as error:
                raise part.corrupted(f"has an invalid {kind} action: {error}") from error

    # -- files -------------------------------------------------------------------------------------------------------------

    def row_groups(self, kind: str) -> list[RowGroup]:
        """Return the row groups that may have rows of that kind."""
        return [group for part in self.parts for group in part.row_groups if group.may_hold(kind)]

    def batches(self, kind: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one kind, with its fields as columns; fields missing in a part are left out of its batches.

        :param kind: ``add``, or ``remove`` for tombstones, also expired ones.
        :param columns: Delta's field names below the kind; dotted for fields of structs (``stats_parsed.minValues.id``).
        """
        return self._batches(self.parts, kind, columns)

    def _batches(
        self,
        parts: Sequence[CheckpointPart],
        kind: str,
        columns: Sequence[str],
        keeps: Callable[[RowGroup], bool] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        names = [f"{kind}.{column}" for column in columns]
        for part in parts:
            groups = [g for g in part.row_groups if g.may_hold(kind) and (keeps is None or keeps(g))]
            for batch in part.batches(groups, names):
                yield flatten(batch, kind)

    @property
    def file_parts(self) -> list[CheckpointPart]:
        """Return the parts that may have live files."""
        return [part for part in self.parts if any(group.may_hold("add") for group in part.row_groups)]

    def sample_paths(self, row_groups: int) -> list[str]:
        """Return some of the paths of live files: of about as many row groups, spread evenly, every hundredth."""
        found: list[str] = []
        step = max(sum(len(part.row_groups) for part in self.parts) // row_groups, 1)
        number = 0
        for part in self.parts:
            chosen = []
            for group in part.row_groups:
                if number % step == 0 and group.may_hold("add"):
                    chosen.append(group)
                number += 1
            for batch in part.batches(chosen, ["add.path"]):
                paths = kernels.drop_null(flatten(batch, "add").column("path"))
                found += kernels.take(paths, array(range(0, len(paths), 100), pa.int64())).to_pylist()
        return found

    def has_column(self, path: Sequence[str]) -> bool:
        """Return whether every part with files has that column below ``add``."""
        holders = self.file_parts
        return bool(holders) and all(part.has(("add", *path)) for part in holders)

    def may_have_values(self, leaf: Path) -> bool:
        """Return whether any row may have a value in that leaf; ``False`` is certain."""
        return any(
            group.null_count(leaf) != group.num_rows for part in self.parts if leaf in part.leaves for group in part.row_groups
        )

    @property
    def num_rows(self) -> int:
        """Return the number of rows in all Parquet files, sidecars included."""
        return sum(int(part.metadata.num_rows) for part in self.parts)


def flatten(batch: pa.RecordBatch, kind: str) -> pa.RecordBatch:
    """Return the rows with a value in the struct column ``kind``, with its fields as columns."""
    column = batch.column(kind)
    if column.null_count:
        column = kernels.drop_null(column)
    return pa.RecordBatch.from_arrays(column.flatten(), names=[field.name for field in column.type])


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without nulls, with maps as dictionaries (Arrow gives them as lists of pairs)."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            plain[name] = _plain(value)
        elif name in ("options", "configuration", "tags") and isinstance(value, list):
            plain[name] = dict(value)
        elif value is not None:
            plain[name] = value
    return plain
