"""Column mapping: assigning, keeping and refusing ids and physical names; renaming and dropping columns."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from airflow_delta.contract.mapping import with_known_columns
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features import column_mapping
from airflow_delta.log.features.schema_changes import drop_column, rename_column
from airflow_delta.log.schema.types import parse_schema
from support.actions import column, metadata, struct

RANDOM = re.compile(r"col-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NAME = {"delta.columnMapping.mode": "name"}


def mapped(name: str, identity: int, physical: str | None = None, kind: Any = "integer") -> dict[str, Any]:
    keys = {"delta.columnMapping.id": identity, "delta.columnMapping.physicalName": physical or f"col-{name}"}
    return column(name, kind, **keys)


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def mapping(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def with_mode(given: Metadata, mode: str, highest: int | None = None) -> Metadata:
    configuration = {**given.configuration, "delta.columnMapping.mode": mode}
    if highest is not None:
        configuration["delta.columnMapping.maxColumnId"] = str(highest)
    return msgspec.structs.replace(given, configuration=configuration)


def ids(given: Metadata) -> dict[str, int | None]:
    walk = column_mapping.walk_fields(parse_schema(given.schema_string))
    return {".".join(path): column_mapping.field_id(field) for path, field in walk}


def physical(given: Metadata) -> dict[str, str]:
    walk = column_mapping.walk_fields(parse_schema(given.schema_string))
    return {".".join(path): field.physical_name for path, field in walk}


DEEP = metadata(
    column("s", struct(column("x"), column("l", array(struct(column("y")))))),
    column("m", mapping(struct(column("k")), struct(column("v")))),
    column("b"),
)
DEEP_IDS = {"s": 1, "s.x": 2, "s.l": 3, "s.l.element.y": 4, "m": 5, "m.key.k": 6, "m.value.v": 7, "b": 8}


@pytest.mark.parametrize("mode", ["name", "id"])
def test_a_new_table_gets_random_names_and_ids_parents_first(mode):
    new = column_mapping.assign(with_mode(DEEP, mode), None)
    assert ids(new) == DEEP_IDS
    assert all(RANDOM.fullmatch(name) for name in physical(new).values())
    assert len(set(physical(new).values())) == 8
    assert new.configuration["delta.columnMapping.maxColumnId"] == "8"
    column_mapping.check_mapping(new)


def test_an_upgraded_table_keeps_the_names_that_its_files_have():
    new = column_mapping.assign(with_mode(DEEP, "name"), DEEP)
    assert ids(new) == DEEP_IDS
    assert physical(new) == {path: path.rsplit(".", 1)[-1] for path in DEEP_IDS}
    column_mapping.check_mapping(new)


def test_an_upgrade_finds_columns_whatever_their_case_and_takes_the_old_spelling():
    old, new = metadata(column("Name")), with_mode(metadata(column("name")), "name")
    assert physical(column_mapping.assign(new, old)) == {"name": "Name"}


def test_what_is_assigned_stays_and_only_new_columns_get_ids():
    old = with_mode(metadata(mapped("a", 1), mapped("b", 7)), "name", 9)
    wanted = with_mode(metadata(mapped("a", 1), mapped("b", 7), column("c")), "name", 9)
    new = column_mapping.assign(wanted, old)
    assert ids(new) == {"a": 1, "b": 7, "c": 10}
    assert physical(new)["a"] == "col-a"
    assert RANDOM.fullmatch(physical(new)["c"])
    assert column_mapping.assign(new, old) is new


def test_ids_of_dropped_columns_are_not_given_again():
    old = with_mode(metadata(mapped("a", 1), mapped("b", 2)), "name", 2)
    dropped = drop_column(old, ["b"])
    assert ids(dropped) == {"a": 1}
    added = with_mode(metadata(mapped("a", 1), column("b")), "name")  # the caller lost the property: it comes from the table
    new = column_mapping.assign(added, dropped)
    assert ids(new) == {"a": 1, "b": 3}
    assert RANDOM.fullmatch(physical(new)["b"])
    assert new.configuration["delta.columnMapping.maxColumnId"] == "3"


def test_ids_that_come_with_the_schema_are_not_given_again():
    new = column_mapping.assign(with_mode(metadata(mapped("a", 7), column("b")), "name"), None)
    assert ids(new) == {"a": 7, "b": 8}
    assert new.configuration["delta.columnMapping.maxColumnId"] == "8"


def test_an_overwrite_reuses_columns_of_the_same_name_and_type():
    old = with_mode(metadata(mapped("a", 1), mapped("b", 2), mapped("s", 3, kind=struct(mapped("x", 4)))), "name", 4)
    bare = metadata(column("A"), column("b", "string"), column("s", struct(column("x"), column("y"))))
    new = column_mapping.assign(with_mode(bare, "name", 4), old, overwrites_schema=True)
    assert ids(new) == {"A": 1, "b": 5, "s": 3, "s.x": 4, "s.y": 6}
    assert physical(new)["A"] == "col-a"
    assert RANDOM.fullmatch(physical(new)["b"])
    replaced = column_mapping.assign(with_mode(bare, "id"), old, creates_table=True)
    assert ids(replaced) == {"A": 5, "b": 6, "s": 7, "s.x": 8, "s.y": 9}


@pytest.mark.parametrize(
    ("before", "now", "stays"),
    [
        (array("integer"), array("integer"), True),
        (array("integer"), array("string"), False),
        (array("integer"), array(array("integer")), False),
        (mapping("string", "integer"), mapping("string", "long"), False),
        (mapping("string", "integer"), mapping("integer", "integer"), False),
        (array(struct(mapped("x", 2))), array("integer"), False),
        (array(struct(mapped("x", 2))), array(struct(column("x"), column("y"))), True),
        (array(struct(mapped("x", 2))), array(struct(column("x", "string"))), True),
    ],
)
def test_a_list_or_map_of_other_values_is_another_column(before: Any, now: Any, stays: bool):
    """Otherwise the change data feed would read the rows removed by an overwrite with the type of the new rows."""
    old = with_mode(metadata(mapped("l", 1, kind=before)), "name", 2)
    new = column_mapping.assign(with_mode(metadata(column("l", now)), "name", 2), old, overwrites_schema=True)
    assert (ids(new)["l"] == 1) is (physical(new)["l"] == "col-l") is stays
    [written] = with_known_columns(struct(column("l", now)), json.loads(old.schema_string))["fields"]
    assert (written["metadata"].get("delta.columnMapping.id") == 1) is stays


NONE, UPGRADED = metadata(column("a")), with_mode(metadata(mapped("a", 1, "a")), "name", 1)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (NONE, with_mode(NONE, "id"), "from 'none' to 'id'.*DELTA_UNSUPPORTED_COLUMN_MAPPING_MODE_CHANGE"),
        (UPGRADED, with_mode(UPGRADED, "id"), "from 'name' to 'id'"),
        (with_mode(UPGRADED, "id"), UPGRADED, "from 'id' to 'name'"),
        (with_mode(metadata(mapped("a", 1)), "name", 1), NONE, "from 'name' to 'none'.*must rewrite them"),
        (with_mode(UPGRADED, "name", 2), NONE, "from 'name' to 'none'"),  # a dropped column may still be in files
        (UPGRADED, metadata(column("b")), "from 'name' to 'none'"),
        (metadata(mapped("a", 1)), with_mode(metadata(mapped("a", 1)), "name"), "METADATA_ALREADY_EXISTS"),
        (NONE, with_mode(metadata(column("a"), column("b")), "name"), "DELTA_UNSUPPORTED_COLUMN_MAPPING_SCHEMA_CHANGE"),
    ],
)
def test_mode_changes_that_are_refused(old, new, said):
    with pytest.raises(DeltaAnalysisException, match=said):
        column_mapping.assign(new, old)


def test_mapping_is_removed_where_files_have_the_names_of_the_schema():
    bare = column_mapping.assign(with_mode(UPGRADED, "none"), UPGRADED)
    assert json.loads(bare.schema_string) == struct(column("a"))
    assert bare.configuration == {"delta.columnMapping.mode": "none"}


def test_mapping_that_comes_with_data_into_a_table_without_it_is_taken_out():
    foreign = metadata({**mapped("a", 3, "xyz"), "metadata": {**mapped("a", 3, "xyz")["metadata"], "parquet.field.id": 3}})
    assert json.loads(column_mapping.assign(foreign, NONE).schema_string) == struct(column("a"))
    assert json.loads(column_mapping.assign(foreign, None).schema_string) == struct(column("a"))
    assert column_mapping.assign(foreign, foreign) is foreign  # an older writer left it there: it stays


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (with_mode(NONE, "name", 1), "a has no id"),
        (with_mode(metadata(column("a", **{"delta.columnMapping.id": 1})), "name", 1), "a has no physical name"),
        (with_mode(metadata(mapped("a", 1), mapped("b", 1)), "name", 1), "a and b both have the id 1"),
        (with_mode(metadata(mapped("a", 1, "p"), mapped("b", 2, "p")), "id", 2), "a and b both have the physical name p"),
        (with_mode(metadata(mapped("a", 1)), "name"), "DELTA_COLUMN_MAPPING_MAX_COLUMN_ID_NOT_SET"),
        (with_mode(metadata(mapped("a", 3)), "name", 2), "is 2, below the highest column id 3.*NOT_SET_CORRECTLY"),
    ],
)
def test_broken_mapping_is_refused(bad, said):
    with pytest.raises(DeltaAnalysisException, match=said):
        column_mapping.check_mapping(bad)


def test_the_same_physical_name_in_two_structs_is_fine():
    inner = [struct(mapped("x", number, "p")) for number in (2, 4)]
    column_mapping.check_mapping(with_mode(metadata(mapped("a", 1, kind=inner[0]), mapped("b", 3, kind=inner[1])), "name", 4))


def test_physical_schema_and_partition_columns():
    deep = metadata(mapped("s", 1, "p1", kind=array(struct(mapped("x", 2, "p2")))), mapped("p", 3, "p3"), partition_by=["p"])
    schema = parse_schema(deep.schema_string)
    assert str(column_mapping.physical_schema(schema, "name")) == "struct<p1:array<struct<p2:int>>,p3:int>"
    assert column_mapping.physical_schema(schema, "none") is schema
    assert column_mapping.physical_partition_columns(with_mode(deep, "id", 3)) == ["p3"]
    assert column_mapping.physical_partition_columns(deep) == ["p"]
    assert column_mapping.mode({}) == "none"


# -- renamed and dropped -------------------------------------------------------------------------------------------------------

TABLE = with_mode(
    metadata(
        mapped("a", 1),
        mapped("s", 2, kind=array(struct(mapped("x", 3), mapped("y", 4)))),
        mapped("p", 5),
        column(
            "g", **{"delta.generationExpression": "p + 1", "delta.columnMapping.id": 6, "delta.columnMapping.physicalName": "g"}
        ),
        partition_by=["p"],
        **{"delta.constraints.c": "A > 1", "delta.dataSkippingStatsColumns": "a,S.element,`p`"},
    ),
    "name",
    6,
)


def test_renaming_keeps_id_and_physical_name():
    new = rename_column(TABLE, ["S", "element", "X"], "z")
    assert ids(new)["s.element.z"] == 3
    assert physical(new)["s.element.z"] == "col-x"
    assert column_mapping.drops_or_renames(new, TABLE)
    assert not column_mapping.drops_or_renames(TABLE, TABLE)
    partitioned = msgspec.structs.replace(TABLE, schema_string=drop_column(TABLE, ["g"]).schema_string)
    renamed = rename_column(partitioned, ["P"], "q.r")
    assert renamed.partition_columns == ["q.r"]
    assert renamed.configuration["delta.dataSkippingStatsColumns"] == "a,S.element,`q.r`"


def test_only_the_column_of_that_path_is_renamed():
    table = with_mode(metadata(mapped("x", 1), mapped("s", 2, kind=struct(mapped("x", 3)))), "name", 3)
    assert ids(rename_column(table, ["x"], "y")) == {"y": 1, "s": 2, "s.x": 3}
    assert ids(rename_column(table, ["s", "x"], "y")) == {"x": 1, "s": 2, "s.y": 3}


def test_dropping_takes_the_column_out_of_the_list_of_statistics():
    new = drop_column(TABLE, ["s"])
    assert "s" not in ids(new)
    assert new.configuration["delta.dataSkippingStatsColumns"] == "a,p"
    assert new.configuration["delta.columnMapping.maxColumnId"] == "6"
    assert column_mapping.drops_or_renames(new, TABLE)
    assert list(ids(drop_column(TABLE, ["s", "element", "y"]))) == ["a", "s", "s.element.x", "p", "g"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: rename_column(TABLE, ["a"], "z"), "constraint c refers to it.*DELTA_CONSTRAINT_DEPENDENT_COLUMN_CHANGE"),
        (lambda: drop_column(TABLE, ["a"]), "DELTA_CONSTRAINT_DEPENDENT_COLUMN_CHANGE"),
        (lambda: rename_column(TABLE, ["p"], "z"), "generated column g.*DELTA_GENERATED_COLUMNS_DEPENDENT_COLUMN_CHANGE"),
        (lambda: drop_column(drop_column(TABLE, ["g"]), ["p"]), "DELTA_UNSUPPORTED_DROP_PARTITION_COLUMN"),
        (lambda: drop_column(TABLE, ["s", "element", "nope"]), "no column s.element.nope"),
        (lambda: drop_column(drop_column(TABLE, ["s", "element", "y"]), ["s", "element", "x"]), "only one of its struct"),
        (lambda: rename_column(NONE, ["a"], "b"), "DELTA_UNSUPPORTED_RENAME_COLUMN"),
        (lambda: drop_column(NONE, ["a"]), "DELTA_UNSUPPORTED_DROP_COLUMN"),
    ],
)
def test_changes_that_are_refused(change, said):
    with pytest.raises(DeltaAnalysisException, match=said):
        change()


def test_an_expression_that_cannot_be_read_may_refer_to_any_column():
    odd = with_mode(metadata(mapped("a", 1), mapped("b", 2), **{"delta.constraints.odd": "a > 1 AND"}), "name", 2)
    with pytest.raises(DeltaAnalysisException, match="b cannot be changed: odd may refer to it"):
        drop_column(odd, ["b"])


def test_parts_of_maps_are_renamed_and_dropped():
    table = column_mapping.assign(with_mode(DEEP, "name"), DEEP)
    new = rename_column(rename_column(table, ["m", "key", "k"], "k2"), ["m", "value", "v"], "v2")
    assert ids(new)["m.key.k2"] == 6
    assert ids(new)["m.value.v2"] == 7
    wide = column_mapping.assign(
        with_mode(metadata(column("m", mapping(struct(column("k"), column("j")), struct(column("v"), column("w"))))), "name"),
        None,
    )
    assert list(ids(drop_column(drop_column(wide, ["m", "key", "k"]), ["m", "value", "w"]))) == ["m", "m.key.j", "m.value.v"]
