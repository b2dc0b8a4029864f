"""Where a store is asked: endpoint, region, style and account, derived once for the worker, Spark, and the test of a connection.

What a connection says comes first, then what the environment of the process says: the client would read that by itself, where
Spark does not, and would prefer a variable such as ``AWS_ENDPOINT_URL_S3`` to the connection's own ``aws_endpoint_url``.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from airflow_delta.contract.location import AZURE, GCS, S3, Location
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.storage.options import canonical_name
from airflow_delta.masking import masked

ENDPOINT, ENDPOINT_S3, REGION = "aws_endpoint_url", "aws_endpoint_url_s3", "aws_region"
VIRTUAL = "aws_virtual_hosted_style_request"
ACCOUNT, AZURE_ENDPOINT = "azure_storage_account_name", "azure_storage_endpoint"
GOOGLE_URL = "google_base_url"

# What says where, by store: the name that it gets, and its names, the first that is set before the others.
_PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    S3: {ENDPOINT: (ENDPOINT_S3, ENDPOINT), REGION: (REGION, "aws_default_region"), VIRTUAL: (VIRTUAL,)},
    AZURE: {ACCOUNT: (ACCOUNT,), AZURE_ENDPOINT: (AZURE_ENDPOINT,)},
    GCS: {GOOGLE_URL: (GOOGLE_URL,)},
}
URLS = frozenset({ENDPOINT, AZURE_ENDPOINT, GOOGLE_URL})
"""Options with the URL of a store."""

_VARIABLES = {S3: "aws_", AZURE: "azure_", GCS: "google_"}
_TRUE = frozenset({"true", "1", "yes", "on", "y"})


def with_place(
    options: Mapping[str, str], location: Location, environment: Mapping[str, str], whose: str = "the connection"
) -> dict[str, str]:
    """Return options that say where the store is asked, each once, also where only the environment says it.

    The endpoint of S3 is without the bucket, in both styles; no endpoint ends with a slash.

    :param options: under their canonical names.
    :param environment: variables of this process.
    :param whose: where the options come from, for errors.
    :raises DeltaIllegalArgumentException: if an endpoint is not a URL.
    """
    found, store = dict(options), location.store
    around = _of_environment(store, environment) if store in _PLACES else {}
    for place, names in _PLACES.get(store, {}).items():
        found = {name: value for name, value in found.items() if name not in names}
        for source, where in ((options, whose), (around, "the environment")):
            if given := next((name for name in names if source.get(name)), None):
                found[place] = _url(source[given], given, where) if place in URLS else source[given]
                break
    if store == S3 and (endpoint := found.get(ENDPOINT)) is not None:
        found[ENDPOINT] = _without_bucket(endpoint, location.bucket) if is_virtual(found) else endpoint
    return found


def client_config(placed: Mapping[str, str], location: Location) -> dict[str, str]:
    """Return options as object_store's client takes them: it wants the bucket in the endpoint of the virtual-hosted style.

    :param placed: what :func:`with_place` returns.
    """
    config = dict(placed)
    if location.store == S3 and (endpoint := config.get(ENDPOINT)) is not None:
        config[ENDPOINT] = _with_bucket(endpoint, location.bucket) if is_virtual(config) else endpoint
        config[ENDPOINT_S3] = config[ENDPOINT]  # the client prefers the variable of this name to the other option
    return config


def is_virtual(options: Mapping[str, str]) -> bool:
    """Return whether the bucket is a part of the host's name."""
    return options.get(VIRTUAL, "").strip().lower() in _TRUE


def _of_environment(store: str, environment: Mapping[str, str]) -> dict[str, str]:
    named = {
        canonical_name(variable, store): value
        for variable, value in environment.items()
        if value and variable.lower().startswith(_VARIABLES[store])
    }
    return {name: value for name, value in named.items() if name is not None}


def _url(value: str, name: str, whose: str) -> str:
    text = value.strip().rstrip("/")
    try:
        parts = urlsplit(text)
        valid = parts.scheme.lower() in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise DeltaIllegalArgumentException(
            f"{name} of {whose} is {masked(value)!r}, which is not a URL with a scheme and a host. Write https://host, or "
            "http://host:port for a server without TLS."
        )
    return text


def _without_bucket(endpoint: str, bucket: str) -> str:
    parts = urlsplit(endpoint)
    host = parts.netloc.rpartition("@")[2]
    if not host.lower().startswith(f"{bucket.lower()}."):
        return endpoint
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(host, host[len(bucket) + 1 :])))


def _with_bucket(endpoint: str, bucket: str) -> str:
    parts = urlsplit(endpoint)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}{at}{bucket}.{host}"))
