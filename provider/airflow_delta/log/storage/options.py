"""Storage options: every spelling that object_store knows becomes one name for each option."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from airflow_delta.contract.location import AZURE, FILE, GCS, HDFS, S3, store_of
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.storage.credentials import EXPIRES_AT, RENEWED_BY
from airflow_delta.masking import masked

HDFS_USER = "hadoop_user_name"
"""Option of HDFS: the user, if it does not use Kerberos."""

OTHER_LOCATIONS = "other_locations"
"""Our own option: URIs, separated by commas, below which files may be that the log names outside of the table's bucket."""

OWN_OPTIONS = frozenset({OTHER_LOCATIONS, RENEWED_BY, EXPIRES_AT})
"""Options that no client of a store gets."""


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The name of an option, then its other spellings (object_store's AmazonS3ConfigKey, AzureConfigKey and GoogleConfigKey, and
# delta-rs's own, crates/aws/src/constants.rs).
_SPELLINGS = {
    S3: """
        aws_access_key_id access_key_id
        aws_secret_access_key secret_access_key
        aws_session_token aws_token session_token token
        aws_region region
        aws_default_region default_region
        aws_endpoint_url aws_endpoint endpoint_url endpoint
        aws_endpoint_url_s3 endpoint_url_s3
        aws_endpoint_url_sts endpoint_url_sts aws_sts_endpoint sts_endpoint
        aws_virtual_hosted_style_request virtual_hosted_style_request
        aws_s3_express s3_express
        aws_unsigned_payload unsigned_payload
        aws_checksum_algorithm checksum_algorithm
        aws_skip_signature skip_signature
        aws_request_payer request_payer
        aws_disable_tagging disable_tagging
        aws_disable_bulk_delete disable_bulk_delete
        aws_role_arn role_arn aws_iam_role_arn aws_s3_assume_role_arn
        aws_role_session_name role_session_name aws_iam_role_session_name aws_s3_role_session_name
        aws_web_identity_token_file web_identity_token_file
        aws_container_credentials_relative_uri container_credentials_relative_uri
        aws_container_credentials_full_uri container_credentials_full_uri
        aws_container_authorization_token_file container_authorization_token_file
        aws_metadata_endpoint metadata_endpoint
        aws_imdsv1_fallback imdsv1_fallback
        aws_server_side_encryption server_side_encryption
        aws_sse_kms_key_id sse_kms_key_id
        aws_sse_bucket_key_enabled sse_bucket_key_enabled
        aws_sse_customer_key_base64 sse_customer_key_base64
    """,
    AZURE: """
        azure_storage_account_name account_name
        azure_storage_account_key azure_storage_access_key azure_storage_master_key access_key account_key master_key
        azure_storage_sas_key azure_storage_sas_token sas_key sas_token
        azure_storage_token bearer_token token
        azure_storage_client_id azure_client_id client_id
        azure_storage_client_secret azure_client_secret client_secret
        azure_storage_tenant_id azure_storage_authority_id azure_tenant_id azure_authority_id tenant_id authority_id
        azure_storage_authority_host azure_authority_host authority_host
        azure_storage_endpoint azure_endpoint endpoint
        azure_storage_use_emulator use_emulator
        azure_storage_encryption_key encryption_key
        azure_credential_type credential_type
        azure_msi_endpoint azure_identity_endpoint identity_endpoint msi_endpoint
        azure_object_id object_id
        azure_msi_resource_id msi_resource_id
        azure_federated_token_file federated_token_file
        azure_use_fabric_endpoint use_fabric_endpoint
        azure_use_azure_cli use_azure_cli
        azure_skip_signature skip_signature
        azure_disable_tagging disable_tagging
        azure_fabric_token_service_url fabric_token_service_url
        azure_fabric_workload_host fabric_workload_host
        azure_fabric_session_token fabric_session_token
        azure_fabric_cluster_identifier fabric_cluster_identifier
    """,
    GCS: """
        google_service_account google_service_account_path service_account service_account_path
        google_service_account_key service_account_key
        google_application_credentials application_credentials
        google_bearer_token bearer_token
        google_base_url base_url
        google_skip_signature skip_signature
    """,
}  # fmt: skip
# What an option is, if it is neither a value nor a secret. An option that is not in the lists above is refused.
FILES = words("""
    aws_web_identity_token_file aws_container_authorization_token_file azure_federated_token_file google_service_account
    google_application_credentials
""")
"""Options that name a file of the process."""

CREDENTIAL_ENDPOINTS = words("""
    aws_container_credentials_relative_uri aws_container_credentials_full_uri aws_metadata_endpoint aws_endpoint_url_sts
    azure_msi_endpoint azure_storage_authority_host azure_fabric_token_service_url azure_fabric_workload_host
""")
"""Options that name a place to ask for credentials."""

ENDPOINTS = words("aws_endpoint_url aws_endpoint_url_s3 azure_storage_endpoint google_base_url")
"""Options that name the store itself."""

_IN_HOST_NAMES = words("aws_region aws_default_region azure_storage_account_name")
"""Options that the client writes into the name of the host that it asks, as they are."""

_LABEL = lazy_pattern(r"(?!-)[A-Za-z0-9-]{0,63}(?<!-)")
"""A part of a host's name (RFC 1123); botocore takes no other regions."""

NETWORK = words("proxy_url proxy_ca_certificate root_certificate allow_invalid_certificates")
"""Options that decide who may read the traffic."""


_CLIENT = """
    allow_http allow_invalid_certificates disable_system_certificates connect_timeout default_content_type http1_only
    http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle http2_max_frame_size http2_only
    pool_idle_timeout pool_max_idle_per_host proxy_ca_certificate proxy_excludes proxy_url randomize_addresses read_timeout
    root_certificate timeout user_agent
"""
CLIENT_OPTIONS = words(_CLIENT)
"""Options of the HTTP client, for every store."""

MAX_RETRIES = "max_retries"
"""How often the client repeats a request that may be repeated; conditional puts are sent once."""

_OF_CLIENT = CLIENT_OPTIONS | {MAX_RETRIES}

# Options of other Delta clients that have no meaning here: puts are always conditional.
_TOLERATED = words("""
    aws_s3_allow_unsafe_rename allow_unsafe_rename aws_s3_locking_provider delta_dynamo_table_name aws_conditional_put
    conditional_put aws_copy_if_not_exists copy_if_not_exists retry_timeout backoff_config.init_backoff
    backoff_config.max_backoff backoff_config.base durable
    aws_s3_pool_idle_timeout_seconds aws_sts_pool_idle_timeout_seconds aws_s3_get_internal_server_error_retries
    aws_ec2_metadata_disabled aws_ec2_metadata_timeout aws_force_credential_load delta_dynamo_billing_mode
    aws_endpoint_url_dynamodb aws_region_dynamodb aws_access_key_id_dynamodb aws_secret_access_key_dynamodb
    aws_session_token_dynamodb
""")
_STYLE, _STYLES = "aws_s3_addressing_style", {"virtual": "true", "path": "false"}
_BUCKETS = words("""
    aws_bucket aws_bucket_name bucket bucket_name google_bucket google_bucket_name azure_container_name container_name
""")
_PREFIXES = ("aws_", "azure_storage_", "azure_", "google_")
_HADOOP = ("dfs.", "fs.", "ha.", "hadoop.", "ipc.")
"""Beginnings of the names of Hadoop's own settings, which HDFS takes."""

NAMES: dict[str, dict[str, str]] = {}
for _store, _lines in _SPELLINGS.items():
    NAMES[_store] = {spelling: names[0] for names in map(str.split, _lines.strip().splitlines()) for spelling in names}
_ANY = frozenset(spelling for names in NAMES.values() for spelling in names)


def store_kind(uri: str) -> str | None:
    """Return the kind of store that holds a URI; ``None`` for local files and unknown schemes."""
    store = store_of(uri)
    return None if store == FILE else store


def canonical_options(options: Mapping[str, str], uri: str, *, whose: str = "") -> dict[str, str]:
    """Return the options that concern a table's store, each once and under one name (``aws_region``, ``allow_http``).

    Options of other stores are left out, since one connection may serve several.

    :param whose: the connection that they come from, for errors.
    :raises DeltaIllegalArgumentException: if no store knows an option, two spellings of one have different values, an endpoint
        is not a URL, or a region or an account cannot be part of a host's name.
    """
    store = store_kind(uri)
    if store is None:
        return dict(options)
    found: dict[str, str] = {}
    given: dict[str, str] = {}
    for spelling, told in options.items():
        name, value = canonical_name(spelling, store), told
        if store == S3 and spelling.lower() == _STYLE:
            name, value = "aws_virtual_hosted_style_request", _style(told, whose or f"table {uri}")
        if name is None:
            _check_known(spelling, whose or f"table {uri}")
            continue
        if name in ENDPOINTS:
            value = endpoint_url(spelling, value, whose or f"table {uri}")
        if name in _IN_HOST_NAMES and not _LABEL.fullmatch(value):
            raise DeltaIllegalArgumentException(
                f"{name} of {whose or f'table {uri}'} is {value!r}, which cannot be part of a host's name: requests would go to "
                "another host. It has letters, digits and hyphens only, such as eu-west-1."
            )
        if name in found and found[name] != value:
            raise DeltaIllegalArgumentException(
                f"The storage options of {whose or f'table {uri}'} set {name} twice, to different values: as {given[name]!r} and "
                f"as {spelling!r}. Remove one."
            )
        found[name] = value
        given[name] = spelling
    return found


def endpoint_url(spelling: str, url: str, whose: str) -> str:
    """Return the URL of a store as the client takes it: keys are appended to it.

    :raises DeltaIllegalArgumentException: if it is not one.
    """
    bare = url.strip().rstrip("/")
    if not bare:
        return bare
    try:
        parts = urlsplit(bare)
        is_url = parts.scheme.lower() in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment:
        raise DeltaIllegalArgumentException(
            f"The storage option {spelling!r} of {whose} is {masked(url)!r}, which is not the URL of a store. Write it with its "
            "scheme, such as https://minio.example.org:9000 or http://127.0.0.1:9000."
        )
    return bare


def canonical_name(spelling: str, store: str) -> str | None:
    """Return the name of an option; ``None`` if it is not one of this kind of store."""
    name = spelling.lower()
    if name in OWN_OPTIONS:
        return name
    if store == HDFS:
        return spelling if _is_hadoops(name) else HDFS_USER if name == HDFS_USER else None
    if (known := NAMES[store].get(name)) is not None:
        return known
    return bare if (bare := _bare(name)) in _OF_CLIENT else None


def _style(value: str, whose: str) -> str:
    """Return delta-rs's style of addressing a bucket as the value of object_store's option."""
    if value.lower() not in _STYLES:
        raise DeltaIllegalArgumentException(f"{_STYLE} of {whose} is {value!r}; there are {' and '.join(_STYLES)}.")
    return _STYLES[value.lower()]


def _is_hadoops(name: str) -> bool:
    return name.startswith(_HADOOP)


def _bare(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _check_known(spelling: str, whose: str) -> None:
    name = spelling.lower()
    if name in _BUCKETS:
        raise DeltaIllegalArgumentException(
            f"The storage options of {whose} set {spelling!r}, but the bucket is part of the table's location. Remove it."
        )
    if (
        name in _ANY
        or name in _TOLERATED
        or _bare(name) in {*CLIENT_OPTIONS, MAX_RETRIES}
        or name == HDFS_USER
        or _is_hadoops(name)
    ):
        return
    raise DeltaIllegalArgumentException(
        f"The storage options of {whose} set {spelling!r}, which no store knows. Use the names of object_store, such as "
        "AWS_REGION, AZURE_STORAGE_ACCOUNT_KEY or GOOGLE_SERVICE_ACCOUNT."
    )
