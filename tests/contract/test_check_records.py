"""What a commit's tag says of its checks: bounded, whatever there is, and readable whoever has written it."""

from __future__ import annotations

import json

import pytest

from airflow_delta.contract import check_records as records
from airflow_delta.contract.audit import SqlCheck, audit_definition
from airflow_delta.contract.check_records import CheckRecord, check_records, checks_of, checks_text
from airflow_delta.contract.tags import CHECKS_TAG

ATTEMPTS = {"load": "1-0a1b2c3d", "more.0": "2-4e5f6a7b"}


def tag(attempts, checks) -> dict[str, str]:
    return {CHECKS_TAG: checks_text(check_records(attempts, checks))}


def test_a_tag_comes_back_as_it_was_and_says_no_more_than_it_must():
    audit = CheckRecord(
        task_id="txn.audit",
        kind=records.AUDIT,
        result=records.WARNED,
        failed=("no new country",),
        definition="ab" * 32,
        version=0,
        held=("rows_change",),
    )
    approval = CheckRecord(task_id="txn.approve", kind=records.APPROVAL, stages=("load",), approved_by="ada", chosen=("Approve",))
    skipped = CheckRecord(task_id="look", map_index=3, result=records.SKIPPED)
    tags = tag(ATTEMPTS, [skipped, approval, audit])
    found = checks_of(tags)
    assert found == check_records(ATTEMPTS, [audit, approval, skipped])  # audits first
    assert json.loads(tags[CHECKS_TAG]) == {
        "attempts": ATTEMPTS,
        "numStages": 2,
        "checks": [
            {
                "taskId": "txn.audit",
                "kind": "audit",
                "result": "warned",
                "failed": ["no new country"],
                "definition": "ab" * 32,
                "version": 0,
                "held": ["rows_change"],
            },
            {
                "taskId": "txn.approve",
                "kind": "approval",
                "result": "passed",
                "stages": ["load"],
                "approvedBy": "ada",
                "chosen": ["Approve"],
            },
            {"taskId": "look", "mapIndex": 3, "kind": "task", "result": "skipped"},
        ],
    }
    assert [records.result_in_words(each) for each in found.checks] == ["warned: no new country", "passed", "skipped"]
    assert [records.stages_in_words(each, found) for each in found.checks[:2]] == [
        "load 1-0a1b2c3d, more.0 2-4e5f6a7b",
        "load 1-0a1b2c3d",
    ]
    assert records.version_in_words(found.checks[0]) == "0; rows_change also for this one"
    assert records.answer_in_words(found.checks[1]) == "Approve by ada"


def test_a_thousand_mapped_stages_and_checks_are_summed_up():
    attempts = {f"load.{index}": f"1-{index:08x}" for index in range(1000)}
    checks = [
        CheckRecord(
            task_id="check",
            map_index=index,
            kind=records.AUDIT,
            result=records.PASSED if index else records.WARNED,
            failed=() if index else ("min_rows",),
            version=index % 7 + 3,
            stages=(f"load.{index}",),
        )
        for index in range(1000)
    ]
    tags = tag(attempts, checks)
    assert len(tags[CHECKS_TAG]) < 1_000
    found = checks_of(tags)
    (check,) = found.checks
    assert (found.attempts, found.num_stages, found.stages_digest) == ({}, 1000, records.json_digest(attempts))
    assert (check.instances, check.failed, check.version, check.num_stages) == (
        {"passed": 999, "warned": 1},
        ("min_rows",),
        3,
        1000,
    )
    assert records.result_in_words(check) == "999 passed, 1 warned: min_rows"
    assert records.stages_in_words(check, found) == "1000 of 1000 stages"
    other = tag(attempts, [*checks[:-1], CheckRecord(task_id="check", map_index=999, kind=records.AUDIT, result=records.SKIPPED)])
    assert checks_of(other).checks[0].digest != check.digest


@pytest.mark.parametrize("kind", [records.TASK, records.AUDIT])
def test_what_does_not_fit_is_left_out_and_counted(kind):
    checks = [CheckRecord(task_id=f"{'x' * 240}{n:04}", kind=kind, failed=("y" * 5_000,) * 50) for n in range(1000)]
    audit = CheckRecord(task_id="audit", kind=records.AUDIT)
    tags = tag({f"{'s' * 240}.{n}": "1-0a1b2c3d" for n in range(1000)}, [*checks, audit])
    assert len(tags[CHECKS_TAG]) <= 16_100
    found = checks_of(tags)
    assert found.checks[0] == audit
    assert len(found.checks) + found.left_out == 1001


@pytest.mark.parametrize("text", ["", "[]", "1", '{"checks": 3}', '{"checks": [{"kind": "audit"}]}', "[" * 100_000])
def test_what_another_writer_has_put_there_is_not_read(text):
    assert checks_of({CHECKS_TAG: text}) is None
    assert checks_of({}) is None


def test_a_definition_is_what_is_checked():
    query = SqlCheck(name="ids are unique", sql="SELECT count(*) = count(DISTINCT id) FROM result")
    same = audit_definition([query], min_rows=3, max_rows=None, value_range={"id": {"min": 1, "max": 2}})
    assert same == audit_definition([query], value_range={"id": {"max": 2, "min": 1}}, min_rows=3, partitions="")
    others = [
        audit_definition([query], min_rows=4, value_range={"id": {"min": 1, "max": 2}}),
        audit_definition([query], {"day": "2026-01-01"}, min_rows=3, value_range={"id": {"min": 1, "max": 2}}),
        audit_definition([SqlCheck(name=query.name, sql=query.sql, on_failure="warn")], min_rows=3),
        audit_definition([], min_rows=3),
        audit_definition([], min_rows=0),
    ]
    assert len({same, *others}) == 6
