"""Rules of UniForm and IcebergCompat: refused with Delta's error class; formats that our commits leave stale are refused too."""

from __future__ import annotations

import pytest

from airflow_delta.exceptions import DeltaUnsupportedOperationException
from airflow_delta.log.features.schema_checks import check_table_metadata
from airflow_delta.log.features.universal_format import check_universal_format, enabled_versions, format_violation
from support.actions import column, metadata

FORMATS, MODE = "delta.universalFormat.enabledFormats", "delta.columnMapping.mode"
V1, V2, V3 = (f"delta.enableIcebergCompatV{version}" for version in (1, 2, 3))
VECTORS, TRACKING = "delta.enableDeletionVectors", "delta.enableRowTracking"
ID, TINY = column("id", "long"), column("c", "byte")
UNIFORM, COMPAT = "DELTA_UNIVERSAL_FORMAT_VIOLATION", "DELTA_ICEBERG_COMPAT_VIOLATION"


def with_properties(given, *columns):
    return metadata(*(columns or (ID,)), configuration=given)


def listed(element):
    return {"type": "array", "elementType": element, "containsNull": True}


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({FORMATS: "iceberg"}, f"requires delta.enableIcebergCompatV1, V2 or V3 .{UNIFORM}"),
        ({FORMATS: "iceberg,hudi"}, "requires delta.enableIcebergCompatV1"),
        ({FORMATS: "hudi"}, f"names hudi, whose metadata this provider does not write .{UNIFORM}"),
        ({FORMATS: "iceberg", V2: "true"}, "names iceberg, whose metadata"),
    ],
)
def test_formats_that_our_commits_leave_stale_are_refused(properties, said):
    asked = with_properties({**properties, MODE: "name"})
    with pytest.raises(DeltaUnsupportedOperationException, match=said):
        check_universal_format(asked)
    with pytest.raises(DeltaUnsupportedOperationException, match=said):
        check_universal_format(asked, with_properties({MODE: "name"}))
    if format_violation(asked) is None:
        check_universal_format(asked, asked)  # it was there, set by Delta Spark
    check_universal_format(with_properties({FORMATS: ""}), asked)


def test_the_error_names_the_table():
    with pytest.raises(DeltaUnsupportedOperationException, match=r"Metadata of table t: delta\.universalFormat") as raised:
        check_table_metadata(with_properties({FORMATS: "hudi"}), table="t", version=3)
    assert (raised.value.table, raised.value.version) == ("t", 3)


@pytest.mark.parametrize("kind", ["void", "byte", "short", "timestamp_ntz", listed("byte")])
def test_hudi_rules_out_types_at_any_depth(kind):
    bad = with_properties({FORMATS: "hudi"}, ID, column("s", {"type": "struct", "fields": [column("x", kind)]}))
    with pytest.raises(DeltaUnsupportedOperationException, match=f"rules out columns of type .*{UNIFORM}"):
        check_universal_format(bad, with_properties({FORMATS: "hudi"}))


def test_what_a_table_already_breaks_is_no_excuse():
    broken = with_properties({FORMATS: "hudi", VECTORS: "true"})
    assert "deletion vectors" in (format_violation(broken) or "")
    with pytest.raises(DeltaUnsupportedOperationException, match=UNIFORM):
        check_universal_format(broken, broken)
    check_universal_format(with_properties({FORMATS: "hudi", VECTORS: "false"}), broken)


@pytest.mark.parametrize("text", ["", ",", "foo", "HUDI", " iceberg"])
def test_what_delta_does_not_know_as_a_format_breaks_nothing(text):
    assert format_violation(with_properties({FORMATS: text, VECTORS: "true"}, TINY)) is None


@pytest.mark.parametrize(
    ("properties", "columns", "kind"),
    [
        ({V1: "true", V2: "true"}, (ID,), "VERSION_MUTUAL_EXCLUSIVE"),
        ({V2: "true", V3: "true", VECTORS: "true"}, (column("c", "void"),), "VERSION_MUTUAL_EXCLUSIVE"),
        ({V1: "true", MODE: "none"}, (ID,), "WRONG_REQUIRED_TABLE_PROPERTY"),
        ({V2: "true", MODE: "none", V1: "true"}, (ID,), "WRONG_REQUIRED_TABLE_PROPERTY"),
        ({V3: "true", TRACKING: "false"}, (ID,), "WRONG_REQUIRED_TABLE_PROPERTY"),
        ({V1: "true"}, (column("c", listed("long")),), "UNSUPPORTED_DATA_TYPE"),
        ({V2: "true"}, (column("c", listed("variant")),), "UNSUPPORTED_DATA_TYPE"),
        ({V3: "true"}, (column("c", "void"),), "UNSUPPORTED_DATA_TYPE"),
        ({V1: "true", VECTORS: "true"}, (ID,), "DELETION_VECTORS_SHOULD_BE_DISABLED"),
        ({V2: "true", VECTORS: "true"}, (ID,), "DELETION_VECTORS_SHOULD_BE_DISABLED"),
    ],
)
def test_what_iceberg_compat_rules_out(properties, columns, kind):
    with pytest.raises(DeltaUnsupportedOperationException, match=rf"{COMPAT}\.{kind}\)"):
        check_universal_format(with_properties(properties, *columns))


@pytest.mark.parametrize(
    ("properties", "columns"),
    [
        ({V1: "true", MODE: "id"}, (column("c", "timestamp_ntz"),)),
        ({V2: "true"}, (column("c", listed(listed("short"))), column("d", "decimal(10,2)"))),
        ({V3: "true", VECTORS: "true"}, (column("c", "variant"),)),
        ({V1: "false", V2: "true"}, (ID,)),
    ],
)
def test_what_iceberg_compat_allows(properties, columns):
    check_universal_format(with_properties(properties, *columns))
    assert len(enabled_versions(with_properties(properties))) == 1


def test_what_iceberg_compat_asks_of_an_existing_table():
    def refused(new, old, kind):
        with pytest.raises(DeltaUnsupportedOperationException, match=rf"{COMPAT}\.{kind}\)"):
            check_universal_format(new, old)

    refused(with_properties({V2: "true"}), with_properties({}), "WRONG_REQUIRED_TABLE_PROPERTY")
    mapped = {V2: "true", MODE: "name"}
    # Vectors must have been off before: others may still be writing them.
    refused(
        with_properties({**mapped, VECTORS: "false"}), with_properties({VECTORS: "true"}), "DELETION_VECTORS_SHOULD_BE_DISABLED"
    )
    by = metadata(ID, column("p"), partition_by=["p"])
    refused(metadata(ID, column("p"), configuration=mapped), by, "REPLACE_TABLE_CHANGE_PARTITION_NAMES")
    check_universal_format(metadata(ID, column("p"), partition_by=["p"], configuration=mapped), by)
    decimal = metadata(ID, column("p", "decimal(9,2)"), partition_by=["p"], configuration={V3: "true"})
    with pytest.raises(DeltaUnsupportedOperationException, match="UNSUPPORTED_PARTITION_DATA_TYPE"):
        check_universal_format(decimal)
