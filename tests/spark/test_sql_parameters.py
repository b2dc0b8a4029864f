"""Parameters of SQL as Spark reads them: each is the value that it was given, and the condition says no more."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from airflow_delta.contract.sql_parameters import literal_of, with_parameters
from support.sql_values import TEXTS

pytestmark = pytest.mark.spark

VALUES = (True, 7, -7, 1 << 40, -(1 << 63), 1.5, -1e300, Decimal("-12.30"), date(2026, 3, 29), None)


def test_each_value_is_itself_to_spark(spark):
    row = spark.sql("SELECT " + ", ".join(f"{literal_of(value)} AS c{n}" for n, value in enumerate((*TEXTS, *VALUES)))).first()
    assert list(row) == [*TEXTS, *VALUES]
    assert [type(value) for value in row] == [type(value) for value in (*TEXTS, *VALUES)]
    time = datetime(2026, 3, 29, 1, 30, 0, 5, tzinfo=UTC)
    same = f"{literal_of(time)} = TIMESTAMP'2026-03-29 03:30:00.000005+02:00' AS same"
    assert spark.sql(f"SELECT {same}, typeof({literal_of(time.replace(tzinfo=None))}) AS kind").first() == (True, "timestamp_ntz")


def test_a_condition_says_no_more_than_its_author(spark):
    rows = spark.createDataFrame([(number, text) for number, text in enumerate(TEXTS)], "id INT, note STRING")
    for number, text in enumerate(TEXTS):
        condition = with_parameters("note = :text AND id < :least", {"text": text, "least": 1000}, whose="where")
        assert [row.id for row in rows.where(condition).collect()] == [number]
