"""What an older Spark than 4 cannot do with a table: told when a job is planned for it, else by the job itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_delta.contract.audit import AUDIT_OPERATION, AuditArguments
from airflow_delta.contract.delta_names import TYPE_CHANGES
from airflow_delta.contract.payloads import ScanPlan
from airflow_delta.contract.schema import variant_columns
from airflow_delta.contract.schema_string import parse_struct
from airflow_delta.exceptions import DeltaIllegalArgumentException, SparkVersionException

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import Json
    from airflow_delta.contract.request import StageRequest
    from airflow_delta.contract.schema import Type

OLDEST, SINCE_VARIANTS = (3, 5), (4, 0)
"""The oldest Spark on which a job works, and the first that has variants and reads files from before a type was widened."""

WAY_OUT = "Run this stage on Spark 4."

_SMALL = {"byte", "short", "integer"}
"""Types that Parquet stores alike: every Spark reads one as another."""


def parse_version(text: object) -> tuple[int, int]:
    """Return the major and the minor version of a Spark, such as of ``3.5`` or ``3.5.4-amzn-0``.

    :raises DeltaIllegalArgumentException: if the text is not a version of Spark.
    """
    found = re.match(r"(\d+)\.(\d+)(?![\d])", text) if isinstance(text, str) else None
    if found is None:
        raise DeltaIllegalArgumentException(f"{text!r} is not a version of Spark, such as '3.5' or '4.0.2'.")
    return int(found[1]), int(found[2])


def check_version(version: str) -> None:
    """Refuse a Spark that no job works on.

    :raises SparkVersionException: if it is older than 3.5.
    """
    if parse_version(version) < OLDEST:
        raise SparkVersionException(f"A job needs Spark 3.5 or newer, and this one is to run on Spark {version}.")


def check_request(version: str, request: StageRequest) -> None:
    """Refuse a request that a Spark cannot carry out.

    :raises SparkVersionException: if the table, or one that the job reads, has columns that this Spark cannot read or write.
    """
    check_version(version)
    if parse_version(version) >= SINCE_VARIANTS:
        return
    schema = None if request.overwrite_schema else request.schema_string
    if schema is not None and (names := variant_columns(parse_struct(schema))):
        raise request.error(SparkVersionException, _no_variants(version, names, request.table))
    beside = (*(source.scan for source in request.sources), *(view.scan for view in request.views), *_audited(request))
    for scan in (request.scan, request.rewrite, *beside):
        if scan is not None:
            check_scan(version, scan)


def _audited(request: StageRequest) -> Iterator[ScanPlan]:
    if request.operation == AUDIT_OPERATION:
        yield from map(ScanPlan.from_dict, AuditArguments.of(request).views.values())


def check_scan(version: str, plan: ScanPlan) -> None:
    """Refuse a scan that a Spark cannot do.

    :raises SparkVersionException: if a column has a variant, or a type that files written before do not have.
    """
    if not plan.files or parse_version(version) >= SINCE_VARIANTS:
        return
    struct = parse_struct(plan.schema_string)
    if names := variant_columns(struct):
        raise plan.error(SparkVersionException, _no_variants(version, names, plan.table))
    partition = {name.lower() for name in plan.partition_columns}  # their values are in the log
    in_files = [field for field in struct["fields"] if field["name"].lower() not in partition]
    if changes := sorted({change for field in in_files for change in _widened(field)}):
        raise plan.error(
            SparkVersionException,
            f"Spark {version} cannot read files from before a column got a wider type, and columns of table {plan.table} did: "
            f"{', '.join(changes)}. {WAY_OUT}",
        )


def _no_variants(version: str, names: list[str], table: str) -> str:
    columns = f"the column{'s' * (len(names) > 1)} {', '.join(names)}"
    return f"Spark {version} has no variants, and table {table} has them in {columns}. {WAY_OUT}"


def _widened(field: Json) -> Iterator[str]:
    """Yield the changes of type that Spark 3.5 does not follow, of a column and of what is inside."""
    for change in (field.get("metadata") or {}).get(TYPE_CHANGES, ()):
        kinds = str(change["fromType"]), str(change["toType"])
        if not set(kinds) <= _SMALL:
            yield f"{field['name']} from {kinds[0]} to {kinds[1]}"
    yield from _inside(field["type"])


def _inside(data_type: Type) -> Iterator[str]:
    if isinstance(data_type, str):
        return
    for field in data_type.get("fields", ()):
        yield from _widened(field)
    for part in ("elementType", "keyType", "valueType"):
        if part in data_type:
            yield from _inside(data_type[part])
