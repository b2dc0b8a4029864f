"""Where the files of the log are."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from airflow_delta.log.storage.factory import store_for
from airflow_delta.log.storage.table_paths import exists, locate


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
