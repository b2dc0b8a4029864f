"""Lineage through OpenLineage's own classes: its extractors call the operators, its client writes the events."""

from __future__ import annotations

import json
import os
import shutil

import attr
import deltalake
import pyarrow as pa
import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.sdk import DAG
from openlineage.client.serde import Serde

from airflow_delta import exceptions
from airflow_delta.contract.location import dataset_name
from airflow_delta.contract.payloads import CommitResult, StagedWrite
from airflow_delta.log import DeltaLog
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.maintenance import DeltaMaintenanceOperator
from airflow_delta.operators.restore import DeltaRestoreOperator
from airflow_delta.tasks.openlineage.facets import schema_fields
from airflow_delta.tasks.openlineage.lineage import lifecycle
from support.running_tasks import context
from support.watching import commit, stage, start

pytestmark = pytest.mark.usefixtures("outside_of_the_task_runner")


@pytest.fixture
def uri(tmp_path) -> str:
    uri = str(tmp_path / "table")
    deltalake.write_deltalake(uri, pa.table({"id": [1, 2]}))
    return uri


def as_json(datasets) -> list[dict]:
    """What stands in the event, without what every facet has."""

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if key not in ("_producer", "_schemaURL")}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return [plain(json.loads(Serde.to_json(dataset))) for dataset in datasets]


def completed(operator):
    """Return inputs and outputs as Airflow's listener gets them."""
    assert ExtractorManager().get_extractor_class(operator) is DefaultExtractor
    lineage = DefaultExtractor(operator).extract_on_complete(None)
    return as_json(lineage.inputs), as_json(lineage.outputs)


# -- tasks ----------------------------------------------------------------------------------------------------------------------


def test_an_append(uri):
    handle = start(uri)
    staging, staged = stage(handle, [3, 4, 5])
    operator = commit(handle, staged)
    begun = DefaultExtractor(operator).extract()
    assert as_json(begun.outputs) == [
        {
            "namespace": "file",
            "name": uri,
            "facets": {"storage": {"storageLayer": "delta", "fileFormat": "parquet"}},
            "outputFacets": {},
        }
    ]
    result = operator.execute(context(operator))
    inputs, (output,) = completed(operator)
    assert inputs == []
    assert (output["namespace"], output["name"]) == ("file", uri)
    facets = output["facets"]
    assert facets["version"] == {"datasetVersion": "1"}
    assert facets["storage"] == {"storageLayer": "delta", "fileFormat": "parquet"}
    assert [(field["name"], field["type"]) for field in facets["schema"]["fields"]] == [("id", "long")]
    assert "lifecycleStateChange" not in facets
    assert output["outputFacets"]["outputStatistics"] == {"rowCount": 3, "size": result["numBytes"], "fileCount": 1}
    assert completed(staging) == ([], [])  # it has read nothing of the table, and nobody sees yet what it wrote


def test_an_overwrite_reads_nothing_and_replaces_the_table(uri):
    handle = start(uri)
    staging, staged = stage(handle, [7], mode="overwrite")
    operator = commit(handle, staged)
    operator.execute(context(operator))
    inputs, (output,) = completed(operator)
    assert inputs == completed(staging)[0] == []
    assert output["facets"]["lifecycleStateChange"] == {"lifecycleStateChange": "OVERWRITE"}


def test_what_stages_have_read_is_an_input_of_stage_and_commit(uri):
    handle = start(uri)
    delete = DeltaDeleteOperator(task_id="delete", transaction=handle)
    assert DefaultExtractor(delete).extract().outputs == []  # what a stage writes is nobody's to see
    staged = delete.execute(context(delete))
    operator = commit(handle, staged)
    operator.execute(context(operator))
    inputs, (output,) = completed(operator)
    assert [(table["name"], table["facets"]["version"]) for table in inputs] == [(uri, {"datasetVersion": "0"})]
    assert completed(delete) == (inputs, [])
    assert output["facets"]["version"] == {"datasetVersion": "1"}


def test_a_table_that_the_commit_creates(tmp_path):
    handle = start(str(tmp_path / "new"))
    _, staged = stage(handle)
    operator = commit(handle, staged)
    operator.execute(context(operator))
    _, (output,) = completed(operator)
    assert output["facets"]["version"] == {"datasetVersion": "0"}
    assert output["facets"]["lifecycleStateChange"] == {"lifecycleStateChange": "CREATE"}
    assert [field["name"] for field in output["facets"]["schema"]["fields"]] == ["id"]


def test_a_retry_that_finds_its_commit_tells_the_same(uri):
    handle = start(uri)
    _, staged = stage(handle)
    first, second = commit(handle, staged), commit(handle, staged)
    first.execute(context(first))
    second.execute(context(second))
    assert completed(first)[1][0]["facets"] == completed(second)[1][0]["facets"]


def test_a_retry_that_finds_its_commit_tells_the_schema_of_then(uri):
    handle = start(uri)
    _, staged = stage(handle)
    operator = commit(handle, staged)
    operator.execute(context(operator))
    deltalake.DeltaTable(uri).alter.add_columns(deltalake.Field("later", deltalake.schema.PrimitiveType("string")))
    again = commit(handle, staged)
    again.execute(context(again))
    (output,) = completed(again)[1]
    assert output["facets"]["version"] == {"datasetVersion": "1"}
    assert [field["name"] for field in output["facets"]["schema"]["fields"]] == ["id"]


def test_a_commit_that_the_log_has_forgotten_is_no_output(uri):
    """Its key tells that it is in the table; the version that it returns is the latest one, which somebody else made."""
    result = CommitResult(
        table=uri, version=0, read_version=-1, transaction_id="", operation="", committed_before=True, num_files=0, num_bytes=0
    )
    operator = commit({}, [])
    operator.lineage.note_commit(DeltaLog.for_table(uri), result)
    assert completed(operator) == ([], [])


def test_a_commit_that_fails_has_written_nothing(uri):
    handle = start(uri)
    _, staged = stage(handle, [7], mode="overwrite")
    deltalake.DeltaTable(uri).delete()
    operator = commit(handle, staged)
    with pytest.raises(exceptions.DeltaConcurrentModificationException):
        operator.execute(context(operator))
    lineage = DefaultExtractor(operator).extract_on_failure(None)
    assert lineage.outputs == []


def test_operations_of_their_own(uri):
    deltalake.write_deltalake(uri, pa.table({"id": [3]}), mode="overwrite")
    with DAG("a_dag", schedule=None):
        restore = DeltaRestoreOperator(task_id="restore", table=uri, version=0)
        restore.execute(context(restore))
        assert completed(restore)[1][0]["facets"]["lifecycleStateChange"] == {"lifecycleStateChange": "OVERWRITE"}
        delete = DeltaDeleteOperator(task_id="delete", table=uri)
        delete.execute(context(delete))
        inputs, (output,) = completed(delete)
        assert inputs[0]["facets"]["version"] == {"datasetVersion": "2"}
        assert output["facets"]["version"] == {"datasetVersion": "3"}
        assert "lifecycleStateChange" not in output["facets"]


def test_maintenance_without_a_commit_of_rows_writes_nothing(uri):
    operator = DeltaMaintenanceOperator(task_id="maintenance", tables=uri, steps="checkpoint", min_commits=1)
    operator.execute(context(operator))
    assert completed(operator) == ([], [])


def test_a_table_below_a_connection_has_its_name_as_symlink(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "delta", "host": str(tmp_path)}))
    uri = str(tmp_path / "orders")
    deltalake.write_deltalake(uri, pa.table({"id": [1]}))
    operator = DeltaDeleteOperator(task_id="delete", table="orders", delta_conn_id="lake")
    assert DefaultExtractor(operator).extract().outputs == []  # only the connection knows where it is
    operator.execute(context(operator))
    _, (output,) = completed(operator)
    assert (output["namespace"], output["name"]) == ("file", uri)
    assert output["facets"]["symlinks"] == {
        "identifiers": [{"namespace": "delta://connection/lake", "name": "orders", "type": "TABLE"}]
    }


def test_the_commit_of_a_table_below_a_connection_has_its_name_as_symlink(tmp_path, monkeypatch):
    """The start task names the table; whoever is scheduled by the asset of that name knows it under no other."""
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "delta", "host": str(tmp_path)}))
    handle = start("sales/orders", delta_conn_id="lake")
    _, staged = stage(handle)
    operator = commit(handle, staged)
    operator.execute(context(operator))
    _, (output,) = completed(operator)
    (identifier,) = output["facets"]["symlinks"]["identifiers"]
    assert (identifier["namespace"], identifier["name"]) == ("delta://connection/lake", "sales/orders")


def test_lineage_is_told_in_a_child_process_without_touching_the_table(uri):
    """OpenLineage's listener forks; object stores refuse a forked child, so nothing may be read there."""
    handle = start(uri)
    _, staged = stage(handle)
    operator = commit(handle, staged)
    operator.execute(context(operator))
    shutil.rmtree(uri)
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        try:
            os.write(writer, json.dumps(completed(operator)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        _, (output,) = json.loads(answer.read())
    os.waitpid(pid, 0)
    assert output["facets"]["version"] == {"datasetVersion": "1"}
    assert output["facets"]["schema"]["fields"][0]["name"] == "id"


# -- parts ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://lake/flights/", ("s3://lake", "flights")),
        ("s3a://lake/a/b", ("s3://lake", "a/b")),
        ("s3://lake", ("s3://lake", "/")),
        ("gs://lake/a", ("gs://lake", "a")),
        ("abfss://data@account.dfs.core.windows.net/a/b", ("abfss://data@account.dfs.core.windows.net", "a/b")),
        ("abfs://data@account/a", ("abfss://data@account.dfs.core.windows.net", "a")),
        ("wasb://data@account/a", ("abfss://data@account.dfs.core.windows.net", "a")),
        ("az://data/a", ("az://data", "a")),
        ("/srv/a b/", ("file", "/srv/a b")),
        ("file:///srv/a%20b", ("file", "/srv/a b")),
    ],
)
def test_names(uri, expected):
    assert dataset_name(uri) == expected


@pytest.mark.parametrize(
    "naming",
    [
        ("S3", {"bucket_name": "lake", "object_key": "a/b"}, "s3a://lake/a/b"),
        ("GCS", {"bucket_name": "lake", "object_key": "a/b"}, "gs://lake/a/b"),
        ("LocalFileSystem", {"path": "/srv/t"}, "/srv/t"),
        ("ABFSS", {"container": "c", "service": "acc", "path": "a/b"}, "abfss://c@acc.dfs.core.windows.net/a/b"),
    ],
)
def test_names_are_those_of_the_client(naming):
    from openlineage.client.naming import dataset

    kind, arguments, uri = naming
    theirs = getattr(dataset, kind)(**arguments)
    assert dataset_name(uri) == (theirs.get_namespace(), theirs.get_name())


def test_types():
    schema = {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": False, "metadata": {"comment": "key"}},
            {"name": "price", "type": "decimal(10,2)", "nullable": True, "metadata": {}},
            {
                "name": "tags",
                "type": {"type": "map", "keyType": "string", "valueType": {"type": "array", "elementType": "long"}},
                "nullable": True,
                "metadata": {},
            },
            {
                "name": "where",
                "type": {"type": "struct", "fields": [{"name": "x", "type": "double", "nullable": True, "metadata": {}}]},
                "nullable": True,
                "metadata": {},
            },
        ],
    }
    first, price, tags, where = schema_fields(schema)
    assert (first.name, first.type, first.description, first.ordinal_position) == ("id", "long", "key", 1)
    assert price.type == "decimal(10,2)"
    assert [(field.name, field.type) for field in tags.fields] == [("key", "string"), ("value", "array")]
    assert [(field.name, field.type) for field in tags.fields[1].fields] == [("_element", "long")]
    assert (where.type, where.fields[0].name, where.fields[0].ordinal_position) == ("struct", "x", 1)
    assert attr.asdict(first)["fields"] == []


WRITE = StagedWrite(transaction_id="t", stage="s", task_id="s", attempt="a", mode="overwrite", schema_string="{}")


@pytest.mark.parametrize(
    ("operation", "version", "write", "expected"),
    [
        ("WRITE", 0, {"mode": "append"}, "CREATE"),
        ("WRITE", 5, {"mode": "append"}, None),
        ("WRITE", 5, {}, "OVERWRITE"),
        ("WRITE", 5, {"replace_where": "month = 1"}, None),
        ("WRITE", 5, {"mode": "dynamic"}, None),
        ("WRITE", 5, {"parameters": {"replaceOnCond": "t.id = s.id"}}, None),
        ("TRUNCATE", 5, None, "TRUNCATE"),
        ("ADD COLUMNS", 5, None, "ALTER"),
        ("CREATE OR REPLACE TABLE AS SELECT", 5, None, "OVERWRITE"),
        ("MERGE", 5, {"mode": "rewrite", "operation": "MERGE"}, None),
        ("OPTIMIZE", 5, None, None),
    ],
)
def test_lifecycle(operation, version, write, expected):
    import dataclasses

    result = CommitResult(table="/t", version=version, read_version=version - 1, transaction_id="t", operation=operation)
    writes = [] if write is None else [dataclasses.replace(WRITE, **write)]
    assert lifecycle(result, writes) == expected


def test_every_operation_is_one_of_the_engine():
    from airflow_delta.tasks.openlineage.lineage import ALTERS, CREATES, OVERWRITES
    from airflow_delta.transaction.operation_kinds import KINDS

    assert {*ALTERS, *CREATES, *OVERWRITES} <= KINDS.keys()
