"""Files of a scan plan by Spark's names for them; also used by the worker."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_delta.exceptions import StagingException
from airflow_delta.spark.paths import data_file_uri, normal_form, normal_form_of_metadata
from airflow_delta.staging.contract import ScanFile, ScanPlan

FILE, NUMBER, WORD = "file", "number", "word"
"""Columns of deleted rows: the file as in Spark's ``_metadata.file_path``, and words of 64 rows."""


def files_by_uri(plan: ScanPlan, files: Sequence[ScanFile] | None = None) -> dict[str, ScanFile]:
    """Return the files of a plan by the normal form of their URI."""
    return {normal_form(data_file_uri(plan.table, file.path)): file for file in (plan.files if files is None else files)}


def file_of(known: dict[str, ScanFile], metadata_path: str) -> ScanFile:
    """Return the file of a plan by its ``_metadata.file_path``.

    :param known: from :func:`files_by_uri`.
    :raises StagingException: if it is not in the plan.
    """
    file = known.get(normal_form_of_metadata(metadata_path))
    if file is None:
        raise StagingException(
            f"A row was read from {metadata_path}, which is not in the scan plan. Clear the start task with "
            "everything downstream."
        )
    return file
