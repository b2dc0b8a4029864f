"""Schemas: Spark's JSON form, Arrow, which data may be written into a table, and which metadata are valid."""

from __future__ import annotations

import json

import msgspec
import pyarrow as pa
import pytest

from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalStateException, SchemaMismatchException
from airflow_delta.log.actions.actions import Format, Metadata
from airflow_delta.log.checkpoint.spark_schema import spark_schema
from airflow_delta.log.features.schema_checks import check_table_metadata
from airflow_delta.log.features.schema_merge import WriteCast, merge_schema, write_casts
from airflow_delta.log.schema.types import (
    DATE,
    DOUBLE,
    INTEGER,
    LONG,
    STRING,
    ArrayType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    arrow_type,
    leaves,
    parse_schema,
    to_json,
)

SPARK_JSON = (
    '{"type":"struct","fields":[{"name":"été","type":"timestamp_ntz","nullable":false,"metadata":{"comment":"a \\"b\\"","n":1}},'
    '{"name":"d","type":"decimal(38,18)","nullable":true,"metadata":{}},{"name":"v","type":"variant","nullable":true,"metadata":{}},'
    '{"name":"a","type":{"type":"array","elementType":"integer","containsNull":false},"nullable":true,"metadata":{}},'
    '{"name":"m","type":{"type":"map","keyType":"string","valueType":{"type":"struct","fields":[{"name":"x","type":"byte",'
    '"nullable":true,"metadata":{}}]},"valueContainsNull":true},"nullable":true,"metadata":{}},'
    '{"name":"odd","type":"interval year to month","nullable":true,"metadata":{}}]}'
)


def struct(**types) -> StructType:
    return StructType(tuple(StructField(name, t) for name, t in types.items()))


def test_json_is_written_back_as_spark_wrote_it():
    assert to_json(parse_schema(SPARK_JSON)) == SPARK_JSON


@pytest.mark.parametrize(
    "text", ["", "{", '"string"', '{"type":"struct"}', '{"type":"struct","fields":[{"name":1,"type":"x"}]}', "[]"]
)
def test_malformed_schema_is_a_clear_error(text):
    with pytest.raises(DeltaAnalysisException, match="schema string"):
        parse_schema(text)


def test_arrow_round_trip():
    schema = struct(
        a=INTEGER,
        b=DecimalType(10, 2),
        c=ArrayType(STRING),
        d=MapType(STRING, DOUBLE),
        e=struct(x=DATE),
        f=PrimitiveType("timestamp"),
    )
    arrow = pa.schema([(field.name, arrow_type(field.data_type)) for field in schema.fields])
    assert parse_schema(json.dumps(spark_schema(arrow))) == schema


def test_leaves_are_in_schema_order_and_lists_are_leaves():
    schema = struct(a=INTEGER, s=struct(x=LONG, y=struct(z=STRING)), l=ArrayType(INTEGER))
    assert [leaf.path for leaf in leaves(schema)] == [("a",), ("s", "x"), ("s", "y", "z"), ("l",)]


TABLE = StructType((StructField("id", LONG, nullable=False), StructField("Name", STRING), StructField("s", struct(x=INTEGER))))


def test_data_may_differ_in_case_and_order_and_lack_nullable_columns():
    data = struct(name=STRING, ID=LONG)
    assert merge_schema(TABLE, data, merge=False) == TABLE


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (struct(id=LONG, extra=STRING), "column extra: unexpected.*string"),
        (struct(name=STRING), "column id: missing.*bigint NOT NULL"),
        (struct(id=STRING), "column id: expected bigint, got string"),
        (struct(id=LONG, name=PrimitiveType("binary")), "column Name: expected string, got binary"),
        (struct(id=LONG, s=struct(x=LONG)), "column s.x: expected int, got bigint"),
        (struct(id=LONG, ID=LONG), "twice"),
    ],
)
def test_mismatch_names_the_column_and_what_was_expected(data, said):
    with pytest.raises(SchemaMismatchException, match=said) as caught:
        merge_schema(TABLE, data, merge=False, table="s3://t", version=7)
    assert "s3://t at version 7" in str(caught.value)


def test_merge_adds_nullable_columns_at_the_end_also_in_structs():
    data = StructType((StructField("new", LONG, nullable=False), StructField("id", INTEGER), StructField("s", struct(y=STRING))))
    merged = merge_schema(TABLE, data, merge=True)
    assert str(merged) == "struct<id:bigint,Name:string,s:struct<x:int,y:string>,new:bigint>"
    assert merged.fields[-1].nullable
    assert not merged.fields[0].nullable
    with pytest.raises(SchemaMismatchException, match="expected bigint, got string"):
        merge_schema(TABLE, struct(id=STRING), merge=True)


def test_narrower_types_are_cast():
    table = struct(a=LONG, b=DOUBLE, c=DecimalType(12, 2), d=STRING, e=STRING)
    data = struct(A=PrimitiveType("byte"), b=PrimitiveType("float"), c=INTEGER, d=STRING, e=PrimitiveType("void"))
    assert merge_schema(table, data, merge=False) == table
    assert write_casts(table, data) == [
        WriteCast("a", "tinyint", "bigint"),
        WriteCast("b", "float", "double"),
        WriteCast("c", "int", "decimal(12,2)"),
        WriteCast("e", "void", "string"),
    ]
    with pytest.raises(SchemaMismatchException):  # ten digits do not fit into nine
        merge_schema(struct(c=DecimalType(11, 2)), struct(c=INTEGER), merge=False)


def metadata(schema: StructType, partition_columns=(), **configuration) -> Metadata:
    keys = {f"delta.{k}": v for k, v in configuration.items()}
    return Metadata(id="i", schema_string=to_json(schema), partition_columns=list(partition_columns), configuration=keys)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (metadata(struct(a=LONG, A=LONG)), "Duplicate"),
        (metadata(struct(s=struct(x=LONG, X=LONG))), "Duplicate.*s.x"),
        (metadata(StructType((StructField("a b", LONG),))), "'a b'"),
        (metadata(StructType()), "no columns"),
        (metadata(struct(a=PrimitiveType("interval day to second"))), "interval day to second"),
        (metadata(struct(a=LONG, b=LONG), ["c"]), "'c' is not in the schema"),
        (metadata(struct(a=LONG, b=LONG), ["A"]), "Did you mean 'a'"),
        (metadata(struct(a=LONG), ["a"]), "All columns are partition columns"),
        (metadata(struct(a=ArrayType(LONG), b=LONG), ["a"]), "cannot be a partition column"),
        (metadata(struct(a=LONG, b=LONG), ["a", "a"]), "Duplicate partition columns: a, a"),
        (metadata(struct(a=LONG, b=LONG), ["a"], dataSkippingStatsColumns="a"), "partition column a"),
        (metadata(struct(a=LONG, b=LONG), [], dataSkippingStatsColumns="z"), "names z"),
        (metadata(struct(a=DecimalType(5, 6))), r"DELTA_UNSUPPORTED_DATA_TYPES.*decimal\(5,6\)"),
        (metadata(struct(a=LONG, b=LONG, m=MapType(LONG, LONG)), [], dataSkippingStatsColumns="m"), "NOT_SUPPORTED_TYPE"),
        (metadata(struct(a=LONG, b=PrimitiveType("binary")), [], dataSkippingStatsColumns="b"), "binary, which has no bounds"),
        (
            metadata(struct(a=LONG), enableDeletionVectors="true", **{"compatibility.symlinkFormatManifest.enabled": "true"}),
            "PERSISTENT_DELETION_VECTORS_WITH_INCREMENTAL_MANIFEST_GENERATION",
        ),
        (
            msgspec.structs.replace(metadata(struct(a=LONG), enableDeletionVectors="true"), format=Format(provider="orc")),
            "PERSISTENT_DELETION_VECTORS_IN_NON_PARQUET_TABLE",
        ),
        (metadata(struct(row=LONG), **{"rowTracking.materializedRowIdColumnName": "row"}), "INTERNAL_NAME_FAILED"),
        (metadata(struct(s=StructType((StructField("x", LONG, nullable=False),)))), "cannot be enforced"),
    ],
)
def test_bad_metadata_is_refused(bad, said):
    with pytest.raises(DeltaAnalysisException, match=said):
        check_table_metadata(bad)


def test_the_columns_of_the_change_data_feed_are_reserved():
    with pytest.raises(DeltaIllegalStateException, match="DELTA_TABLE_ALREADY_CONTAINS_CDC_COLUMNS"):
        check_table_metadata(metadata(struct(_change_type=LONG), [], enableChangeDataFeed="true"))


COLLATED = {"__COLLATIONS": {"c": "spark.UTF8_LCASE"}}


@pytest.mark.parametrize(
    "schema",
    [
        (*struct(a=LONG).fields, StructField("c", STRING, metadata=COLLATED)),
        (StructField("s", StructType((StructField("c", STRING, metadata=COLLATED),))),),
        (StructField("l", ArrayType(StructType((StructField("c", STRING, metadata=COLLATED),)))),),
    ],
)
def test_a_new_column_has_no_collation(schema):
    bad = metadata(StructType(schema))
    with pytest.raises(DeltaAnalysisException, match=r"c has a collation \(spark.UTF8_LCASE\).*DELTA_UNSUPPORTED_DATA_TYPES"):
        check_table_metadata(bad)
    check_table_metadata(bad, bad)  # another engine's


def test_a_table_without_columns_stays_one():
    empty = metadata(StructType())
    check_table_metadata(empty, empty)


def test_good_metadata_passes():
    check_table_metadata(metadata(struct(a=LONG, b=struct(c=PrimitiveType("binary"))), [], dataSkippingStatsColumns="b,a,A"))
    check_table_metadata(metadata(struct(a=LONG, b=struct(c=STRING)), ["a"], dataSkippingStatsColumns="b, `b`.`c`"))
    assert json.loads(to_json(TABLE))["fields"][0]["nullable"] is False
