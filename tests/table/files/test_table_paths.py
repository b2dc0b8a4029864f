"""Where the files of the log are."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from airflow_delta.exceptions import PathOutsideTableException
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.factory import store_for
from airflow_delta.log.storage.table_paths import exists, locate
from airflow_delta.table.read.read_table import read_table
from support.tables import add, create_table


@pytest.mark.parametrize("spelled", ["{}", "file://{}", "file:{}"])
def test_files_outside_of_the_table(tmp_path: Path, spelled: str):
    outside = tmp_path / "else where" / "a%20b.parquet"
    outside.parent.mkdir()
    store = store_for(str(tmp_path / "table"))
    path = spelled.format(outside)
    assert not exists(store, quote(path, safe="/:"))
    outside.write_bytes(b"x")
    assert exists(store, quote(path, safe="/:"))
    assert exists(store, path, encoded=False)
    holder, key = locate(store, path)
    assert (holder.read(key), holder is store) == (b"x", False)
    assert locate(store, f"{tmp_path}/table/in/side") == (store, "in/side")


@pytest.mark.parametrize("path", ["../../f.parquet", "d/../../f.parquet"])
def test_a_relative_path_never_leads_out_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str):
    """Nor into the directory that the process happens to be in."""
    there = tmp_path / "some" / "where"
    (there / "d").mkdir(parents=True)
    for directory in (tmp_path, there.parent, there):
        (directory / "f.parquet").write_bytes(b"x")
    monkeypatch.chdir(there)
    create_table(tmp_path / "table", add(path, size=1))
    log = DeltaLog.for_table(str(tmp_path / "table"))
    for look in (lambda: locate(log.store, path), lambda: exists(log.store, path), lambda: read_table(log).to_table()):
        with pytest.raises(PathOutsideTableException, match="leads out of the table"):
            look()
