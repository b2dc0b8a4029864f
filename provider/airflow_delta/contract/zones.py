"""Partition values of TIMESTAMP columns without a time zone: Spark's session decides what they mean, as in Delta Spark.

Rewritten rows stay in the partition as the log spells it, so that they keep their value for readers in every time zone.
"""

from __future__ import annotations

from airflow_delta.contract.delta_names import PHYSICAL_NAME
from airflow_delta.contract.partition_texts import partition_text
from airflow_delta.contract.payloads import ScanPlan
from airflow_delta.contract.schema import find_field
from airflow_delta.contract.schema_string import parse_struct
from airflow_delta.lazy_patterns import lazy_pattern

AS_IN_LOG = "as in the log"
"""``time_zone`` of a report: strings without a zone in directory names are the log's partition values; the others end in Z."""

_ZONELESS = lazy_pattern(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[ T][0-9:.]*)?")


def zoneless_values(plan: ScanPlan | None) -> dict[str, set[str]]:
    """Return the partition values without a time zone of the files of a plan, by column name."""
    found: dict[str, set[str]] = {}
    if plan is None or not plan.partition_columns:
        return found
    schema = parse_struct(plan.schema_string)
    for field in (find_field(schema, name) for name in plan.partition_columns):
        if field is None or field["type"] != "timestamp":
            continue
        mapped = plan.column_mapping != "none"
        name = str((field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"]) if mapped else field["name"])
        texts = {partition_text(file.partition_values, name) for file in plan.files}
        if kept := {text for text in texts if text is not None and _is_zoneless(text)}:
            found[field["name"]] = kept
    return found


def _is_zoneless(text: str) -> bool:
    """Return whether a partition value of a timestamp lacks a time zone."""
    return _ZONELESS.fullmatch(text.strip()) is not None


def zone_of_directories(plan: ScanPlan | None) -> str:
    """Return ``time_zone`` of a report: how directories of rewritten files of a plan name timestamps."""
    return AS_IN_LOG if zoneless_values(plan) else "UTC"
