"""Table properties: Delta's keys, their types and defaults (Delta's ``DeltaConfigs``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from airflow_delta.contract.delta_names import (
    APPEND_ONLY,
    CHECKPOINT_POLICY,
    CHECKPOINT_STATS_AS_JSON,
    CHECKPOINT_STATS_AS_STRUCT,
    COLUMN_MAPPING_MODE,
    CONSTRAINT_PREFIX,
    DATA_SKIPPING_STATS_COLUMNS,
    ENABLE_DELETION_VECTORS,
    ENABLE_IN_COMMIT_TIMESTAMPS,
    ENABLE_ROW_TRACKING,
    FEATURE_PREFIX,
    IGNORE_PROTOCOL_DEFAULTS,
    ISOLATION_LEVEL,
    LOG_RETENTION_DURATION,
    MIN_READER_VERSION,
    MIN_WRITER_VERSION,
    ROW_TRACKING_SUSPENDED,
    SET_TRANSACTION_RETENTION_DURATION,
    UNIVERSAL_FORMAT,
)
from airflow_delta.contract.near_words import near_words
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass

PREFIX = "delta."

SETTABLE_ISOLATION_LEVELS = ("Serializable",)
"""Values of ``delta.isolationLevel`` that may be set, as in Delta. Other values are respected if a table already has them."""

READABLE_ISOLATION_LEVELS = ("Serializable", "WriteSerializable", "SnapshotIsolation")

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
WEEK = 7 * DAY

_UNITS = {
    "week": WEEK * 1_000,
    "day": DAY * 1_000,
    "hour": HOUR * 1_000,
    "minute": MINUTE * 1_000,
    "second": SECOND * 1_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
_INTERVAL_PART = lazy_pattern(r"([+-]?\d{1,18}(?:\.\d++)?)\s++([a-z]++)", re.ASCII)


def parse_interval(text: str) -> int:
    """Return the length of a calendar interval such as ``interval 7 days`` in milliseconds.

    The word ``interval`` may be omitted; several parts add up (``interval 1 day 12 hours``).

    :raises ValueError: if the text is not an interval, has months or years (their length varies), or is negative.
    """
    body = " ".join(text.strip().lower().split())
    body = body.removeprefix("interval").strip()
    total, at = 0, 0
    while at < len(body):
        part = _INTERVAL_PART.match(body, at)
        if part is None:
            raise ValueError(f"{text!r} is not an interval such as 'interval 7 days'")
        amount, unit = part[1], part[2].removesuffix("s")
        if unit in ("month", "year"):
            raise ValueError(f"{text!r} has months or years, whose length varies; use days or weeks")
        if unit not in _UNITS or ("." in amount and unit != "second"):
            raise ValueError(f"{text!r} is not an interval such as 'interval 7 days'")
        whole, _, fraction = amount.partition(".")
        micros = int(whole) * _UNITS[unit]
        if fraction:
            micros += (-1 if whole.startswith("-") else 1) * int(fraction[:6].ljust(6, "0"))
        total += micros
        at = part.end()
        while at < len(body) and body[at] == " ":
            at += 1
    if not body:
        raise ValueError(f"{text!r} is not an interval such as 'interval 7 days'")
    if total < 0:
        raise ValueError(f"{text!r} is negative")
    return total // 1_000


def _boolean(text: str) -> bool:
    folded = text.strip().lower()
    if folded not in ("true", "false"):
        raise ValueError(f"must be 'true' or 'false', got {text!r}")
    return folded == "true"


def _integer(at_least: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,19}", text.strip(), re.ASCII):
            raise ValueError(f"must be a whole number, got {text!r}")
        value = int(text)
        if at_least is not None and value < at_least:
            raise ValueError(f"must be at least {at_least}, got {value}")
        return value

    return parse


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for choice in allowed:
            if text.strip().lower() == choice.lower():
                return choice
        raise ValueError(f"must be one of {', '.join(allowed)}, got {text!r}")

    return parse


def _json_map(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        raise ValueError(f"must be a JSON object, got {text!r}") from None


@dataclass(frozen=True, slots=True)
class Property:
    """One table property.

    :param key: with the prefix ``delta.``.
    :param parse: returns the typed value, or raises :class:`ValueError`.
    :param default: typed value if the table does not set it.
    :param settable: users may set it.
    :param may_be_set_to: the typed values that users may set, if others are only respected on reading.
    """

    key: str
    parse: Callable[[str], Any]
    default: Any = None
    settable: bool = True
    may_be_set_to: tuple[Any, ...] | None = None


def _text(text: str) -> str:
    return text


def _formats(text: str) -> str:
    formats = _listed(text)
    if not set(formats) <= {"hudi", "iceberg"} or len(set(formats)) < len(formats):
        raise ValueError(f"must be a list of hudi and iceberg, each once and without spaces, got {text!r}")
    return text


def _listed(text: str) -> list[str]:
    """Return the parts of a list as Delta divides it: empty ones at the end do not count."""
    return text.rstrip(",").split(",") if text.rstrip(",") else []


def _folded_text(text: str) -> str:
    return text.strip().lower()


_PARQUET_VERSIONS = ("1.0.0", "2.0.0", "2.4.0", "2.6.0", "2.12.0")
_PROPERTIES: tuple[Property, ...] = (
    Property("minReaderVersion", _integer(1), 1),
    Property("minWriterVersion", _integer(1), 2),
    Property("ignoreProtocolDefaults", _boolean, False),
    Property("logRetentionDuration", parse_interval, 30 * DAY),
    Property("sampleRetentionDuration", parse_interval, 7 * DAY),
    Property("checkpointRetentionDuration", parse_interval, 2 * DAY),
    Property("checkpointInterval", _integer(1), 10),
    Property("enableExpiredLogCleanup", _boolean, True),
    Property("enableFullRetentionRollback", _boolean, True),
    Property("dropFeatureTruncateHistory.retentionDuration", parse_interval, 24 * HOUR),
    Property("deletedFileRetentionDuration", parse_interval, WEEK),
    Property("randomizeFilePrefixes", _boolean, False),
    Property("randomPrefixLength", _integer(1), 2),
    Property("appendOnly", _boolean, False),
    Property("enableDeletionVectors", _boolean, False),
    Property("parquet.format.version", _text, "1.0.0", may_be_set_to=_PARQUET_VERSIONS),
    Property("parquet.compression.codec", _text),
    Property("enableVariantShredding", _boolean, False),
    Property("autoOptimize", _boolean),
    Property("autoOptimize.autoCompact", _folded_text, may_be_set_to=("true", "false")),
    Property("autoOptimize.optimizeWrite", _boolean),
    Property("targetFileSize", _text),
    Property("tuneFileSizesForRewrites", _boolean),
    Property("dataSkippingNumIndexedCols", _integer(-1), 32),
    Property("dataSkippingStatsColumns", _text),
    Property("dataSkippingStringPrefixLength", _integer(0)),
    Property("compatibility.symlinkFormatManifest.enabled", _boolean, False),
    Property("checkpoint.writeStatsAsJson", _boolean, True),
    Property("checkpoint.writeStatsAsStruct", _boolean, True),
    Property("checkpoint.partSize", _integer(1)),
    Property("enableChangeDataFeed", _boolean, False),
    Property("enableChangeDataCapture", _boolean, False),
    Property("columnMapping.mode", _choice("none", "id", "name"), "none"),
    Property("columnMapping.maxColumnId", _integer(0), 0, settable=False),
    Property("setTransactionRetentionDuration", parse_interval),
    Property("isolationLevel", _choice(*READABLE_ISOLATION_LEVELS), "Serializable", may_be_set_to=SETTABLE_ISOLATION_LEVELS),
    Property("checkpointPolicy", _choice("classic", "v2"), "classic"),
    Property("enableRowTracking", _boolean, False),
    Property("rowTrackingSuspended", _boolean, False, settable=False),
    Property("rowTracking.materializedRowIdColumnName", _text, settable=False),
    Property("rowTracking.materializedRowCommitVersionColumnName", _text, settable=False),
    Property("universalFormat.enabledFormats", _formats, ""),
    Property("universalFormat.iceberg.atomicConversion.supported", _boolean, False),
    Property("enableIcebergCompatV1", _boolean),
    Property("enableIcebergCompatV2", _boolean),
    Property("enableIcebergCompatV3", _boolean),
    Property("castIcebergTimeType", _boolean, False),
    Property("ignoreIcebergBucketPartition", _boolean, False),
    Property("enableTypeWidening", _boolean, False),
    Property("coordinatedCommits.commitCoordinator-preview", _text),
    Property("coordinatedCommits.commitCoordinatorConf-preview", _json_map),
    Property("coordinatedCommits.tableConf-preview", _json_map),
    Property("enableInCommitTimestamps", _boolean, False),
    Property("inCommitTimestampEnablementVersion", _integer(0), settable=False),
    Property("inCommitTimestampEnablementTimestamp", _integer(0), settable=False),
    Property("requireCheckpointProtectionBeforeVersion", _integer(0), 0),
    Property("enableMaterializePartitionColumnsFeature", _boolean),
    Property("writePartitionColumnsToParquet", _boolean),
    Property("redirectReaderWriter-preview", _json_map),
    Property("redirectWriterOnly-preview", _json_map),
    Property("lastUpdateVersion", _integer(0), settable=False),
    Property("lastCommitTimestamp", _integer(0), settable=False),
)
PROPERTIES: dict[str, Property] = {PREFIX + p.key: replace(p, key=PREFIX + p.key) for p in _PROPERTIES}
_BY_FOLDED_KEY = {key.lower(): key for key in PROPERTIES}

# Not stored in the table's metadata: they only affect its protocol.
_PROTOCOL_KEYS = frozenset({MIN_READER_VERSION, MIN_WRITER_VERSION, IGNORE_PROTOCOL_DEFAULTS})


def normalise_key(key: str) -> str:
    """Return Delta's spelling of one of its keys, given in any case; other keys unchanged."""
    folded = key.lower()
    for prefix in (FEATURE_PREFIX, CONSTRAINT_PREFIX):
        if folded.startswith(prefix.lower()):
            return prefix + key[len(prefix) :]
    return _BY_FOLDED_KEY.get(folded, key)


def validate(configuration: Mapping[str, str], *, table: str | None = None, new_table: bool = False) -> dict[str, str]:
    """Check properties set by a user, and return them with Delta's keys in Delta's spelling.

    Keys without the prefix ``delta.`` may be anything. ``delta.feature.*`` and the protocol versions are kept: see
    :func:`airflow_delta.log.features.protocol.apply_feature_properties`. For rules about several properties, see
    :func:`check_together`.

    :param new_table: allow constraints, since the table has no rows yet.
    :raises DeltaIllegalArgumentException: if a ``delta.*`` key is unknown or users may not set it, or a value has the wrong type.
    """
    where = f" for {table}" if table else ""
    result: dict[str, str] = {}
    for given, value in configuration.items():
        key = normalise_key(given)
        if not isinstance(value, str):
            raise DeltaIllegalArgumentException(f"Table property {given}{where} must be a string, got {value!r}", table=table)
        if key in result:
            raise DeltaIllegalArgumentException(f"Table property {key}{where} is given twice, in two spellings", table=table)
        _check(given, key, value, where, table, new_table)
        result[key] = value
    return result


def _check(given: str, key: str, value: str, where: str, table: str | None, new_table: bool) -> None:
    if not key.lower().startswith(PREFIX):
        return
    if key.startswith(FEATURE_PREFIX):
        if value.lower() not in ("supported", "enabled"):
            raise DeltaIllegalArgumentException(
                f"Table property {key}{where} must be 'supported' or 'enabled', got {value!r} (DELTA_UNSUPPORTED_FEATURE_STATUS)",
                table=table,
            )
        return
    if key.startswith(CONSTRAINT_PREFIX):
        if not new_table:
            raise DeltaIllegalArgumentException(
                f"Table property {key}{where} cannot be set: add constraints with ALTER TABLE ADD CONSTRAINT, "
                "which checks existing rows (DELTA_ADD_CONSTRAINTS)",
                table=table,
            )
        return
    known = PROPERTIES.get(key)
    if known is None:
        close = near_words(key.lower(), _BY_FOLDED_KEY, n=3, cutoff=0.7)
        hint = f"; did you mean {' or '.join(_BY_FOLDED_KEY[c] for c in close)}?" if close else ""
        raise DeltaIllegalArgumentException(
            f"Unknown table property {given}{where}{hint} (DELTA_UNKNOWN_CONFIGURATION)", table=table
        )
    if not known.settable:
        raise DeltaIllegalArgumentException(
            f"Table property {key}{where} is managed by Delta and cannot be set (DELTA_CANNOT_MODIFY_TABLE_PROPERTY)",
            table=table,
        )
    try:
        parsed = known.parse(value)
    except ValueError as error:
        raise DeltaIllegalArgumentException(f"Table property {key}{where}: {error}", table=table) from error
    if known.may_be_set_to is not None and parsed not in known.may_be_set_to:
        raise DeltaIllegalArgumentException(
            f"Table property {key}{where} can only be set to {' or '.join(known.may_be_set_to)}, got {value!r}", table=table
        )


def check_together(configuration: Mapping[str, str], changed: Collection[str], *, table: str | None = None) -> None:
    """Check the rules about several properties, if one of them is being set.

    :param configuration: all properties that the table will have.
    :param changed: the keys being set, in Delta's spelling.
    :raises DeltaIllegalArgumentException: if commits would be kept for a shorter time than tombstones, or row tracking would be
        both enabled and suspended (Delta: DELTA_ROW_TRACKING_ILLEGAL_PROPERTY_COMBINATION).
    """
    where = f" for {table}" if table else ""
    properties = TableProperties(configuration)
    log_key, file_key = LOG_RETENTION_DURATION, "delta.deletedFileRetentionDuration"
    if {log_key, file_key} & set(changed) and properties.log_retention < properties.deleted_file_retention:
        raise DeltaIllegalArgumentException(
            f"Table property {log_key}{where} ({properties.log_retention // DAY} days) must not be shorter than {file_key} "
            f"({properties.deleted_file_retention // DAY} days): time travel needs the commits as long as the files. Set both.",
            table=table,
        )
    if properties.get(ENABLE_ROW_TRACKING) and properties.get(ROW_TRACKING_SUSPENDED):
        raise DeltaIllegalArgumentException(
            f"Table properties delta.enableRowTracking and delta.rowTrackingSuspended{where} cannot both be true "
            "(DELTA_ROW_TRACKING_ILLEGAL_PROPERTY_COMBINATION). Disable one of them.",
            table=table,
        )


class TableProperties:
    """Typed access to a table's properties, with Delta's defaults.

    :param configuration: ``Metadata.configuration``.
    """

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self.configuration = dict(configuration)
        self._values: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        """Return the typed value of a Delta property, or its default if it is not set.

        :param key: with or without the prefix ``delta.``.
        :raises DeltaIllegalArgumentException: if the table has a value of the wrong type.
        """
        full = key if key in PROPERTIES else PREFIX + key
        if full not in self._values:
            known, text = PROPERTIES[full], self._text(full)
            try:
                self._values[full] = known.default if text is None else known.parse(text)
            except ValueError as error:
                raise DeltaIllegalArgumentException(f"Table property {full}: {error}") from error
        return self._values[full]

    def _text(self, key: str) -> str | None:
        text = self.configuration.get(key)
        if text is None:
            folded = key.lower()  # other writers may use another case
            text = next((v for k, v in self.configuration.items() if k.lower() == folded), None)
        return text

    @property
    def checkpoint_interval(self) -> int:
        """Return the number of commits after which a checkpoint is due."""
        return int(self.get("delta.checkpointInterval"))

    @property
    def checkpoint_part_size(self) -> int | None:
        """Return the maximum number of rows of a checkpoint part, ``None`` for checkpoints in one part."""
        value = self.get("delta.checkpoint.partSize")
        return None if value is None else int(value)

    @property
    def checkpoint_policy(self) -> str:
        """Return ``classic`` or ``v2``."""
        return str(self.get(CHECKPOINT_POLICY))

    @property
    def checkpoint_write_stats_as_json(self) -> bool:
        """Return whether checkpoints have the statistics as JSON."""
        return bool(self.get(CHECKPOINT_STATS_AS_JSON))

    @property
    def checkpoint_write_stats_as_struct(self) -> bool:
        """Return whether checkpoints have the statistics as typed columns."""
        return bool(self.get(CHECKPOINT_STATS_AS_STRUCT))

    @property
    def isolation_level(self) -> str:
        """Return ``Serializable``, ``WriteSerializable`` or ``SnapshotIsolation``."""
        return str(self.get(ISOLATION_LEVEL))

    @property
    def append_only(self) -> bool:
        """Return whether deleting rows is forbidden."""
        return bool(self.get(APPEND_ONLY))

    @property
    def log_retention(self) -> int:
        """Return how long commits are kept, in milliseconds."""
        return int(self.get(LOG_RETENTION_DURATION))

    @property
    def deleted_file_retention(self) -> int:
        """Return how long removed files and their tombstones are kept, in milliseconds."""
        return int(self.get("delta.deletedFileRetentionDuration"))

    @property
    def enable_expired_log_cleanup(self) -> bool:
        """Return whether writing a checkpoint deletes expired commits."""
        return bool(self.get("delta.enableExpiredLogCleanup"))

    @property
    def set_transaction_retention(self) -> int | None:
        """Return how long ``txn`` actions are kept, in milliseconds; ``None`` means for ever."""
        value = self.get(SET_TRANSACTION_RETENTION_DURATION)
        return None if value is None else int(value)

    @property
    def data_skipping_num_indexed_cols(self) -> int:
        """Return the number of leaf columns with statistics; -1 means all."""
        return int(self.get("delta.dataSkippingNumIndexedCols"))

    @property
    def data_skipping_stats_columns(self) -> str | None:
        """Return the list of columns with statistics, unparsed."""
        value = self.get(DATA_SKIPPING_STATS_COLUMNS)
        return None if value is None else str(value)

    @property
    def data_skipping_string_prefix_length(self) -> int:
        """Return the number of characters to which bounds of strings are truncated."""
        value = self.get("delta.dataSkippingStringPrefixLength")
        return 32 if value is None else int(value)

    @property
    def enable_change_data_feed(self) -> bool:
        """Return whether the change data feed is on."""
        return bool(self.get("delta.enableChangeDataFeed") or self.get("delta.enableChangeDataCapture"))

    @property
    def enable_deletion_vectors(self) -> bool:
        """Return whether deletes may write deletion vectors."""
        return bool(self.get(ENABLE_DELETION_VECTORS))

    @property
    def enable_in_commit_timestamps(self) -> bool:
        """Return whether the table has in-commit timestamps."""
        return bool(self.get(ENABLE_IN_COMMIT_TIMESTAMPS))

    @property
    def universal_formats(self) -> frozenset[str]:
        """Return the formats besides Delta that the table claims to be readable in (UniForm), also those that Delta ignores."""
        return frozenset(_listed(self._text(UNIVERSAL_FORMAT) or ""))

    @property
    def column_mapping_mode(self) -> str:
        """Return ``none``, ``id`` or ``name``."""
        return str(self.get(COLUMN_MAPPING_MODE))


def strip_protocol_properties(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the properties without those that only affect the protocol; metadata never has them."""
    return {
        key: value
        for key, value in configuration.items()
        if normalise_key(key) not in _PROTOCOL_KEYS and not key.lower().startswith(FEATURE_PREFIX)
    }
