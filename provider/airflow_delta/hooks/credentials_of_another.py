"""Credentials that a connection takes from another one: given once, and sent only where that one points."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.storage.options import CREDENTIAL_ENDPOINTS, ENDPOINTS, NETWORK

ACCOUNT = "azure_storage_account_name"

_NAMES = """
    aws_access_key_id aws_secret_access_key aws_session_token aws_web_identity_token_file aws_skip_signature
    aws_container_credentials_relative_uri aws_container_credentials_full_uri
    azure_storage_account_key azure_storage_sas_key azure_storage_token azure_storage_client_id azure_storage_client_secret
    azure_msi_endpoint azure_msi_resource_id azure_federated_token_file azure_use_azure_cli azure_skip_signature
    google_service_account google_service_account_key google_application_credentials google_bearer_token google_skip_signature
"""
IDENTITY = frozenset(_NAMES.split())
"""Storage options that say who asks; without any, the worker's environment does."""


def check_one_identity(options: Mapping[str, str], *, has_login: bool, field: str, whose: str) -> None:
    """Refuse credentials that are given twice: by another connection, and by the connection itself.

    :param options: storage options of the connection itself, under their canonical names.
    :param has_login: the connection has a login or a password of its own.
    :param field: what names the other connection, for errors.
    :param whose: the connection, for errors.
    :raises DeltaIllegalArgumentException: if they are.
    """
    identity = [name for name in options if name in IDENTITY]
    if has_login or identity:
        given = "login and password" if has_login else f"storage_options ({', '.join(identity)})"
        raise DeltaIllegalArgumentException(
            f"The credentials of {whose} are given twice: by {field} and by {given}. Remove one of them."
        )


def check_same_place(cloud: Mapping[str, str], options: Mapping[str, str], *, field: str, conn_id: str, whose: str) -> None:
    """Refuse to send the credentials of another connection to a place that is not its own.

    :param cloud: options that come from the other connection.
    :param options: storage options of the connection itself.
    :param field: what names the other connection, for errors.
    :param conn_id: the other connection.
    :param whose: the connection, for errors.
    :raises DeltaIllegalArgumentException: if an option changes the place, or who may read the traffic.
    """
    named = ENDPOINTS | CREDENTIAL_ENDPOINTS | NETWORK | {ACCOUNT}
    if other := sorted(name for name in options if name in named and options[name] != cloud.get(name)):
        raise DeltaIllegalArgumentException(
            f"{whose[:1].upper()}{whose[1:]} takes its credentials from {conn_id!r} ({field}), which alone decides where they "
            f"are sent; its own storage_options set {', '.join(other)}. Set that in {conn_id!r}, or put credentials into this "
            "connection."
        )
