"""What the options of Spark's Parquet writer mean to the writer of the worker."""

from __future__ import annotations

from airflow_delta.contract.options import COMPRESSION, writer_option_problem
from airflow_delta.contract.request import StageRequest
from airflow_delta.exceptions import DeltaIllegalArgumentException


def writer_options(request: StageRequest) -> tuple[str, int | None]:
    """Return the codec, and the number of rows of a file at most (``None`` for any).

    :raises DeltaIllegalArgumentException: if the request has an option that only Spark has, or a wrong value.
    """
    compression, most_rows = "snappy", None
    for name, value in request.options.items():
        if (problem := writer_option_problem(name, value)) is not None:
            raise request.error(
                DeltaIllegalArgumentException, f"The stage {request.task_id!r} has {problem} (table {request.table})."
            )
        if name.lower() == "compression":
            compression = COMPRESSION[str(value).lower()]
        else:
            most_rows = int(value) or None
    return compression, most_rows
