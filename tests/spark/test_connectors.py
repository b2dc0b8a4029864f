"""What Spark says when it cannot reach a store, and what we make of it."""

from __future__ import annotations

import pytest

from airflow_delta.exceptions import MissingSparkConnectorException, SparkCredentialsException
from airflow_delta.spark.connectors import coordinate, hadoop_version, has_connector, storage_error

AZURE_KEY = (
    "Configuration property account.dfs.core.windows.net not found: Failure to initialize configuration for storage account "
    'account.dfs.core.windows.net: Invalid configuration value detected for fs.azure.account.key"'
)
MESSAGES = [
    (
        'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"',
        MissingSparkConnectorException,
        "s3a://",
    ),
    ('No FileSystem for scheme "gs"', MissingSparkConnectorException, "docs/how-to/gcs.md"),
    ("Class org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem not found", MissingSparkConnectorException, "hadoop-azure:"),
    ("java.lang.NoClassDefFoundError: software/amazon/awssdk/core/X", MissingSparkConnectorException, "hadoop-aws:"),
    (
        "java.nio.file.AccessDeniedException: s3a://lake/t: org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException: No AWS "
        "Credentials provided by TemporaryAWSCredentialsProvider",
        SparkCredentialsException,
        "docs/how-to/s3.md",
    ),
    (
        "s3a://lake/t: getFileStatus on s3a://lake/t: software.amazon.awssdk.services.s3.model.S3Exception: null (Service: S3, "
        "Status Code: 403, Request ID: X)",
        SparkCredentialsException,
        "Status Code: 403",
    ),
    (AZURE_KEY, SparkCredentialsException, "docs/how-to/azure.md"),
]


@pytest.mark.parametrize(("message", "kind", "text"), MESSAGES)
def test_an_error_of_the_store_is_typed(message, kind, text):
    error = storage_error(RuntimeError(message))
    assert type(error) is kind
    assert text in str(error)


OTHERS = [
    "java.nio.file.AccessDeniedException: /data/t",
    "Job aborted due to stage failure: Status Code: 503 (Service: S3)",
    "[DELTA_ILLEGAL_ARGUMENT] no",
    "java.lang.ClassNotFoundException: com.example.Udf",
    "s3a://lake/t: NoSuchKey (Service: S3, Status Code: 404)",
]


@pytest.mark.parametrize("message", OTHERS)
def test_other_errors_stay_what_they_are(message):
    assert storage_error(RuntimeError(message), "s3a://lake/t") is None


COORDINATES = [
    ("s3a", "3.4.1", "org.apache.hadoop:hadoop-aws:3.4.1"),
    ("abfss", "3.5.0", "org.apache.hadoop:hadoop-azure:3.5.0"),
    ("gs", "3.5.0", "org.apache.hadoop:hadoop-gcp:3.5.0"),
    ("gs", "3.4.1", "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.34"),
    ("file", "3.5.0", None),
]


@pytest.mark.parametrize(("scheme", "version", "expected"), COORDINATES)
def test_a_coordinate(scheme, version, expected):
    assert coordinate(scheme, version) == expected


def test_the_installed_spark():
    assert (hadoop_version() or "").startswith("3.")
    assert not has_connector("s3a")


@pytest.mark.spark
@pytest.mark.parametrize("scheme", ["s3", "s3a", "abfss", "gs"])
def test_spark_without_the_connector(spark, scheme):
    authority = "c@account.dfs.core.windows.net" if scheme == "abfss" else "lake"
    with pytest.raises(Exception, match=r"scheme|not found") as caught:
        spark.read.parquet(f"{scheme}://{authority}/t")
    error = storage_error(caught.value, f"{scheme}://{authority}/t")
    assert isinstance(error, MissingSparkConnectorException)
