"""Who asks a store: the ways in which storage options can say so, of which one is used.

object_store takes the first of several ways without a word, and reads the environment as well, so what could be meant in another
way is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_delta.contract.location import AZURE, GCS, S3
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.storage.options import FILES, NAMES, words

# The ways to say who asks: what says it, what must be there too, what may be. The client would take the first that it knows.
_WAYS = {
    S3: """
        aws_skip_signature
        aws_access_key_id aws_secret_access_key
        aws_web_identity_token_file
        aws_container_credentials_relative_uri
        aws_container_credentials_full_uri
    """,
    AZURE: """
        azure_skip_signature
        azure_fabric_token_service_url azure_fabric_workload_host azure_fabric_session_token azure_fabric_cluster_identifier
        azure_storage_token
        azure_storage_account_key
        azure_federated_token_file azure_storage_client_id azure_storage_tenant_id
        azure_storage_client_secret azure_storage_client_id azure_storage_tenant_id
        azure_storage_sas_key
        azure_use_azure_cli
        azure_msi_endpoint
    """,
    GCS: """
        google_skip_signature
        google_bearer_token
        google_service_account
        google_service_account_key
        google_application_credentials
    """,
}  # fmt: skip

WAYS: dict[str, tuple[tuple[str, ...], ...]] = {
    _store: tuple(tuple(line.split()) for line in _lines.strip().splitlines()) for _store, _lines in _WAYS.items()
}
"""For each store, the ways to say who asks, in the order in which object_store looks for them."""

_SWITCHES = words("aws_skip_signature azure_skip_signature google_skip_signature azure_use_azure_cli")

_OF_PROCESS = FILES | words(
    "aws_container_credentials_relative_uri aws_container_credentials_full_uri azure_msi_endpoint azure_use_azure_cli"
)

_COMPANIONS = {"aws_session_token": "aws_access_key_id"}


def ways_of(options: Mapping[str, str], store: str | None) -> list[tuple[str, ...]]:
    """Return the ways in which options say who asks, each as the names of its options.

    :param options: under their canonical names.
    """
    return [way for way in WAYS.get(store or "", ()) if _says(options, way[0]) or (way[0] in _PAIRS and _says(options, way[1]))]


def is_explicit(options: Mapping[str, str], store: str | None) -> bool:
    """Return whether options hold their own credentials, or say that none are used: nothing of the process or machine is."""
    ways = ways_of(options, store)
    return bool(ways) and not any(way[0] in _OF_PROCESS for way in ways)


def check_identity(options: Mapping[str, str], store: str | None, whose: str) -> None:
    """Refuse credentials that cannot be used together, or not alone: the client would drop some without a word.

    :param options: under their canonical names.
    :raises DeltaIllegalArgumentException: if there are such.
    """
    ways = ways_of(options, store)
    if len(ways) > 1:
        named = " and ".join(", ".join(name for name in way if options.get(name)) for way in ways)
        raise DeltaIllegalArgumentException(
            f"The credentials of {whose} are given in {len(ways)} ways, which cannot be used together: {named}. Keep one of them."
        )
    missing = [name for way in ways for name in way if not options.get(name)]
    missing += [needed for name, needed in _COMPANIONS.items() if options.get(name) and not options.get(needed)]
    if missing:
        raise DeltaIllegalArgumentException(
            f"The credentials of {whose} lack {', '.join(missing)}. Without, "
            f"{', '.join(_identifying(options, store))} cannot be used."
        )


def check_environment(options: Mapping[str, str], store: str, environment: Mapping[str, str], whose: str) -> None:
    """Refuse credentials of the environment that the client would use instead of, or with, those in the options.

    The client reads every variable that has an option's name, and may prefer it: a token would go to the connection's endpoint.

    :raises DeltaIllegalArgumentException: if there are such.
    """
    ways = ways_of(options, store)
    if not ways or ways[0][0].endswith("skip_signature"):
        return
    first = WAYS[store].index(ways[0])
    before = {name for way in WAYS[store][1:first] for name in way if name not in ways[0]}
    if ways[0][0] in _PAIRS:
        before.add("aws_session_token")
    if ways[0][0] == "google_service_account_key":
        before.add("google_service_account")
    prefix = f"{WAYS[store][0][0].partition('_')[0]}_"
    found = sorted(
        variable
        for variable, value in environment.items()
        if value
        and variable.lower().startswith(prefix)
        and (name := NAMES[store].get(variable.lower())) in before
        and not options.get(str(name))
    )
    if found:
        raise DeltaIllegalArgumentException(
            f"The environment of this process has {', '.join(found)}, which the client would use together with, or instead of, "
            f"{ways[0][0]} of {whose}. Unset the variable where tasks use this connection, or take the credentials out of the "
            "connection to use those of the environment."
        )


_PAIRS = frozenset({"aws_access_key_id"})


def _says(options: Mapping[str, str], name: str) -> bool:
    value = options.get(name) or ""
    return value.strip().lower() in ("true", "1", "yes", "on", "y") if name in _SWITCHES else bool(value)


def _identifying(options: Mapping[str, str], store: str | None) -> list[str]:
    names = {name for way in WAYS.get(store or "", ()) for name in way} | _COMPANIONS.keys()
    return [name for name in options if name in names]
