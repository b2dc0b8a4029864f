"""Which of Spark's errors mean that its parts are of different versions; tests/stores has them from real clusters."""

from __future__ import annotations

import pytest

from airflow_delta.exceptions import SparkStorageException, SparkVersionException
from airflow_delta.spark.errors import typed_error

MISMATCHES = [
    "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, P",
    'java.io.IOException: Cannot run program "/opt/python/bin/python3": error=2, No such file or directory',
    "java.io.InvalidClassException: scala.collection.immutable.ArraySeq; local class incompatible: stream classdesc "
    "serialVersionUID = -1506415583798956640, local class serialVersionUID = -8615987390676041167",
]


@pytest.mark.parametrize("text", MISMATCHES)
def test_parts_of_different_versions(text):
    found = typed_error(f"Job aborted due to stage failure:\n{text}\n\tat somewhere", "s3a://lake/t")
    assert isinstance(found, SparkVersionException)
    assert text.split(": ")[-1][:40] in str(found)
    assert found.table == "s3a://lake/t"


@pytest.mark.parametrize(
    "text", ["java.io.InvalidClassException: a; no valid constructor", "NoSuchMethodError: com.example.F.f()"]
)
def test_other_errors_stay_what_they_are(text):
    assert typed_error(text, "s3a://lake/t") is None


def test_errors_of_the_store_come_first():
    assert isinstance(typed_error('No FileSystem for scheme "s3a"'), SparkStorageException)
