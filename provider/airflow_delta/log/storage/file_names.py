"""Names of the files in ``_delta_log`` (Delta's FileNames; protocol, "Delta Log Entries" and "Checkpoints")."""

from __future__ import annotations

from airflow_delta.lazy_patterns import lazy_pattern

LOG_DIRECTORY = "_delta_log"
LAST_CHECKPOINT = f"{LOG_DIRECTORY}/_last_checkpoint"
SIDECAR_DIRECTORY = f"{LOG_DIRECTORY}/_sidecars"

VERSION_DIGITS = 20
COMMIT_SUFFIX = ".json"
CHECKSUM_SUFFIX = ".crc"
CHECKPOINT_SUFFIX = ".checkpoint.parquet"

_MULTI_PART = lazy_pattern(r"\.checkpoint\.(\d{10})\.(\d{10})\.parquet")
_UUID_CHECKPOINT = lazy_pattern(r"\.checkpoint\.[0-9a-fA-F-]{36}\.(?:json|parquet)")
_COMPACTION = lazy_pattern(r"\.(\d{20})\.compacted\.json")


def version_prefix(version: int) -> str:
    """Return the 20 digits that begin the name of every file of a version."""
    return f"{version:020d}"


def commit_file(version: int) -> str:
    """Return the path of a commit, relative to the table root."""
    return f"{LOG_DIRECTORY}/{version:020d}{COMMIT_SUFFIX}"


def checksum_file(version: int) -> str:
    """Return the path of a version's checksum file, relative to the table root."""
    return f"{LOG_DIRECTORY}/{version:020d}{CHECKSUM_SUFFIX}"


def checkpoint_file(version: int) -> str:
    """Return the path of a single-part classic checkpoint, relative to the table root."""
    return f"{LOG_DIRECTORY}/{version:020d}{CHECKPOINT_SUFFIX}"


def checkpoint_parts(version: int, parts: int) -> list[str]:
    """Return the paths of a multi-part classic checkpoint, first part first."""
    return [f"{LOG_DIRECTORY}/{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]


def manifest_file(version: int, unique: str, extension: str) -> str:
    """Return the path of a V2 checkpoint's manifest, relative to the table root.

    :param unique: a UUID.
    :param extension: ``json`` or ``parquet``.
    """
    return f"{LOG_DIRECTORY}/{version:020d}.checkpoint.{unique}.{extension}"


def sidecar_file(version: int, part: int, parts: int, unique: str) -> str:
    """Return the path of a sidecar of a V2 checkpoint, relative to the table root."""
    return f"{SIDECAR_DIRECTORY}/{version:020d}.checkpoint.{part:010d}.{parts:010d}.{unique}.parquet"


def split_version(name: str) -> tuple[int, str] | None:
    """Return the version and the rest of a file name, or ``None`` if the name does not start with a version."""
    digits = name[:VERSION_DIGITS]
    if len(digits) == VERSION_DIGITS and digits.isascii() and digits.isdigit():
        return int(digits), name[VERSION_DIGITS:]
    return None


def multi_part(rest: str) -> tuple[int, int] | None:
    """Return (part, number of parts) if ``rest``, a name without its version, is a part of a multi-part checkpoint."""
    match = _MULTI_PART.fullmatch(rest)
    return (int(match[1]), int(match[2])) if match else None


def is_uuid_checkpoint(rest: str) -> bool:
    """Tell whether ``rest``, a name without its version, is the manifest of a V2 checkpoint."""
    return _UUID_CHECKPOINT.fullmatch(rest) is not None


def compaction_end(rest: str) -> int | None:
    """Return the last version if ``rest``, a name without its first version, is a log compaction file, else ``None``."""
    match = _COMPACTION.fullmatch(rest)
    return int(match[1]) if match else None


def commit_version(path: str) -> int | None:
    """Return the version of a commit file, given its path or name, or ``None`` if it is not a commit file."""
    split = split_version(path.rpartition("/")[2])
    return split[0] if split is not None and split[1] == COMMIT_SUFFIX else None
