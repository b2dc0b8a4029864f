"""Paths of files in one spelling, as Arrow columns; and files that a checkpoint holds under two.

A checkpoint has a path once, as an ``add`` or as a ``remove`` (protocol, "Checkpoints"). One whose writer compares spellings has
a file twice if another writer removed it, or added it again, by another spelling: the ``remove`` then counts, since nobody
removes what is not there, and of two ``add`` actions one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from airflow_delta.log.actions.reconciliation import MARKS, FileKey, canonical_path
from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import array, scalar

if TYPE_CHECKING:
    from airflow_delta.log.checkpoint.reader import CheckpointReader

VECTOR_ID = ("deletionVector.storageType", "deletionVector.pathOrInlineDv", "deletionVector.offset")
"""Fields that identify a deletion vector."""

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

_PLAIN = (_LETTERS + MARKS).replace(":", "").encode()


def _canonical_pattern() -> str:
    """Return the RE2 pattern of paths that are their own canonical spelling; a few others are, too."""
    relative, first, rest = map(_characters, (MARKS.replace(":", ""), MARKS.replace("/", ""), MARKS))
    host = r"(?:[A-Za-z0-9._~-]+@)?[a-z0-9._-]+(?::[0-9]+)?"
    return f"^(?:{relative}*|[a-z][a-z0-9+.-]*:(?://{host}/{rest}*|/(?:{first}{rest}*)?))$"


def _characters(marks: str) -> str:
    kept = (_LETTERS + marks).encode()
    escapes = "|".join(f"{byte:02X}" for byte in range(256) if byte not in kept and byte != ord("/"))
    return f"(?:[A-Za-z0-9{re.escape(marks)}]|%(?:{escapes}))"


CANONICAL = _canonical_pattern()


def canonical_paths(paths: pa.Array) -> pa.Array:
    """Return :func:`~airflow_delta.log.actions.reconciliation.canonical_path` of each path."""
    paths = kernels.cast(paths, pa.string())
    if are_plain(paths):
        return paths
    done = kernels.match_substring_regex(paths, CANONICAL)
    if kernels.all(done).as_py() is not False:
        return paths
    others = kernels.filter(paths, kernels.invert(done))
    split = _split(others)
    if split is not None and are_plain(split.names):
        directories = kernels.dictionary_encode(split.directories)
        known = array([canonical_path(directory) for directory in directories.dictionary.to_pylist()], pa.string())
        spelled = kernels.binary_join_element_wise(kernels.take(known, directories.indices), split.names, scalar("/"))
    else:
        spelled = array([canonical_path(path) for path in others.to_pylist()], pa.string())
    return kernels.replace_with_mask(paths, kernels.invert(done), spelled)


class _Split(NamedTuple):
    directories: pa.Array
    names: pa.Array


def _split(paths: pa.Array) -> _Split | None:
    """Split paths at their last slash: the files of a partition share the directory, and their names are rarely odd.

    :return: ``None`` if a path has no slash, or only those of a scheme.
    """
    parts = kernels.split_pattern(paths, pattern="/", max_splits=1, reverse=True)
    if kernels.min(kernels.list_value_length(parts)).as_py() != 2:
        return None
    directories = kernels.list_element(parts, scalar(0))
    if kernels.any(kernels.ends_with(directories, pattern="/")).as_py():
        return None
    return _Split(directories, kernels.list_element(parts, scalar(1)))


def are_plain(paths: pa.Array) -> bool:
    """Tell whether no path of a column of strings has a scheme, or anything that is or should be encoded."""
    if not len(paths):
        return True
    _, offsets, data = paths.buffers()
    if data is None:
        return True
    ends = memoryview(offsets).cast("i")
    start = ends[paths.offset]
    return not data.slice(start, ends[paths.offset + len(paths)] - start).to_pybytes().translate(None, _PLAIN)


def keys_of(rows: pa.RecordBatch, paths: pa.Array) -> list[FileKey]:
    """Return the keys of rows of a checkpoint, given their paths in canonical spelling."""
    vectors = rows.column("deletionVector").to_pylist() if "deletionVector" in rows.schema.names else [None] * rows.num_rows
    return [(path, _vector_id(vector)) for path, vector in zip(paths.to_pylist(), vectors, strict=True)]


def _vector_id(vector: dict[str, object] | None) -> str | None:
    if vector is None or vector.get("storageType") is None:
        return None
    base = f"{vector['storageType']}{vector['pathOrInlineDv']}"
    offset = vector.get("offset")
    return base if offset is None else f"{base}@{offset}"


class OtherSpellings:
    """The files that a checkpoint holds under two spellings.

    Nothing is read before the first path that may have two.
    """

    def __init__(self, reader: CheckpointReader) -> None:
        self._reader = reader

    def drop_from(self, rows: pa.RecordBatch, canonical: pa.Array) -> pa.RecordBatch:
        """Return the ``add`` rows that are live, each file once.

        :param rows: with their paths, and with deletion vectors if the checkpoint has any.
        :param canonical: their paths in canonical spelling.
        """
        paths = kernels.cast(rows.column("path"), pa.string())
        if are_plain(paths):
            return rows
        hit = kernels.is_in(canonical, value_set=self._odd_tombstones)
        odd = kernels.not_equal(canonical, paths)
        if kernels.any(odd).as_py() and self._has_clashes:
            suspects = kernels.or_(
                kernels.is_in(canonical, value_set=self._tombstones), kernels.is_in(canonical, value_set=self._repeated)
            )
            hit = kernels.or_(hit, suspects)
        if not kernels.any(hit).as_py():
            return rows
        chosen = kernels.filter(rows, hit)
        dead = array(self._dead(chosen, kernels.filter(canonical, hit)), pa.bool_())
        return kernels.filter(rows, kernels.invert(kernels.replace_with_mask(hit, hit, dead)))

    def _dead(self, rows: pa.RecordBatch, canonical: pa.Array) -> list[bool]:
        texts, keys = rows.column("path").to_pylist(), keys_of(rows, canonical)
        removed = self._spellings("remove", canonical)
        added = self._spellings("add", canonical)
        return [
            bool(removed.get(key, set()) - {text}) or text != _kept(added.get(key, {text}), key[0])
            for text, key in zip(texts, keys, strict=True)
        ]

    def _spellings(self, kind: str, canonical: pa.Array) -> dict[FileKey, set[str]]:
        """Return the spellings of some files, by key."""
        found: dict[FileKey, set[str]] = {}
        for rows, paths in self._rows(kind, ["path", *VECTOR_ID]):
            mask = kernels.is_in(paths, value_set=canonical)
            chosen = kernels.filter(rows, mask)
            for text, key in zip(chosen.column("path").to_pylist(), keys_of(chosen, kernels.filter(paths, mask)), strict=True):
                found.setdefault(key, set()).add(text)
        return found

    @cached_property
    def _tombstones(self) -> pa.Array:
        return _concatenated([paths for _rows, paths in self._rows("remove", ["path"])])

    @cached_property
    def _odd_tombstones(self) -> pa.Array:
        """Return the paths of the tombstones whose spelling is not canonical."""
        odd = (
            (paths, kernels.not_equal(paths, kernels.cast(rows.column("path"), pa.string())))
            for rows, paths in self._rows("remove", ["path"])
        )
        return _concatenated([kernels.filter(paths, mask) for paths, mask in odd])

    @cached_property
    def _repeated(self) -> pa.Array:
        """Return the paths that several live rows have."""
        counts = kernels.value_counts(_concatenated([paths for _rows, paths in self._rows("add", ["path"])]))
        return kernels.filter(counts.field("values"), kernels.greater(counts.field("counts"), scalar(1)))

    @cached_property
    def _has_clashes(self) -> bool:
        """Whether a directory may have several spellings; the names of files in it have one."""
        found: set[str] = set()
        for kind in ("add", "remove"):
            for rows in self._reader.batches(kind, ["path"]):
                paths = kernels.cast(kernels.drop_null(rows.column("path")), pa.string())
                split = _split(paths)
                if len(paths) and (split is None or not are_plain(split.names)):
                    return True
                found.update(() if split is None else kernels.unique(split.directories).to_pylist())
        return len({canonical_path(directory) for directory in found}) < len(found)

    def _rows(self, kind: str, columns: Collection[str]) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        for rows in self._reader.batches(kind, list(columns)):
            rows = kernels.filter(rows, kernels.is_valid(rows.column("path")))
            yield rows, canonical_paths(rows.column("path"))


def _kept(spellings: Collection[str], canonical: str) -> str:
    return canonical if canonical in spellings else min(spellings)


def _concatenated(arrays: list[pa.Array]) -> pa.Array:
    return pa.concat_arrays(arrays) if arrays else array([], pa.string())
