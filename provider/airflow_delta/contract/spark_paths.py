"""One form for the paths of files that the log, Hadoop and Spark spell differently, and the files of a scan plan by it.

The log holds URL-encoded paths; Spark takes raw ones, with ``[ ] { } * ?`` as globs; ``_metadata.file_path`` is encoded by
Hadoop's rules. The normal form is ``authority/path`` with nothing encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from airflow_delta.contract.location import GCS, S3, store_of
from airflow_delta.contract.payloads import ScanFile, ScanPlan
from airflow_delta.exceptions import StagingException
from airflow_delta.lazy_patterns import lazy_pattern

_SCHEME = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]*:")
_RENAMED = (S3, GCS)
"""Stores of which all schemes have the same authority."""
_SAFE = lazy_pattern(r"[A-Za-z0-9_.~=+@:/-]*")
"""Names that Hadoop does not encode."""
_GLOB = lazy_pattern(r"([{}\[\]*?\\])")


def data_file_uri(table: str, log_path: str) -> str:
    """Return the raw URI of a data file.

    :param table: raw URI of the table for Spark.
    :param log_path: path in the log: URL-encoded, relative to the table or absolute.
    """
    path = unquote(log_path)
    if not path.startswith("/") and not _SCHEME.match(path):
        return f"{table.rstrip('/')}/{path}"
    store = store_of(path)
    if store in _RENAMED and store_of(table) == store:  # a file in another bucket: Spark opens it by the table's scheme
        return f"{table.partition('://')[0]}://{path.partition('://')[2]}"
    return path


def escape_glob(uri: str) -> str:
    """Return a URI that Spark's readers take literally.

    Hadoop cannot expand a pattern in a path with a colon; Spark and Delta never write a colon into a path.
    """
    return _GLOB.sub(r"\\\1", uri)


def normal_form(raw_uri: str) -> str:
    """Return ``authority/path`` of a raw URI: without scheme, and the same for ``file:/x`` and ``file:///x``."""
    scheme = _SCHEME.match(raw_uri)
    rest = raw_uri[scheme.end() :] if scheme else raw_uri
    return rest[2:] if rest.startswith("//") else rest


def normal_form_of_metadata(file_path: str) -> str:
    """Return the normal form of Spark's ``_metadata.file_path``."""
    return normal_form(unquote(file_path))


def is_encoded(normal: str) -> bool:
    """Return whether Spark's ``_metadata.file_path`` may have something encoded for a path of this normal form."""
    return _SAFE.fullmatch(normal) is None


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
