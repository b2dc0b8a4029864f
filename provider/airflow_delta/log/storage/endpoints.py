"""Where a store is asked: endpoint, region, style and account, derived once for the worker, Spark, and the test of a connection.

What a connection says comes first, then what the environment of the process says: the client would read that by itself, where
Spark does not, and would prefer a variable such as ``AWS_ENDPOINT_URL_S3`` to the connection's own ``aws_endpoint_url``.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from airflow_delta.contract.location import AZURE, GCS, S3, Location
from airflow_delta.log.storage.options import ENDPOINTS, canonical_name, endpoint_url

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
_VARIABLES = {S3: "aws_", AZURE: "azure_", GCS: "google_"}
_TRUE = frozenset({"true", "1", "yes", "on", "y"})


def with_place(options: Mapping[str, str], location: Location, environment: Mapping[str, str]) -> dict[str, str]:
    """Return options that say where the store is asked, each once, also where only the environment says it.

    The endpoint of S3 is without the bucket, in both styles; no endpoint ends with a slash.

    :param options: under their canonical names.
    :param environment: variables of this process.
    :raises DeltaIllegalArgumentException: if an endpoint of the environment is not a URL.
    """
    found, store = dict(options), location.store
    around = _of_environment(store, environment) if store in _PLACES else {}
    for place, names in _PLACES.get(store, {}).items():
        given = next((options[name] for name in names if options.get(name)), None)
        given = given or next((around[name] for name in names if name in around), None)
        found = {name: value for name, value in found.items() if name not in names}
        if given is not None:
            found[place] = given
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
    found: dict[str, str] = {}
    for variable, value in environment.items():
        name = canonical_name(variable, store) if value and variable.lower().startswith(_VARIABLES[store]) else None
        if name is not None:
            found[name] = endpoint_url(variable, value, "the environment of this process") if name in ENDPOINTS else value
    return found


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
