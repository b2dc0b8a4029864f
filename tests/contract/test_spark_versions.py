"""What a Spark older than 4 cannot do with a table: by its version, before a job starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_delta.contract.payloads import ScanFile, ScanPlan, SourcePosition
from airflow_delta.contract.request import SourceScan, StageRequest
from airflow_delta.contract.spark_versions import check_request, check_version, parse_version
from airflow_delta.exceptions import DeltaIllegalArgumentException, SparkVersionException

OLDER = ["3.5", "3.5.0", "3.5.4-amzn-0"]
NEWER = ["4.0", "4.0.2", "4.2.0", "5.0", "10.1"]


def field(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def struct(*fields: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def widened(*changes: tuple[str, str]) -> dict[str, Any]:
    return {"delta.typeChanges": [{"fromType": before, "toType": after} for before, after in changes]}


def scan(*fields: Any, files: int = 1, partition_columns: tuple[str, ...] = ()) -> ScanPlan:
    return ScanPlan(
        transaction_id="t1",
        table="s3://lake/orders",
        read_version=7,
        schema_string=json.dumps(struct(*fields)),
        partition_columns=partition_columns,
        files=tuple(ScanFile(path=f"{n}.parquet", partition_values={}, size=1) for n in range(files)),
    )


def request(*fields: Any, **more: Any) -> StageRequest:
    return StageRequest(
        transaction_id="t1",
        table="s3://lake/orders",
        read_version=7,
        stage="s",
        task_id="s",
        attempt="1-a",
        directory="staged/t1/s/1-a",
        schema_string=json.dumps(struct(*fields)) if fields else None,
        **more,
    )


ID, V = field("id", "long"), field("v", "variant")
WIDE = field("n", "long", **widened(("byte", "integer"), ("integer", "long")))
POSITION = SourcePosition(table="s3://lake/other", table_id="x", consumer="us", version=3)

REFUSED = {
    "a variant to write": (request(ID, V), "has no variants, and table s3://lake/orders has them in the column v"),
    "variants inside of others": (
        request(ID, field("s", struct(V)), field("l", array("variant"))),
        "has no variants, and table s3://lake/orders has them in the columns s, l",
    ),
    "a variant to read": (request(scan=scan(ID, V)), "has no variants"),
    "a variant in files to rewrite": (request(rewrite=scan(ID, V)), "has no variants"),
    "a widened column": (request(scan=scan(ID, WIDE)), "columns of table s3://lake/orders did: n from integer to long"),
    "a widened field": (
        request(scan=scan(ID, field("l", array(struct(WIDE))))),
        "columns of table s3://lake/orders did: n from integer to long",
    ),
    "a widened element": (
        request(scan=scan(field("l", array("double"), **widened(("float", "double"))))),
        "columns of table s3://lake/orders did: l from float to double",
    ),
}

TAKEN = {
    "nothing of it": request(ID, scan=scan(ID)),
    "names that look like it": request(field("variant", struct(field("variant", "string"))), scan=scan(field("variant", "long"))),
    "another schema": request(ID, V, mode="overwrite", overwrite_schema=True),
    "no files to read": request(ID, scan=scan(WIDE, files=0)),
    "rows for a widened column": request(WIDE),
    "types that files store alike": request(scan=scan(field("n", "integer", **widened(("byte", "short"), ("short", "integer"))))),
    "a partition column": request(scan=scan(ID, field("P", "long", **widened(("integer", "long"))), partition_columns=("p",))),
}


@pytest.mark.parametrize("version", OLDER)
@pytest.mark.parametrize("name", REFUSED)
def test_what_an_older_spark_lacks(name, version):
    given, said = REFUSED[name]
    with pytest.raises(SparkVersionException) as caught:
        check_request(version, given)
    assert caught.value.message.startswith(f"Spark {version} ")
    assert said in caught.value.message
    assert "Run this stage on Spark 4." in caught.value.message
    assert (caught.value.table, caught.value.version) == ("s3://lake/orders", 7)


@pytest.mark.parametrize("name", TAKEN)
def test_what_it_can_do(name):
    check_request("3.5", TAKEN[name])


@pytest.mark.parametrize("version", NEWER)
def test_spark_4_can_do_it_all(version):
    for given, _ in REFUSED.values():
        check_request(version, given)


def test_sources_of_other_tables():
    with pytest.raises(SparkVersionException, match="has no variants"):
        check_request("3.5", request(ID, sources=(SourceScan(name="other", position=POSITION, scan=scan(V)),)))


@pytest.mark.parametrize("version", ["3.4.4", "3.3", "2.4.8", "1.6"])
def test_a_spark_that_no_job_works_on(version):
    with pytest.raises(SparkVersionException, match=r"needs Spark 3\.5 or newer"):
        check_version(version)


@pytest.mark.parametrize("text", ["", "4", "emr-7.1.0", "latest", "v3.5", None, 3.5])
def test_not_a_version(text):
    with pytest.raises(DeltaIllegalArgumentException, match="is not a version of Spark"):
        parse_version(text)


def test_versions():
    assert [parse_version(text) for text in ("3.5.10", "4.0.0.dev2", "10.12")] == [(3, 5), (4, 0), (10, 12)]
