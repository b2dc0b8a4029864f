"""Table properties: defaults, types, spelling and what is refused."""

from __future__ import annotations

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.features.properties import DAY, HOUR, PROPERTIES, TableProperties, check_together, parse_interval, validate


def test_defaults_are_deltas():
    p = TableProperties({})
    assert (p.checkpoint_interval, p.isolation_level, p.append_only) == (10, "Serializable", False)
    assert (p.log_retention, p.deleted_file_retention, p.set_transaction_retention) == (30 * DAY, 7 * DAY, None)
    assert (p.data_skipping_num_indexed_cols, p.data_skipping_string_prefix_length) == (32, 32)
    assert (p.checkpoint_write_stats_as_json, p.checkpoint_write_stats_as_struct, p.enable_expired_log_cleanup) == (True,) * 3
    for key in PROPERTIES:
        p.get(key)


def test_values_are_typed_and_keys_of_any_case_are_found():
    p = TableProperties(
        {"delta.checkpointinterval": "3", "delta.appendOnly": "TRUE", "delta.isolationLevel": "writeSerializable"}
    )
    assert (p.checkpoint_interval, p.append_only, p.isolation_level) == (3, True, "WriteSerializable")
    with pytest.raises(DeltaIllegalArgumentException, match=r"checkpointInterval.*'often'"):
        TableProperties({"delta.checkpointInterval": "often"}).checkpoint_interval  # noqa: B018


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("interval 7 days", 7 * DAY),
        ("INTERVAL 1 week", 7 * DAY),
        ("30 days", 30 * DAY),
        ("interval 1 day 2 hours", DAY + 2 * HOUR),
        ("interval 1.5 seconds", 1500),
        ("interval 0 days", 0),
    ],
)
def test_intervals(text, milliseconds):
    assert parse_interval(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["interval 1 month", "interval 2 years", "interval -1 days", "7", "", "interval", "interval 1.5 days", "x days"]
)
def test_bad_intervals(text):
    with pytest.raises(ValueError, match=r"interval|months|negative"):
        parse_interval(text)


def test_keys_get_deltas_spelling_and_free_keys_stay():
    given = {"DELTA.APPENDONLY": "true", "owner": "me", "delta.feature.domainMetadata": "supported"}
    assert validate(given) == {"delta.appendOnly": "true", "owner": "me", "delta.feature.domainMetadata": "supported"}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("delta.apendOnly", "true", "Unknown table property delta.apendOnly for s3://t; did you mean delta.appendOnly"),
        ("delta.zzzzzzz", "1", "Unknown table property delta.zzzzzzz"),
        ("delta.appendOnly", "yes", "delta.appendOnly for s3://t: must be 'true' or 'false'"),
        ("delta.checkpointInterval", "0", "must be at least 1, got 0"),
        ("delta.logRetentionDuration", "interval 1 month", "months"),
        ("delta.isolationLevel", "WriteSerializable", "can only be set to Serializable"),
        ("delta.isolationLevel", "Chaos", "must be one of"),
        ("delta.columnMapping.maxColumnId", "3", "cannot be set.*DELTA_CANNOT_MODIFY_TABLE_PROPERTY"),
        ("delta.columnMapping.mode", "foo", "must be one of none, id, name"),
        ("delta.constraints.c", "a > 1", "ADD CONSTRAINT.*DELTA_ADD_CONSTRAINTS"),
        ("delta.parquet.format.version", "9", "can only be set to 1.0.0"),
        ("delta.autoOptimize.autoCompact", "auto", "can only be set to true or false"),
        ("delta.universalFormat.enabledFormats", "iceberg,foo", "each once and without spaces, got .iceberg,foo."),
        ("delta.universalFormat.enabledFormats", "Hudi, iceberg", "must be a list of hudi and iceberg"),
        ("delta.universalFormat.enabledFormats", ",hudi", "must be a list of hudi and iceberg"),
        ("delta.universalFormat.enabledFormats", "hudi,hudi", "must be a list of hudi and iceberg"),
        ("delta.coordinatedCommits.tableConf-preview", "[]", "must be a JSON object"),
        ("delta.coordinatedCommits.tableConf-preview", "{", "must be a JSON object"),
        ("delta.feature.x", "on", "'supported' or 'enabled'"),
        ("delta.appendOnly", True, "must be a string"),
    ],
)
def test_refused_by_name(key, value, said):
    with pytest.raises(DeltaIllegalArgumentException, match=said):
        validate({key: value}, table="s3://t")


def test_a_key_in_two_spellings_is_refused():
    with pytest.raises(DeltaIllegalArgumentException, match="twice"):
        validate({"delta.appendOnly": "true", "delta.appendonly": "false"})


def test_a_new_table_may_come_with_constraints():
    assert validate({"Delta.Constraints.c": "a > 1"}, new_table=True) == {"delta.constraints.c": "a > 1"}


def test_what_other_engines_set_is_honoured_on_reading():
    p = TableProperties({"delta.autoOptimize.autoCompact": "auto", "delta.isolationLevel": "SnapshotIsolation"})
    assert (p.get("autoOptimize.autoCompact"), p.isolation_level) == ("auto", "SnapshotIsolation")


@pytest.mark.parametrize(
    ("configuration", "changed", "said"),
    [
        (
            {"delta.logRetentionDuration": "1 day"},
            ["delta.logRetentionDuration"],
            r"\(1 days\) must not be shorter than .* \(7 days\)",
        ),
        ({"delta.deletedFileRetentionDuration": "60 days"}, ["delta.deletedFileRetentionDuration"], r"\(30 days\) must not be"),
        ({"delta.enableRowTracking": "true", "delta.rowTrackingSuspended": "true"}, [], "ILLEGAL_PROPERTY_COMBINATION"),
    ],
)
def test_properties_that_contradict_each_other(configuration, changed, said):
    with pytest.raises(DeltaIllegalArgumentException, match=said):
        check_together(configuration, changed, table="s3://t")


def test_what_was_there_before_is_not_checked_together():
    check_together({"delta.logRetentionDuration": "1 day", "x": "y"}, ["x"])
    check_together(
        {"delta.logRetentionDuration": "60 days", "delta.deletedFileRetentionDuration": "60 days"}, ["delta.logRetentionDuration"]
    )
