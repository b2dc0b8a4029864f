"""The reads of a transaction of a history, each noted with its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_delta.transaction import OptimisticTransaction
from support.actions import add

if TYPE_CHECKING:
    from faults.history.writer import Writer

Files = dict[str, dict[str, Any]]
"""What the actions of files have in common, by path."""


@dataclass
class Reads:
    """The reads of one transaction, each noted with its answer."""

    writer: Writer
    transaction: OptimisticTransaction
    txn: str

    def files(self, parts: list[str | None] | None, above: int | None = None) -> Files:
        predicate = self.writer.predicate(parts, above)
        found = self.transaction.filter_files() if predicate is None else self.transaction.filter_files(predicate)
        return self._files(self.writer.what(parts, above), found)

    def partitions(self, part: str | None) -> Files:
        """The files of a partition that is overwritten dynamically."""
        values = {"part": part} if self.writer.partitioned else {}
        new = add("new", partition_values=values)
        return self._files(self.writer.what([part], by_partition=True), self.transaction.filter_files(new_files=[new]))

    def whole_table(self) -> None:
        self.transaction.read_whole_table()
        self._files(self.writer.what(None, whole=True), self.transaction.snapshot.files())

    def app(self, app: str) -> int:
        version = self.transaction.txn_version(app)
        self._note({"kind": "app", "app": app}, version)
        return version

    def unrecorded(self) -> Files:
        return _by_path(self.transaction.snapshot.files())

    def again(self, what: Mapping[str, Any]) -> None:
        """Read what an earlier run read."""
        if what["kind"] == "app":
            self.app(what["app"])
        elif what["whole"]:
            self.whole_table()
        elif what["by_partition"]:
            self.partitions(what["parts"][0])
        else:
            self.files(what["parts"], what["above"])

    def _files(self, what: Mapping[str, Any], found: Any) -> Files:
        chosen = _by_path(found)
        self._note(what, sorted(chosen))
        return chosen

    def _note(self, what: Mapping[str, Any], answer: Any) -> None:
        self.writer.notes.note("read", txn=self.txn, what=what, answer=answer)


def _by_path(found: Any) -> Files:
    keys = ("partition_values", "size", "tags")
    rows = found.select(["path", *keys]).to_pylist()
    maps = ("partition_values", "tags")
    return {row["path"]: {key: dict(row[key]) if key in maps else row[key] for key in keys} for row in rows}
