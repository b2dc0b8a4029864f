"""Constraints, invariants, default values, lengths, type changes and clustering, as stored in metadata."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalStateException, DeltaLogCorruptedException
from airflow_delta.log.actions.actions import DomainMetadata
from airflow_delta.log.features import change_data_feed, clustering
from airflow_delta.log.features.constraints import (
    check_constraints,
    column_defaults,
    has_char_varchar,
    invariants,
    replace_char_varchar,
    without_exists_defaults,
)
from airflow_delta.log.features.type_widening import may_change_type, with_type_changes
from airflow_delta.log.schema.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructType,
    parse_schema,
    to_json,
)
from support.actions import column, metadata, struct


def schema(*columns: dict[str, Any]) -> StructType:
    return parse_schema(json.dumps(struct(*columns)))


def test_check_constraints_stand_in_the_properties():
    given = {"delta.constraints.c1": "a > 1", "Delta.Constraints.c2": "a < 9", "delta.appendOnly": "true"}
    assert check_constraints(metadata(column("a"), **given)) == {"c1": "a > 1", "c2": "a < 9"}


def test_invariants_stand_in_fields_also_of_structs():
    text = '{"expression":{"expression":"x < 10"}}'
    found = invariants(schema(column("a"), column("s", struct(column("x.y", **{"delta.invariants": text})))))
    assert found == {"s.`x.y`": "x < 10"}
    with pytest.raises(DeltaAnalysisException, match="invariant of column a"):
        invariants(schema(column("a", **{"delta.invariants": "x < 10"})))


def test_default_values():
    given = schema(column("a", CURRENT_DEFAULT="7", EXISTS_DEFAULT="6"), column("b"))
    assert column_defaults(given) == {"a": "7"}
    assert json.loads(to_json(without_exists_defaults(given)))["fields"][0]["metadata"] == {"CURRENT_DEFAULT": "7"}


def test_lengths_go_into_the_metadata_of_the_column():
    nested = {"type": "map", "keyType": "varchar(3)", "valueType": struct(column("x", "char(2)")), "valueContainsNull": True}
    given = schema(column("c", "char( 5 )", comment="kept"), column("m", nested), column("i"))
    assert has_char_varchar(given)
    stored = replace_char_varchar(given)
    assert not has_char_varchar(stored)
    assert str(stored) == "struct<c:string,m:map<string,struct<x:string>>,i:int>"
    kept = [field.metadata.get("__CHAR_VARCHAR_TYPE_STRING") for field in stored.fields]
    assert kept == ["char( 5 )", "map<varchar(3),struct<x:char(2)>>", None]
    assert stored.fields[0].metadata["comment"] == "kept"
    assert stored.fields[2] is given.fields[2]


# -- type widening -------------------------------------------------------------------------------------------------------------


def kind(text: str) -> DataType:
    return schema(column("a", text)).fields[0].data_type


@pytest.mark.parametrize(
    ("before", "after", "widens"),
    [
        ("byte", "short", True),
        ("byte", "decimal(10,0)", True),
        ("byte", "decimal(9,0)", False),
        ("short", "long", True),
        ("integer", "double", True),
        ("long", "double", False),
        ("integer", "decimal(10,0)", True),
        ("integer", "decimal(10,1)", False),
        ("long", "decimal(21,1)", True),
        ("decimal(5,2)", "decimal(7,3)", True),
        ("decimal(5,2)", "decimal(6,4)", False),
        ("decimal(5,2)", "decimal(5,2)", False),
        ("float", "double", True),
        ("double", "float", False),
        ("date", "timestamp_ntz", True),
        ("date", "timestamp", False),
        ("string", "binary", False),
    ],
)
def test_which_types_may_widen(before, after, widens):
    assert may_change_type(kind(before), kind(after)) is widens


def test_type_changes_are_noted_in_the_nearest_field_as_delta_does():
    deep = {
        "type": "array",
        "elementType": {"type": "map", "keyType": "short", "valueType": struct(column("x", "short")), "valueContainsNull": True},
        "containsNull": True,
    }
    old = schema(
        column("a", "short", **{"delta.typeChanges": [{"toType": "short", "fromType": "byte"}]}), column("l", deep), column("b")
    )
    wide = json.loads(json.dumps(deep).replace('"short"', '"integer"'))
    new = with_type_changes(schema(column("A", "long"), column("l", wide), column("b"), column("n")), old)
    changes = {f.name: f.metadata.get("delta.typeChanges") for f in new.fields}
    assert changes == {
        "A": [{"toType": "short", "fromType": "byte"}, {"toType": "long", "fromType": "short"}],
        "l": [{"toType": "integer", "fromType": "short", "fieldPath": "element.key"}],
        "b": None,
        "n": None,
    }
    assert isinstance(new.fields[1].data_type, ArrayType)
    inner = new.fields[1].data_type.element_type
    assert isinstance(inner, MapType)
    assert isinstance(inner.value_type, StructType)
    assert inner.value_type.fields[0].metadata["delta.typeChanges"] == [{"toType": "integer", "fromType": "short"}]
    assert with_type_changes(new, new) == new
    assert with_type_changes(new, old) == new, "what a caller has noted is not noted twice"
    assert with_type_changes(schema(column("b", "string")), old).fields[0].metadata == {}, "only widening is noted"
    assert isinstance(kind("decimal(5,2)"), DecimalType)
    assert kind("odd") == PrimitiveType("odd")


# -- change data feed ----------------------------------------------------------------------------------------------------------

FEED = {"delta.enableChangeDataFeed": "true"}
MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}


def mapped(name: str, identity: int) -> dict[str, Any]:
    return column(name, **{"delta.columnMapping.id": identity, "delta.columnMapping.physicalName": f"p{identity}"})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (None, metadata(column("_Change_Type"), **FEED), "DELTA_TABLE_ALREADY_CONTAINS_CDC_COLUMNS"),
        (metadata(column("a")), metadata(column("_commit_version"), **FEED), "DELTA_TABLE_ALREADY_CONTAINS_CDC_COLUMNS"),
        (metadata(column("a"), **FEED), metadata(column("_commit_timestamp"), **FEED), "RESERVED_CDC_COLUMNS_ON_WRITE"),
    ],
)
def test_reserved_names(old, new, said):
    with pytest.raises(DeltaIllegalStateException, match=said):
        change_data_feed.check_reserved_columns(new, old)


def test_names_are_free_while_the_feed_is_off_and_below_the_top():
    change_data_feed.check_reserved_columns(metadata(column("_change_type")), None)
    change_data_feed.check_reserved_columns(metadata(column("s", struct(column("_change_type"))), **FEED), None)


TWO = metadata(mapped("a", 1), mapped("b", 2), **FEED, **MAPPED)


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        (None, TWO, True),
        (metadata(column("a"), column("b"), **FEED), TWO, True),
        (TWO, metadata(mapped("a", 1), **FEED, **MAPPED), True),
        (TWO, metadata(mapped("a", 1), mapped("c", 2), **FEED, **MAPPED), True),
        (TWO, metadata(mapped("a", 1), mapped("b", 2), mapped("c", 3), **FEED, **MAPPED), False),
        (TWO, metadata(mapped("a", 1), **MAPPED), False),
        (metadata(column("a"), **FEED), metadata(column("b"), **FEED), False),
    ],
)
def test_files_and_columns_may_not_change_in_one_commit(old, new, refused):
    change_data_feed.check_column_mapping(new, old, has_file_actions=False, operation="WRITE")
    if not refused:
        change_data_feed.check_column_mapping(new, old, has_file_actions=True, operation="WRITE")
        return
    with pytest.raises(
        DeltaIllegalStateException, match=r"WRITE cannot change files.*DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_OPERATION"
    ):
        change_data_feed.check_column_mapping(new, old, has_file_actions=True, operation="WRITE")


# -- clustering ----------------------------------------------------------------------------------------------------------------


def domain(configuration: str, *, removed: bool = False) -> dict[str, DomainMetadata]:
    return {"delta.clustering": DomainMetadata(domain="delta.clustering", configuration=configuration, removed=removed)}


def test_clustering_columns_are_physical_and_must_stay():
    columns = clustering.clustering_columns(domain('{"clusteringColumns":[["p1"],["s","p2"]],"domainName":"delta.clustering"}'))
    assert columns == [("p1",), ("s", "p2")]
    clustering.check_clustering(
        metadata(mapped("a", 1), column("s", struct(mapped("b", 2))), column("Own")), [*columns, ("P1",), ("own",)]
    )
    with pytest.raises(DeltaAnalysisException, match=r"s\.p2.*DELTA_UNSUPPORTED_DROP_CLUSTERING_COLUMN"):
        clustering.check_clustering(metadata(mapped("a", 1)), columns)
    with pytest.raises(DeltaAnalysisException, match="DELTA_CLUSTER_BY_WITH_PARTITIONED_BY"):
        clustering.check_clustering(metadata(mapped("a", 1), column("p"), partition_by=["p"]), [("p1",)])


@pytest.mark.parametrize(
    ("path", "text"),
    [(("a",), "a"), (("_u", "x1"), "_u.x1"), (("s", "k-1"), "s.`k-1`"), (("1q",), "`1q`"), (("x.y",), "`x.y`"),
     (("a`b",), "`a``b`"), (("ü",), "`ü`")],
)  # fmt: skip
def test_cubes_name_columns_as_delta_does(path: tuple[str, ...], text: str) -> None:
    assert clustering.quoted_path(path) == text
    cube = clustering.Cube("id", (text,))
    assert cube.tags == {"ZCUBE_ID": "id", "ZCUBE_ZORDER_BY": f'["{text}"]'}
    assert clustering.cube_of(cube.tags) == cube


def test_clustering_columns_by_the_names_in_the_schema():
    columns = clustering.clustering_columns(domain('{"clusteringColumns":["P1",["s","p2"],["gone"]]}'))
    table = schema(mapped("a", 1), column("s", struct(mapped("b", 2))))
    assert clustering.logical_columns(table, columns) == [("a",), ("s", "b"), ("gone",)]


def test_tables_without_clustering():
    unclustered = clustering.unclustered()
    assert clustering.clustering_columns({unclustered.domain: unclustered}) == []
    assert clustering.clustering_columns({}) == []
    assert clustering.clustering_columns(domain('{"clusteringColumns":[["p1"]]}', removed=True)) == []
    with pytest.raises(DeltaLogCorruptedException, match=r"delta\.clustering"):
        clustering.clustering_columns(domain("[]"))
