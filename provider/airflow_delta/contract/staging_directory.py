"""Names under a table's staging directory: ``staged/<transactionId>/<stage>/<attempt>/...``.

The directory name is visible, so that any engine's VACUUM deletes files that were never published. Stage keys and attempts use
only characters that no file system, URI or glob treats specially.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid

from airflow_delta.exceptions import StagingException
from airflow_delta.lazy_patterns import lazy_pattern

STAGING_DIRECTORY = "staged"
"""Directory of staged files, relative to the table root."""

MANIFEST_NAME = "_manifest.json"
KEYS_NAME = "keys.jsonl"
REPORT_DIRECTORY = "reports"
"""In an attempt's directory: a directory for the report of each run of its job. Spark does not list what begins with ``_``."""
COLLECTED_NAME = "collected.json"
"""Beside it: which of the reports was collected."""
REQUEST_NAME = "request.json"
SCAN_DIRECTORY = "_scans"
PREVIEW_DIRECTORY = "_preview"
"""Below a transaction's directory, by task and attempt: Delta tables that show what the commit would publish."""
CHANGES_DIRECTORY = "_preview_changes"
"""In the same place: Delta tables of the rows that the commit would change."""
NO_TASK = "_no_task"
"""What stands for the task there if none writes the preview; no :func:`stage_key` begins like that."""
KEPT_PREFIX = "_kept-"
"""Prefix of the name of a file beside previews that stay after the commit; the time until which follows, in milliseconds."""
ABORT_MARKER = "_aborted"
"""Aborts the transaction: its commit refuses from then on."""
COMMITTED_MARKER = "_committed"
"""Says that the log holds the transaction, for an attempt that could not; earlier releases always put it."""
COMMIT_MARKER_PREFIX = "_commit-"
"""Prefix of the numbers that attempts of the commit and deletions take: ``_commit-0``, ``_commit-1``, ..."""

PLAN_PREFIX = "publication-"
"""What the names of a publication's plan, and of the staged writes that it names, begin with."""
PLAN_ENDED = ".ended"
"""Suffix, instead of ``.json``, of the note beside the anchor's plan that the publication has ended on every table."""

OWNER_LENGTH = 24
"""Characters of a transaction's id that name its owner; the rest is random."""

_UNSAFE = lazy_pattern(r"[^A-Za-z0-9_.-]")
_MARKED = lazy_pattern(r"[0-9]+-[0-9a-f]{8}-[0-9a-f]{8}")
_COPIED = lazy_pattern(r"[0-9a-f]{8}-copied(-\d+)?")
_SAFE_NAME = lazy_pattern(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def stage_key(task_id: str, map_index: int = -1) -> str:
    """Return the key of a stage: its task id and map index (if mapped) in safe characters.

    A task id with other characters keeps its readable part and gets a digest, so that two ids never share a key.
    """
    safe = _UNSAFE.sub("-", task_id).lstrip("._") or "stage"
    if safe != task_id:
        safe = f"{safe}-{hashlib.sha256(task_id.encode()).hexdigest()[:8]}"
    return safe if map_index < 0 else f"{safe}.{map_index}"


def new_attempt(try_number: int = 1) -> str:
    """Return a name for one execution of a stage or commit, unique even among executions of the same try."""
    return f"{try_number}-{uuid.uuid4().hex[:8]}"


def is_later(attempt: str, other: str) -> bool:
    """Return whether an attempt is of a later try than another one."""
    return _try_of(attempt) > _try_of(other)


def _try_of(attempt: str) -> int:
    number = attempt.partition("-")[0]
    return int(number) if number.isdecimal() else 0


def marked(attempt: str, mark: str) -> str:
    """Return the name of an attempt that shows for which table its rows were checked.

    :param mark: eight hexadecimal digits.
    """
    return f"{attempt}-{mark}"


def is_marked(name: str) -> bool:
    """Return whether a name is one of :func:`marked`."""
    return _MARKED.fullmatch(name) is not None


def owned_transaction_id(dag_id: str, start_task_id: str, run_id: str) -> str:
    """Return an id for one execution of a start task: a UUID (version 8) that starts with a digest of its owner."""
    return _owned_id(_digest_of(dag_id, start_task_id, run_id), os.urandom(6))


def is_owned_by(transaction_id: str, dag_id: str, start_task_id: str, run_id: str) -> bool:
    """Return whether :func:`owned_transaction_id` made an id for this start task in this run."""
    try:
        value = uuid.UUID(transaction_id)
    except ValueError:
        return False
    return transaction_id == _owned_id(_digest_of(dag_id, start_task_id, run_id), value.bytes[10:])


def owner_prefix(dag_id: str, start_task_id: str, run_id: str) -> str:
    """Return what all ids of :func:`owned_transaction_id` begin with, to look for the owners of many at once."""
    return _owned_id(_digest_of(dag_id, start_task_id, run_id), bytes(6))[:OWNER_LENGTH]


def _digest_of(dag_id: str, start_task_id: str, run_id: str) -> bytes:
    return hashlib.sha256(json.dumps([dag_id, start_task_id, run_id]).encode()).digest()[:10]


def _owned_id(digest: bytes, tail: bytes) -> str:
    value = bytearray(digest + tail)
    value[6] = 0x80 | (value[6] & 0x0F)
    value[8] = 0x80 | (value[8] & 0x3F)
    return str(uuid.UUID(bytes=bytes(value)))


def transaction_directory(transaction_id: str) -> str:
    """Return the staging directory of a transaction, relative to the table root."""
    return f"{STAGING_DIRECTORY}/{_safe(transaction_id)}"


def attempt_directory(transaction_id: str, stage: str, attempt: str) -> str:
    """Return the directory of one attempt of a stage, relative to the table root."""
    return f"{transaction_directory(transaction_id)}/{_safe(stage)}/{_safe(attempt)}"


def holds_copies(path: str) -> bool:
    """Return whether a file of an attempt has only rows that stay as they were, by the directory that a rewrite gives it.

    :param path: below the attempt's directory, not URL-encoded.
    """
    directory, separator, _ = path.partition("/")
    return bool(separator) and _COPIED.fullmatch(directory) is not None


def preview_directory(transaction_id: str, kind: str, task: str, attempt: str) -> str:
    """Return the directory of a preview, relative to the table root.

    :param kind: ``PREVIEW_DIRECTORY`` or ``CHANGES_DIRECTORY``.
    :param task: key of the task that writes it, from :func:`stage_key`, or ``NO_TASK``.
    """
    return f"{transaction_directory(transaction_id)}/{kind}/{_safe(task)}/{_safe(attempt)}"


def is_preview(location: str) -> bool:
    """Return whether a table's location, or a path, is that of a preview, or below one."""
    parts = location.split("/")
    places = (index for index, part in enumerate(parts) if part == STAGING_DIRECTORY)
    return any(part in (PREVIEW_DIRECTORY, CHANGES_DIRECTORY) for index in places for part in parts[index + 2 : index + 3])


def kept_until(path: str) -> int | None:
    """Return until when the preview that a file is in stays, if the file says so; milliseconds since the epoch."""
    text = path.rpartition("/")[2].removeprefix(KEPT_PREFIX)
    return int(text) if text.isdecimal() and is_preview(path) and path.endswith(f"/{KEPT_PREFIX}{text}") else None


def is_plan(name: str) -> bool:
    """Return whether a name directly below a transaction's directory is that of a publication's plan, or of its staged writes."""
    return name.startswith(PLAN_PREFIX)


def is_marker(name: str) -> bool:
    """Return whether a name directly below a transaction's directory is a marker's."""
    return name in (ABORT_MARKER, COMMITTED_MARKER) or name.startswith(COMMIT_MARKER_PREFIX)


def is_hidden(relative_path: str) -> bool:
    """Return whether a file is hidden: its name, or that of a directory above it, begins with ``_`` or ``.``.

    Directories ``name=value`` are not: a partition column may have such a name (Delta's rule; Spark's listings hide
    ``.name=value``).
    """
    *directories, name = relative_path.split("/")
    return name.startswith(("_", ".")) or any(part.startswith(("_", ".")) and "=" not in part for part in directories)


def _safe(name: str) -> str:
    if not _SAFE_NAME.fullmatch(name):
        raise StagingException(f"{name!r} cannot be part of a staging path: only letters, digits, '_', '.' and '-' are safe")
    return name
