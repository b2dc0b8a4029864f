"""Hadoop's connectors to object stores: their coordinates, and what Spark's errors about them mean."""

from __future__ import annotations

import os
import re
from importlib import util
from pathlib import Path

from airflow_delta.contract.location import OBJECT_SCHEMES, OBJECT_STORES, SCHEMES, STORES
from airflow_delta.contract.location import PAGES as PAGES_OF_STORES
from airflow_delta.exceptions import (
    DeltaError,
    MissingSparkConnectorException,
    SparkCredentialsException,
    SparkStorageException,
)

PAGES = {STORES[store].hadoop: page for store, page in PAGES_OF_STORES.items()}

_KINDS = {scheme: STORES[store].hadoop for scheme, store in SCHEMES.items() if store in OBJECT_STORES}

_ARTIFACTS = {"s3a": "hadoop-aws", "abfss": "hadoop-azure", "gs": "hadoop-gcp"}

_OF_HADOOP = ("abfs", "wasb", "wasbs")
"""Schemes that Hadoop opens beside the one that we use."""

_OLD_GCS = "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.34"  # before Hadoop 3.5 had its own

_JAR = r"hadoop-client-api-(\d[\w.]*)\.jar"

_SCHEME = r"No FileSystem for scheme:? \"?(\w+)\"?"

_CLASS = (
    r"Class(?:NotFoundException:)? (?:Class )?"
    r"(?:org\.apache\.hadoop\.fs\.(?:s3a|azurebfs|gs)\.\w+|com\.google\.cloud\.hadoop[\w.]+)"
)

_LINKAGE = (
    r"(?:NoClassDefFoundError|NoSuchMethodError|NoSuchFieldError): \S*"
    r"(?:org/apache/hadoop|software/amazon|com/amazonaws|com/google/cloud/hadoop|com/microsoft/azure)\S*"
)

_URI = rf"\b({OBJECT_SCHEMES})://"

_LOCATION = r"\b(?:s3a|abfss?|gs)://[^\s:,;'\")\]]+"

_HINTS = (
    ("s3a", r"(?i)fs\.s3a|S3AFileSystem|amazon|\bS3\b"),
    ("abfss", r"(?i)fs\.azure|azurebfs|\babfs"),
    ("gs", r"(?i)fs\.gs\.|cloud\.hadoop|googleapis"),
)

_REFUSED = (
    r"(?s)No ?AWS ?Credentials|NoAuthWithAWSException|CredentialInitializationException|Unable to load credentials|"
    r"NoAwsCredentialsException|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|"
    r"AccessDenied(?:Exception)?\b.{0,400}?(?:s3a?|abfss?|gs)://|(?:s3a?|abfss?|gs)://.{0,400}?AccessDenied|"
    r"Forbidden \(Service: S3|Status Code: 40[13]|"
    r"fs\.azure\.account\.key|Failure to initialize configuration|KeyProviderException|AuthenticationFailed|"
    r"AuthorizationFailure|AuthorizationPermissionMismatch|TokenAccessProviderException|HttpException: HTTP Error 40[0-3]|"
    r"Error getting access token|Error accessing.{0,200}\b40[13]\b|Application Default Credentials|"
    r"does not have storage\.\w+\.\w+ access"
)

LONGEST = 300


def hadoop_version() -> str | None:
    """Return the version of Hadoop in the installed Spark; ``None`` if that has no JARs (``pyspark-client``)."""
    jars = _jars()
    names = (re.fullmatch(_JAR, jar.name) for jar in jars.iterdir()) if jars is not None else ()
    return next((found[1] for found in names if found), None)


def coordinate(scheme: str, version: str | None) -> str | None:
    """Return the Maven coordinate of the connector for a scheme; ``None`` if the scheme needs none.

    :param version: Hadoop's version; ``None`` if it is unknown.
    """
    kind = _KINDS.get(scheme.lower())
    if kind is None:
        return None
    if kind == "gs" and version is not None and _numbers(version) < (3, 5):
        return _OLD_GCS
    return f"org.apache.hadoop:{_ARTIFACTS[kind]}:{version or '<the version of Hadoop that Spark brings>'}"


def has_connector(scheme: str) -> bool:
    """Return whether the installed Spark has the connector among its JARs."""
    kind, jars = _KINDS.get(scheme.lower()), _jars()
    if kind is None or jars is None:
        return False
    names = {"gs": ("hadoop-gcp-", "gcs-connector-")}.get(kind, (f"{_ARTIFACTS.get(kind, '')}-",))
    return any(jar.name.startswith(names) for jar in jars.iterdir())


def storage_error(error: BaseException | str, uri: str = "") -> SparkStorageException | None:
    """Return the typed error if Spark cannot reach the table's store as it is set up; ``None`` for any other error.

    :param uri: the table's location for Spark.
    """
    if isinstance(error, DeltaError | OSError):  # ours, or the worker's own access to the store
        return None
    text = str(error)
    if found := re.search(_SCHEME, text):
        return _no_connector(found[1], f"it knows no scheme {found[1]}://", uri)
    if found := re.search(_CLASS, text) or re.search(_LINKAGE, text):
        return _no_connector(_kind_in(text, uri), f"{found[0][:LONGEST]} is missing", uri)
    kind = _kind_in(text, uri)
    if kind in PAGES and (found := re.search(_REFUSED, text)):
        where = re.search(_LOCATION, _line_around(text, found.start())) or re.search(_LOCATION, text)
        return SparkCredentialsException(
            f"Spark cannot reach {where[0] if where else uri or f'{kind}://'}: {_line_around(text, found.start())}. The worker's "
            "credentials reach Spark unless spark_credentials is 'own': check that the connection has some, and that they may "
            f"read, list, write and delete below the table. See {PAGES[kind]}.",
            table=uri or None,
        )
    return None


def _no_connector(scheme: str, what: str, uri: str) -> MissingSparkConnectorException:
    kind = _KINDS.get(scheme.lower(), scheme)
    if kind != scheme and scheme not in _OF_HADOOP:
        way_out = f"Hadoop's scheme for this store is {kind}://."
    else:
        jar = coordinate(scheme, hadoop_version())
        way_out = f"Add {jar} to the packages of Spark (spark_packages='auto' in the delta connection does)." if jar else ""
    page = f" See {PAGES[kind]}." if kind in PAGES else ""
    return MissingSparkConnectorException(
        f"Spark has no connector for the store of {uri or f'{scheme}://'}: {what}. {way_out}{page}", table=uri or None
    )


def _kind_in(text: str, uri: str) -> str:
    for place in (uri, text):
        if found := re.search(_URI, place):
            return _KINDS[found[1]]
    return next((kind for kind, pattern in _HINTS if re.search(pattern, text)), "")


def _line_around(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()[:LONGEST].rstrip(".")


def _jars() -> Path | None:
    home = os.environ.get("SPARK_HOME")
    spec = None if home else util.find_spec("pyspark")
    folder = Path(home) if home else Path(spec.origin).parent if spec is not None and spec.origin else None
    jars = folder / "jars" if folder is not None else None
    return jars if jars is not None and jars.is_dir() else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
