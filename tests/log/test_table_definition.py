"""What a table is, as the log says it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from airflow_delta.exceptions import DeltaAnalysisException, SchemaMismatchException
from airflow_delta.log import DeltaLog
from airflow_delta.log.table_definition import TableDefinition
from support.actions import metadata, protocol
from support.tables import write_commit

COLUMNS = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":false,"metadata":{}}]}'


def test_the_log_defines_the_table(tmp_path) -> None:
    configuration = {"delta.enableTypeWidening": "true", "delta.columnMapping.mode": "name", "mine": "1"}
    named = {"name": "n", "description": "d", "created_time": None}
    given = metadata(schema_string=COLUMNS, partition_columns=["id"], configuration=configuration, **named)
    found = TableDefinition.of(given, protocol(), table="t", version=3)
    assert (found.table, found.version, found.table_id, found.partition_columns) == ("t", 3, given.id, ("id",))
    assert found.features == {"appendOnly", "invariants"}
    assert (found.column_mapping, found.widens_types, found.properties.get("enableTypeWidening")) == ("name", True, True)
    assert found.schema.names == ("id",)
    assert found.metadata == given


def test_a_snapshot_has_the_definition_of_its_version(tmp_path) -> None:
    write_commit(tmp_path, 0, protocol(), metadata())
    write_commit(tmp_path, 1, metadata(configuration={"delta.appendOnly": "true"}))
    log = DeltaLog.for_table(str(tmp_path))
    first, second = (log.snapshot_at(version).definition for version in (0, 1))
    assert (first.version, second.version) == (0, 1)
    assert (first.properties.append_only, second.properties.append_only) == (False, True)
    assert first.schema is log.snapshot_at(0).schema


def test_it_is_parsed_once() -> None:
    table = TableDefinition.of_rows(COLUMNS)
    assert table.schema is table.schema
    assert table.struct is table.struct
    assert table.struct["fields"][0]["name"] == "id"
    assert table.properties is table.properties


def test_a_new_table_may_have_no_columns_yet() -> None:
    table = TableDefinition(table="t", configuration={"delta.enableTypeWidening": "true"})
    assert (table.is_known, len(table.schema), table.struct["fields"]) == (False, 0, [])
    assert not table.widens_types  # the first rows decide the types
    known = table.with_schema(TableDefinition.of_rows(COLUMNS).schema, ["id"])
    assert (known.is_known, known.schema.names, known.partition_columns) == (True, ("id",), ("id",))


@pytest.mark.parametrize("text", ["", "{", "[]", '"long"', '{"type":"array","elementType":"long","containsNull":true}'])
def test_what_is_no_schema(text) -> None:
    table = TableDefinition.of_rows(text)
    with pytest.raises(DeltaAnalysisException):
        _ = table.schema
    with pytest.raises(SchemaMismatchException):
        _ = table.struct


def test_the_module_is_light() -> None:
    code = "import sys, airflow_delta.log.table_definition; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyarrow", "sqlglot", "pandas", "numpy", "obstore"} & set(loaded)
