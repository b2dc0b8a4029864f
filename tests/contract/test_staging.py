"""The contract between tasks: payloads, names of paths, manifests, and the comparison of schemas."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid

import pytest

from airflow_delta.contract.casts import WIDENS, cast_of
from airflow_delta.contract.manifest import encode_manifest, manifest_ref, verify_manifest
from airflow_delta.contract.partition_texts import partition_text
from airflow_delta.contract.payloads import DeclaredReads, StagedWrite, TransactionHandle
from airflow_delta.contract.schema import WIDEN, keeps_values, may_widen, store_assignment, written_schema
from airflow_delta.contract.sealed import sealed, unsealed
from airflow_delta.contract.staging_directory import (
    PREVIEW_DIRECTORY,
    attempt_directory,
    is_hidden,
    is_later,
    is_owned_by,
    kept_until,
    marked,
    new_attempt,
    owned_transaction_id,
    owner_prefix,
    preview_directory,
    stage_key,
)
from airflow_delta.exceptions import (
    ContractVersionException,
    ManifestException,
    SchemaMismatchException,
    StageConflictException,
    StagingException,
)
from airflow_delta.log.features import type_widening
from airflow_delta.log.features.schema_merge import merge_schema, widens
from airflow_delta.log.schema.types import parse_type
from support.actions import ATOMIC_TYPES
from support.work import calls


def payload(**changes):
    return StagedWrite(transaction_id="t", stage="s", task_id="s", attempt="1-a", mode="append", schema_string="{}", **changes)


def test_an_error_about_a_handle_names_table_and_version():
    handle = TransactionHandle(
        transaction_id="t", table="s3://lake/t", read_version=7, staging_path="s3://lake/t/_s", app_id="a", txn_version=1
    )
    error = handle.error(StageConflictException, "They overlap.")
    assert (type(error), error.message, error.table, error.version) == (StageConflictException, "They overlap.", "s3://lake/t", 7)


def test_a_payload_survives_json():
    write = payload(reads=DeclaredReads(predicates=("a = 1",)), actions=({"add": {"path": "x", "partitionValues": {"p": None}}},))
    assert StagedWrite.from_dict(write.to_dict()) == write
    assert StagedWrite.from_dict(write.to_dict() | {"fromTheFuture": 1}) == write


def test_reading_a_payload_resolves_no_annotations_again():
    form = payload(reads=DeclaredReads(predicates=("a = 1",), files=("f",) * 50)).to_dict()
    assert StagedWrite.from_dict(form).to_dict() == form
    assert calls(lambda: StagedWrite.from_dict(form).to_dict()) < 2_000


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"contract": 2}, ContractVersionException, "contract 2"),
        ({"contract": None}, ContractVersionException, "None"),
        ({"mode": 1}, StagingException, "mode"),
        ({"numFiles": True}, StagingException, "numFiles"),
        ({"reads": "x"}, StagingException, "DeclaredReads"),
    ],
)
def test_a_payload_that_is_not_of_this_form_is_refused(change, error, says):
    with pytest.raises(error, match=says):
        StagedWrite.from_dict(payload().to_dict() | change)


def test_a_sealed_payload_is_read_back():
    write = payload(parameters={"description": "Größe \n \ud800"})
    text = sealed(write)
    assert "Größe" in text
    assert StagedWrite.from_dict(unsealed(text + "\n", "The report")) == write
    # That of a job with an earlier release.
    assert unsealed('{"contract": 1}', "The report") == {"contract": 1}


@pytest.mark.parametrize("damage", [("append", "overwrite"), ('": 0', '": 1'), ("}", "} ")])
def test_a_sealed_payload_that_was_changed_is_refused(damage):
    changed = sealed(payload()).replace(*damage)
    assert changed != sealed(payload())
    with pytest.raises(StagingException, match="The report is damaged"):
        unsealed(changed, "The report")


def test_a_sealed_payload_that_is_cut_off_is_refused():
    text = sealed(payload())
    for end in range(len(text)):
        with pytest.raises((StagingException, ValueError)):
            unsealed(text[:end], "The report")


@pytest.mark.parametrize("value", [None, [], "text", {}])
def test_what_is_no_payload_is_refused(value):
    with pytest.raises(StagingException):
        StagedWrite.from_dict(value)


@pytest.mark.parametrize(
    ("task_id", "map_index", "key"),
    [
        ("load", -1, "load"),
        ("Xload", 0, r"Xload\.0"),
        ("group.load-1_x", 3, r"group\.load-1_x\.3"),
        ("läd", -1, "l-d-[0-9a-f]{8}"),
        ("a b/c", 0, r"a-b-c-[0-9a-f]{8}\.0"),
        (".X_load.", -1, r"X_load\.-[0-9a-f]{8}"),
        ("..", -1, "stage-[0-9a-f]{8}"),
    ],
)
def test_stage_keys_are_safe_and_distinct(task_id, map_index, key):
    found = stage_key(task_id, map_index)
    assert re.fullmatch(key, found)
    assert attempt_directory("t", found, new_attempt(2)).startswith("staged/t/")
    assert stage_key("läd") != stage_key("lod-")


@pytest.mark.parametrize("name", ["a/b", "..", "", "a b", "ü", "a[1]"])
def test_names_that_are_not_safe_in_a_path_are_refused(name):
    with pytest.raises(StagingException):
        attempt_directory("t", name, "1")


OWNER = ("dag", "start", "run")


def test_an_id_tells_whose_it_is():
    """The prefix is fixed: ids of earlier releases are looked for, too."""
    one, other = (owned_transaction_id(*OWNER) for _ in range(2))
    assert one != other
    assert (uuid.UUID(one).version, uuid.UUID(one).variant) == (8, uuid.RFC_4122)
    assert one[:24] == other[:24] == owner_prefix(*OWNER) == "33661f24-c5a8-8df6-8d41-"
    assert is_owned_by(one, *OWNER)
    for stranger in (("Dag", "start", "run"), ("dag", "Start", "run"), ("dag", "start", "Run"), ("start", "dag", "run")):
        assert not is_owned_by(one, *stranger)
        assert owner_prefix(*stranger) != owner_prefix(*OWNER)
    assert not is_owned_by("no UUID", *OWNER)


@pytest.mark.parametrize(
    ("path", "until"),
    [
        ("staged/t/_preview/task/1-a/_kept-17", 17),
        ("s3://lake/t/staged/t/_preview_changes/task/1-a/_kept-17", 17),
        ("staged/t/_preview/task/1-a/17", None),
        ("lake/staged/t/task/_preview/_kept-17", None),  # of a stage
        ("staged/t/_preview/task/1-a/_kept-x", None),
        ("staged/t/stage/1-a/_kept-17", None),
        ("_kept-17", None),
    ],
)
def test_until_when_a_preview_is_kept(path, until):
    assert kept_until(path) == until


def test_a_partition_value_is_null_if_it_is_missing_or_empty():
    assert [partition_text({"p": "x", "q": "", "r": None}, name) for name in "pqrs"] == ["x", None, None, None]
    assert partition_text(None, "p") is None


def test_attempts_of_one_try_differ():
    one, other, later = new_attempt(9), new_attempt(9), new_attempt(10)
    assert one != other
    assert re.fullmatch("1-[0-9a-f]{8}", new_attempt())
    assert [is_later(later, one), is_later(one, other), is_later(one, later), is_later("of-old", one)] == [True] + [False] * 3
    assert is_later("1-a", "of-old")
    assert is_later(marked(later, "0123abcd"), one)


def test_where_a_preview_is():
    assert preview_directory("t", PREVIEW_DIRECTORY, "task", "1-a") == "staged/t/_preview/task/1-a"
    for unsafe in (("a/b", "task", "1-a"), ("t", "a/b", "1-a"), ("t", "task", "a/b")):
        with pytest.raises(StagingException):
            preview_directory(unsafe[0], PREVIEW_DIRECTORY, *unsafe[1:])


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        ("a/b.parquet", False),
        ("_SUCCESS", True),
        ("p=1/.x.crc", True),
        ("_p=1/x.parquet", False),
        (".p=1/x.parquet", False),
        ("_p=1.parquet", True),
        ("_tmp/x.parquet", True),
    ],
)
def test_hidden_paths(path, hidden):
    assert is_hidden(path) is hidden


@pytest.mark.parametrize("damage", [lambda d: None, lambda d: d[:-1], lambda d: d.replace(b"1", b"2"), lambda d: d + b"\n"])
def test_a_manifest_is_what_was_written_or_an_error(damage):
    data = encode_manifest([b'{"add":1}', b'{"add":3}'])
    ref = manifest_ref("m", data, 2)
    assert verify_manifest(ref, data, table="t") == [b'{"add":1}', b'{"add":3}']
    with pytest.raises(ManifestException, match=r"The manifest m of staged files for table t .*Clear the start task"):
        verify_manifest(ref, damage(data), table="t")
    with pytest.raises(ManifestException, match="holds 2 actions, but its stage reported 3"):
        verify_manifest(manifest_ref("m", data, 3), data, table="t")


@pytest.mark.parametrize(
    ("given", "target", "how"),
    [
        ("integer", "long", "widen"),
        ("long", "integer", "checked"),
        ("long", "double", "widen"),
        ("double", "integer", "checked"),
        ("decimal(5,2)", "decimal(7,2)", "widen"),
        ("decimal(5,2)", "decimal(5,3)", "checked"),
        ("integer", "decimal(10,0)", "widen"),
        ("integer", "decimal(9,0)", "checked"),
        ("date", "timestamp", "widen"),
        ("timestamp", "date", "checked"),
        ("boolean", "string", "widen"),
        ("string", "integer", None),
        ("string", "date", None),
        ("boolean", "integer", None),
        ("integer", "boolean", None),
        ("binary", "string", None),
        ("timestamp", "long", None),
        ("void", "binary", "widen"),
    ],
)
def test_store_assignment_is_that_of_ansi_sql(given, target, how):
    assert store_assignment(given, target) == how


@pytest.mark.parametrize(
    ("given", "kept", "lost"),
    [
        ("byte", "short integer long float double decimal(3,0) string", "decimal(2,0) boolean"),
        ("integer", "long double decimal(10,0) decimal(12,2) string", "short float decimal(9,0) decimal(10,1) date"),
        ("long", "decimal(20,0) string", "integer float double decimal(19,0)"),
        ("float", "double string", "long decimal(38,18)"),
        ("double", "string", "float long decimal(38,18)"),
        ("decimal(5,2)", "decimal(7,2) decimal(6,3) string", "decimal(5,3) decimal(5,1) long double"),
        ("date", "timestamp timestamp_ntz string", "integer"),
        ("timestamp", "", "date timestamp_ntz string"),
        ("timestamp_ntz", "string", "date timestamp"),
        ("string", "", "integer date binary timestamp"),
        ("void", "long string", ""),
    ],
)
def test_a_write_makes_no_cast_that_can_lose_a_value(given, kept, lost):
    assert keeps_values(given, given)
    assert [keeps_values(given, target) for target in kept.split()] == [True] * len(kept.split())
    assert [keeps_values(given, target) for target in lost.split()] == [False] * len(lost.split())


@pytest.mark.parametrize("given", ATOMIC_TYPES)
@pytest.mark.parametrize("target", ATOMIC_TYPES)
def test_both_sides_give_the_same_answer_for_a_pair_of_types(given, target):
    """The side that writes rows and the side that merges schemas read one table of casts."""
    one, other = parse_type(given), parse_type(target)
    assert keeps_values(given, target) is widens(one, other)
    assert (
        may_widen(given, target)
        is type_widening.may_change_type(one, other)
        is (given != target and cast_of(given, target) == WIDENS)
    )
    if keeps_values(given, target):
        assert store_assignment(given, target) == WIDEN
    data, table = ({"type": "struct", "fields": [{"name": "a", "type": name, "nullable": True}]} for name in (given, target))
    for merges in (
        lambda: written_schema(data, table, merge=True, table_name="t", version=1, exact=True),
        lambda: merge_schema(parse_type(table), parse_type(data), merge=True),
    ):
        if cast_of(given, target) is None:
            with pytest.raises(SchemaMismatchException, match="column a: expected"):
                merges()
        else:
            merges()


def test_a_new_column_has_no_collation():
    """Spark keeps collations in the metadata of the nearest field; Delta Spark refuses such columns."""
    inner = {"name": "x", "type": "string", "nullable": True, "metadata": {"__COLLATIONS": {"x": "icu.UNICODE"}}}
    fields = [
        {"name": "a", "type": "string", "nullable": True, "metadata": {"__COLLATIONS": {"a": "spark.UTF8_LCASE"}}},
        {"name": "b", "type": {"type": "array", "elementType": {"type": "struct", "fields": [inner]}, "containsNull": True}},
    ]
    table = {"type": "struct", "fields": [{"name": "c", "type": "long", "nullable": True, "metadata": {}}]}
    for known in (None, table):
        with pytest.raises(SchemaMismatchException) as caught:
            written_schema({"type": "struct", "fields": fields}, known, merge=True, table_name="t", version=1)
        assert "column a has the collation spark.UTF8_LCASE" in str(caught.value)
        assert "column b[element].x has the collation icu.UNICODE" in str(caught.value)
    there = {"type": "struct", "fields": [{"name": "a", "type": "string", "nullable": True, "metadata": {}}]}
    assert written_schema({"type": "struct", "fields": fields[:1]}, there, merge=False, table_name="t", version=1) == there


def test_what_travels_to_a_cluster_imports_the_standard_library_only():
    code = (
        "import sys; before = set(sys.modules); import airflow_delta.contract.payloads, airflow_delta.contract.request, "
        "airflow_delta.contract.schema, airflow_delta.contract.staging_directory, airflow_delta.spark.errors, "
        "airflow_delta.spark.package; "
        "new = {m.partition('.')[0] for m in set(sys.modules) - before} - sys.stdlib_module_names; print(new)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'airflow_delta'}"
