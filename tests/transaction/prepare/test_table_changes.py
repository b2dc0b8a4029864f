"""What a transaction sets beside files: metadata in its variants, default properties, identity columns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_delta.exceptions import DeltaAnalysisException, DeltaAssertionError, MetadataChangedException
from airflow_delta.log.features.identity_columns import identity_columns
from airflow_delta.log.schema.types import parse_schema
from airflow_delta.transaction import Operation
from support.actions import add, protocol
from support.table import Table, metadata

MANUAL = Operation.manual_update()
DEFAULTS = {"delta.checkpointInterval": "77", "delta.enableChangeDataFeed": "true"}


def test_registries(table: Table) -> None:
    table.create()
    transaction = table.log().start_transaction()
    assert transaction.new_metadata is None
    assert transaction.new_protocol is None
    assert transaction.snapshot_metadata == transaction.metadata == transaction.snapshot.metadata
    given = metadata(configuration={"delta.enableChangeDataFeed": "true"})
    transaction.update_metadata(given)
    assert transaction.new_metadata == given == transaction.metadata
    assert transaction.snapshot_metadata != given
    assert transaction.new_protocol == transaction.protocol
    assert transaction.protocol != transaction.snapshot.protocol


@pytest.mark.parametrize(
    ("method", "creating", "overwriting"),
    [
        ("update_metadata", False, False),
        ("update_metadata_for_new_table", True, False),
        ("update_metadata_for_new_table_in_replace", True, False),
        ("update_metadata_for_table_overwrite", False, True),
    ],
)
def test_variants(table: Table, method: str, creating: bool, overwriting: bool) -> None:
    table.create()
    transaction = table.log().start_transaction(default_properties=DEFAULTS)
    getattr(transaction, method)(metadata(configuration={"delta.checkpointInterval": "5"}))
    assert transaction.is_creating_new_table is creating
    assert transaction.is_overwriting_schema is overwriting
    configuration = transaction.metadata.configuration
    assert configuration["delta.checkpointInterval"] == "5", "what the metadata sets itself wins"
    assert ("delta.enableChangeDataFeed" in configuration) is creating, "defaults are for new tables"
    with pytest.raises(DeltaAssertionError, match="more than once"):
        getattr(transaction, method)(metadata())
    other = table.log().start_transaction()
    other.has_written = True
    assert not other.can_update_metadata
    with pytest.raises(DeltaAssertionError, match="already written data"):
        getattr(other, method)(metadata())
    assert not other.is_creating_new_table


def test_default_properties_of_a_new_table(table: Table) -> None:
    transaction = table.log().start_transaction(default_properties=DEFAULTS)
    assert transaction.with_global_config_defaults(metadata()).configuration == DEFAULTS
    transaction.update_metadata(metadata())
    transaction.commit([], MANUAL)
    assert table.log().update().metadata.configuration == DEFAULTS
    assert table.log().update().protocol.min_writer_version >= 4


def test_a_clone_ignores_them(table: Table) -> None:
    transaction = table.log().start_transaction(default_properties=DEFAULTS)
    transaction.update_metadata_for_clone(metadata(), protocol())
    assert transaction.metadata.configuration == {}


class TestIdentityColumns:
    """High-water marks become part of the metadata when the transaction commits."""

    def create(self, table: Table, *, step: int = 1) -> None:
        identity = {"delta.identity.start": 1, "delta.identity.step": step, "delta.identity.allowExplicitInsert": True}
        fields = [
            {"name": "Id", "type": "long", "nullable": True, "metadata": identity},
            {"name": "value", "type": "integer", "nullable": True, "metadata": {}},
        ]
        table.create(schema_string=json.dumps({"type": "struct", "fields": fields}))

    def mark(self, table: Table) -> int | None:
        (column,) = identity_columns(parse_schema(table.log().update().metadata.schema_string))
        return column.high_water_mark

    @pytest.mark.parametrize(("step", "values", "expected"), [(1, [3, 9, 4], 9), (-1, [-3, -9, -4], -9)])
    def test_the_furthest_value_counts(self, table: Table, step: int, values: list[int], expected: int) -> None:
        self.create(table, step=step)
        transaction = table.log().start_transaction()
        for value in values:
            transaction.update_identity_high_water_marks({"id": value})
        transaction.has_written = True  # the marks are only known once files have been written
        transaction.commit([add("a")], Operation.write())
        assert self.mark(table) == expected
        assert [next(iter(line)) for line in table.lines(1)] == ["commitInfo", "metaData", "add"]
        assert table.info(1)["tags"] == {"delta.identity.schemaUpdate": "true"}
        assert table.info(1)["isBlindAppend"] is True

    def test_nothing_moves_back(self, table: Table) -> None:
        self.create(table)
        for value in (5, 3, 5):
            transaction = table.log().start_transaction()
            transaction.update_identity_high_water_marks({"Id": value})
            transaction.commit([add(f"f{len(table.versions())}")], Operation.write())
        assert self.mark(table) == 5
        assert [next(iter(line)) for line in table.lines(2)] == ["commitInfo", "add"]
        assert "tags" not in table.info(3)

    def test_with_other_metadata_it_is_no_identity_only_change(self, table: Table) -> None:
        self.create(table)
        for version, through in enumerate(("action", "update"), 1):
            transaction = table.log().start_transaction()
            given = metadata(description=through, schema_string=transaction.metadata.schema_string)
            if through == "update":
                transaction.update_metadata(given)
            transaction.update_identity_high_water_marks({"id": version * 10})
            transaction.commit([given] if through == "action" else [], MANUAL)
            assert self.mark(table) == version * 10
            assert table.log().update().metadata.description == through
            assert "tags" not in table.info(version)

    def test_prepared_twice_is_moved_once(self, table: Table) -> None:
        self.create(table)
        transaction = table.log().start_transaction()
        transaction.update_identity_high_water_marks({"id": 2})
        first = transaction.prepare_commit([add("a")], MANUAL)
        assert transaction.prepare_commit([add("a")], MANUAL) == first
        transaction.commit([add("a")], MANUAL)
        assert self.mark(table) == 2

    def test_a_column_that_is_none(self, table: Table) -> None:
        self.create(table)
        transaction = table.log().start_transaction()
        transaction.update_identity_high_water_marks({"value": 2})
        with pytest.raises(DeltaAnalysisException, match="not an identity column"):
            transaction.commit([add("a")], MANUAL)

    def test_sync_identity_carries_the_tag(self, table: Table) -> None:
        self.create(table)
        transaction = table.log().start_transaction()
        transaction.set_sync_identity()
        column: dict[str, Any] = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
        transaction.commit([], Operation.change_column(column))
        assert table.info(1)["tags"] == {"delta.identity.schemaUpdate": "true"}

    def test_two_writers_that_both_move_a_mark(self, table: Table) -> None:
        self.create(table)
        first, second = table.log().start_transaction(), table.log().start_transaction()
        for transaction in (first, second):
            transaction.update_identity_high_water_marks({"id": 4})
        first.commit([add("a")], Operation.write())
        with pytest.raises(MetadataChangedException):
            second.commit([add("b")], Operation.write())
