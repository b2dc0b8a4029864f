"""Files of a table as the log of a preview names them, and the protocol that keeps writers off it.

Paths are absolute, as a shallow clone has them. On a local file system they have no scheme: Delta Spark, delta-rs, DuckDB, the
plugin of Polars and this provider read ``/lake/orders/part-0.parquet``, while DuckDB takes ``file:/lake/...`` for a name in the
table's directory. Deletion vectors are the other way round: readers built on delta-kernel-rs want a URI.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.delta_names import FEATURE_PREFIX
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import (
    Action,
    AddCDCFile,
    AddFile,
    DeletionVectorDescriptor,
    Metadata,
    Protocol,
    RemoveFile,
)
from airflow_delta.log.arrow.arrays import array, repeated, scalar
from airflow_delta.log.features.protocol import CATALOG_MANAGED, MAX_WRITER_VERSION, features
from airflow_delta.table.files.partitions import ELSEWHERE, absolute_file_path, absolute_vector, url_encoded

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import LogStore

FEATURE = "airflowPreview"
"""Writer feature that no engine knows: each refuses to write to a preview, and reads it."""

_LEFT_OUT = frozenset({CATALOG_MANAGED, "catalogOwned-preview", "vacuumProtocolCheck"})
"""Features that a preview does not take over: no catalog has a say in it (the second is an earlier name of the first), and the
third, which catalogs require, is about VACUUM alone, while delta-rs does not even read a table that has it."""
_CATALOG_PREFIX = "io.unitycatalog."


def guarded(protocol: Protocol) -> Protocol:
    """Return a protocol that readers of the table know, and no writer does."""
    listed = protocol.reader_features
    return Protocol(
        min_reader_version=protocol.min_reader_version,
        min_writer_version=MAX_WRITER_VERSION,
        reader_features=None if listed is None else [name for name in listed if name not in _LEFT_OUT],
        writer_features=sorted((features(protocol) | {FEATURE}) - _LEFT_OUT),
    )


def owned(metadata: Metadata, table_id: str) -> Metadata:
    """Return the metadata of the table as those of a preview, which is a table of its own."""
    left_out = {f"{FEATURE_PREFIX}{name}" for name in _LEFT_OUT}
    configuration = {
        name: value
        for name, value in metadata.configuration.items()
        if name not in left_out and not name.startswith(_CATALOG_PREFIX)
    }
    return msgspec.structs.replace(metadata, id=table_id, configuration=configuration)


@dataclass(frozen=True)
class Spelling:
    """How the files of a table are named outside of it.

    :param store: storage of the table.
    :param root: the table for readers of the preview, URL-encoded: an absolute path, or a URI.
    :param vector_root: the same as a URI.
    """

    store: LogStore
    root: str
    vector_root: str

    @classmethod
    def of(cls, store: LogStore, table_uri: str | None = None) -> Spelling:
        """Return the spelling for a table.

        :param table_uri: URI of the table for readers of the preview, if it differs from that of this process. Not URL-encoded.
        """
        uri = (table_uri or store.local_root or store.root).rstrip("/")
        root = url_encoded(uri)
        if not uri.startswith("/"):
            return cls(store, root, root)
        root = root.removeprefix("file:")
        return cls(store, root, f"file://{root}")

    def vector(self, vector: DeletionVectorDescriptor | None) -> DeletionVectorDescriptor | None:
        """Return a deletion vector of the table as the preview names it."""
        return absolute_vector(vector, self.vector_root, self.store)

    def actions(self, actions: Sequence[Action], table_id: str) -> list[Action]:
        """Return the actions of a commit as those of the preview: a table of its own, which cannot be written to.

        :param table_id: of the preview.
        """
        return [self._action(action, table_id) for action in actions]

    def _action(self, action: Action, table_id: str) -> Action:
        match action:
            case AddFile() | RemoveFile():
                path, vector = absolute_file_path(action.path, self.root), self.vector(action.deletion_vector)
                return msgspec.structs.replace(action, path=path, deletion_vector=vector)
            case AddCDCFile():
                return msgspec.structs.replace(action, path=absolute_file_path(action.path, self.root))
            case Metadata():
                return owned(action, table_id)
            case Protocol():
                return guarded(action)
        return action

    def rows(self, adds: pa.StructArray) -> pa.StructArray:
        """Return rows of a checkpoint's column ``add`` as those of the preview."""
        columns = []
        for field in adds.type:
            column = adds.field(field.name)
            if field.name == "path":
                column = self._paths(column)
            elif field.name == "deletionVector":
                column = self._vectors(column)
            columns.append(column)
        return pa.StructArray.from_arrays(columns, fields=list(adds.type))

    def _paths(self, paths: pa.StringArray) -> pa.StringArray:
        if pc.any(pc.match_substring_regex(paths, ELSEWHERE)).as_py():  # of a shallow clone
            return array([absolute_file_path(path, self.root) for path in paths.to_pylist()], pa.string())
        return pc.binary_join_element_wise(repeated(self.root, len(paths)), paths, scalar("/"))

    def _vectors(self, vectors: pa.StructArray) -> pa.StructArray:
        if vectors.null_count == len(vectors):
            return vectors
        found = []
        for vector in vectors.to_pylist():
            if vector is not None:
                vector = msgspec.to_builtins(self.vector(msgspec.convert(vector, DeletionVectorDescriptor)))
            found.append(vector)
        return array(found, vectors.type)
