"""The table ``t`` of ``dags/cluster_dags.py``: where it is, and which rows it has to have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stores.servers import REGION, Versitygw
from support import readers

LOADED = {number: number * 10 for number in range(40)}
CHANGED = LOADED | {number: number * 10 + 1 for number in range(1, 40, 4)}
DELETED = {number: v for number, v in CHANGED.items() if number >= 4}
EVERYTHING = DELETED | {10: 1100, 11: 5, 100: 7}
"""What ``every_operation`` leaves."""


@dataclass
class Lake:
    """The folder, or the bucket, of the table.

    :param path: where its files are on this machine; the gateway keeps objects as files.
    :param connection: the Airflow connection.
    :param options: storage options for other readers and writers.
    """

    path: Path
    connection: dict[str, Any]
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def on_s3(cls, store: Versitygw, **extra: Any) -> Lake:
        """Return a new bucket, and a connection with its credentials."""
        bucket = store.container()
        options = {"AWS_ENDPOINT_URL": store.url, "AWS_REGION": REGION}
        keys = {"login": store.ACCESS_KEY, "password": store.SECRET_KEY}
        connection = {"conn_type": "delta", "host": store.root(bucket), **keys, "extra": {"storage_options": options, **extra}}
        return cls(store.directory / "objects" / bucket, connection, store.options)

    @classmethod
    def in_folder(cls, folder: Path) -> Lake:
        """Return a folder that all machines see."""
        return cls(folder, {"conn_type": "delta", "host": str(folder)})

    def rows(self) -> dict[int, int]:
        """Return ``v`` by ``id`` as the independent readers see them; no id may be there twice."""
        rows = [(row["id"], row["v"]) for row in readers.rows(self.path / "t")]
        assert len(dict(rows)) == len(rows)
        return dict(rows)

    def load(self) -> None:
        """Make the table, by delta-rs."""
        import pyarrow as pa
        from deltalake import write_deltalake

        ids = pa.array(LOADED, pa.int64())
        parts = pa.array([number % 4 for number in LOADED], pa.int64())
        rows = pa.table({"id": ids, "v": pa.array(LOADED.values(), pa.int64()), "part": parts})
        write_deltalake(f"{self.connection['host']}/t", rows, storage_options=dict(self.options))

    @property
    def versions(self) -> int:
        """How many versions the table has."""
        return len(list((self.path / "t" / "_delta_log").glob("0*.json")))
