"""The texts of row checks are the same for both writers."""

from __future__ import annotations

import pytest

from airflow_delta.contract.table_rules import broken_rule, refused_rows
from airflow_delta.exceptions import ConstraintViolationException, InvariantViolationException


@pytest.mark.parametrize(
    ("rule", "error", "text"),
    [
        (("check", "positive", "id > 0"), ConstraintViolationException, "CHECK constraint positive (id > 0) is violated"),
        (("check", "braces", "name <> '{}'"), ConstraintViolationException, "CHECK constraint braces (name <> '{}') is"),
        (("not_null", "a.b"), InvariantViolationException, "NOT NULL column a.b would get a null"),
    ],
)
def test_the_error_of_a_broken_rule(rule, error, text):
    found, said = broken_rule(*rule)
    assert found is error
    assert said.startswith(text)


def test_the_end_names_the_version_of_a_table_that_there_was():
    assert refused_rows("/lake/t", 3) == " (table /lake/t version 3; nothing was committed.)"
    assert refused_rows("/lake/t", -1) == " (table /lake/t; nothing was committed.)"
