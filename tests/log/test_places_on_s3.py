"""Places on an object store: what lies inside a table, and names that only one of the clients takes for another place."""

from __future__ import annotations

import pytest

from airflow_delta.contract.location import Location
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.storage.factory import store_for
from airflow_delta.log.storage.place import store_place
from airflow_delta.table.files.inside_table import table_above
from airflow_delta.table.operations.clone import clone_table
from support.table import Table


def test_a_table_above(s3_table, s3_options):
    store_for(s3_table, s3_options).put("_delta_log/00000000000000000000.json", b"{}")
    lake, other = s3_table.rpartition("/")[0], s3_table.replace("s3://", "s3a://")
    for place, expected in ((f"{other}/p=1", s3_table), (other, s3_table), (f"{lake}/u", None), (lake, None)):
        assert table_above(store_for(place, s3_options)) == expected
    assert table_above(store_for(s3_table, s3_options), itself=False) is None
    assert table_above(store_for(s3_table, s3_options), "p=1/q=2", itself=False) == s3_table


def test_a_clone_of_itself_by_another_scheme(s3_table, s3_options):
    from airflow_delta.log import DeltaLog

    source = DeltaLog.for_table(s3_table, s3_options)
    source.start_transaction()
    table = Table(s3_table)
    table.log = lambda: DeltaLog.for_table(s3_table, s3_options)  # type: ignore[method-assign]
    table.create()
    with pytest.raises(DeltaIllegalArgumentException, match="clone of itself"):
        clone_table(
            source,
            DeltaLog.for_table(s3_table.replace("s3://", "s3a://"), s3_options),
            replace=True,
            transaction_key="k",
            attempt="1-test",
        )


@pytest.mark.parametrize("uri", ["s3://lake/a/./b", "gs://lake/../b", "az://lake/a/..", "s3://lake/a//b"])
def test_parts_that_clients_read_differently(uri):
    with pytest.raises(DeltaIllegalArgumentException, match="cannot be opened"):
        store_for(uri)


def test_dots_on_hdfs():
    assert {Location.parse(uri).key for uri in ("hdfs://n/a/b", "hdfs://N:8020/a/./c/../b/", "hdfs://n//a//b")} == {
        "hdfs://n/a/b"
    }
    assert Location.parse("hdfs://n/..").key == Location.parse("hdfs://n").key


AZURE = {"azure_storage_account_name": "acc", "azure_storage_account_key": "a2V5"}


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        (None, "abfss://lake@acc.dfs.core.windows.net/t"),
        ("https://acc.blob.core.windows.net/", "abfss://lake@acc.dfs.core.windows.net/t"),
        ("HTTPS://ACC.dfs.core.windows.net", "abfss://lake@acc.dfs.core.windows.net/t"),
        ("http://127.0.0.1:10000/acc", "az://lake/t"),
    ],
)
def test_a_container_of_an_endpoint(endpoint, expected):
    options = AZURE if endpoint is None else {**AZURE, "azure_storage_endpoint": endpoint}
    spellings = ("az://lake/t", "abfss://lake@acc.dfs.core.windows.net/t", "https://acc.blob.core.windows.net/lake/t/")
    assert {store_place(store_for(uri, options)).key for uri in spellings} == {expected}
