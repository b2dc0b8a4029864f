"""Names of tables by OpenLineage's rules, as its Spark integration names the location of a table."""

from __future__ import annotations

from urllib.parse import unquote

_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "wasb": "wasbs"}
_AZURE_HOSTS = {"abfss": "dfs.core.windows.net", "wasbs": "blob.core.windows.net"}
ROOT = "/"
"""Name of a table that is a whole bucket or container."""


def dataset_name(uri: str) -> tuple[str, str]:
    """Return namespace and name of a table.

    :param uri: URI of the table, or an absolute path.
    """
    head, separator, tail = uri.partition("://")
    scheme = head.lower()
    if not separator:
        return "file", uri.rstrip("/") or ROOT
    if scheme == "file":
        return "file", "/" + unquote(tail).strip("/")
    scheme = _SCHEMES.get(scheme, scheme)
    authority, _, path = tail.partition("/")
    name = path.strip("/") or ROOT
    if (host := _AZURE_HOSTS.get(scheme)) is not None and "@" in authority:
        container, _, account = authority.partition("@")
        account = account if "." in account else f"{account}.{host}"
        return f"{scheme}://{container}@{account}", name
    return f"{scheme}://{authority}", name
