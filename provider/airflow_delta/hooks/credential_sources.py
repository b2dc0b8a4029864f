"""Where connections to clouds have Airflow's hooks ask for credentials: refused before anything is read or asked, unless allowed.

A hook reads the file that such a connection names, and sends its content to the host that it names: whoever edits the connection
could read any file of the worker so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_delta.contract.location import S3
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.allowed import Allowed
from airflow_delta.lazy_patterns import lazy_pattern

_SAML_REQUEST = frozenset({"timeout", "headers", "allow_redirects"})
_GOOGLE_HOSTS = lazy_pattern(r"(?:sts|iamcredentials|oauth2|accounts)(?:\.[a-z0-9-]+\.rep)?\.googleapis\.com")
_GOOGLE_URLS = ("token_url", "token_info_url", "service_account_impersonation_url")
_MACHINE_URLS = ("url", "region_url", "imdsv2_session_token_url")


def check_aws_sources(
    extra: Mapping[str, Any], client: Mapping[str, str], allowed: Allowed, whose: str, *, has_keys: bool
) -> None:
    """Refuse what a connection of type ``aws`` names for Airflow's hook, unless it is the cloud's own or the deployment lists it.

    :param extra: of the connection, without the prefixes of its form.
    :param client: storage options of its ``verify`` and ``config_kwargs``.
    :param whose: the connection, for errors.
    :param has_keys: it has a key pair of its own, which may be sent to any host that the connection names.
    :raises DeltaIllegalArgumentException: names the field and the setting that would allow it.
    """
    saml = extra.get("assume_role_with_saml")
    token = extra.get("assume_role_with_web_identity_token_file")
    if isinstance(saml, Mapping):
        allowed.check_endpoint("idp_url in assume_role_with_saml", str(saml.get("idp_url") or ""), whose)
        given = saml.get("idp_request_kwargs") or {}
        if other := sorted(given.keys() - _SAML_REQUEST if isinstance(given, Mapping) else {str(given)}):
            raise DeltaIllegalArgumentException(
                f"idp_request_kwargs of {whose} has {', '.join(other)}: that could have files of this process read, or others "
                f"read the traffic. There may be {', '.join(sorted(_SAML_REQUEST))}."
            )
    if has_keys and not (saml or token or extra.get("assume_role_with_web_identity_federation")):
        return
    services = extra.get("service_config")
    urls = {
        f"aws_endpoint_url_{'s3' if name == 's3' else 'sts'}": str(service["endpoint_url"])
        for name, service in (services.items() if isinstance(services, Mapping) else ())
        if name in ("s3", "sts") and isinstance(service, Mapping) and service.get("endpoint_url")
    }
    if extra.get("endpoint_url"):
        urls["aws_endpoint_url"] = str(extra["endpoint_url"])
    files = {"aws_web_identity_token_file": str(token)} if token else {}
    allowed.check({**client, **urls, **files}, S3, whose)


def check_google_sources(config: Any, allowed: Allowed, whose: str) -> None:
    """Refuse what a configuration for federated credentials names, unless it is Google's own or the deployment lists it.

    :param config: ``credential_config_file`` of a connection: JSON, or the path of a file, whose content the deployment chose.
    :param whose: the connection, for errors.
    :raises DeltaIllegalArgumentException: names the field and the setting that would allow it.
    """
    if isinstance(config, str):
        if not config.lstrip().startswith("{"):
            return
        try:
            config = json.loads(config)
        except ValueError as error:
            raise DeltaIllegalArgumentException(f"credential_config_file of {whose} is not JSON: {error}") from error
    if not isinstance(config, Mapping):
        return
    for name, url in _texts(config, _GOOGLE_URLS):
        allowed.check_endpoint(f"{name} in credential_config_file", url, whose, _GOOGLE_HOSTS)
    source = config.get("credential_source")
    if not isinstance(source, Mapping):
        return
    if unknown := sorted({"executable", "certificate"} & source.keys()):
        raise DeltaIllegalArgumentException(
            f"credential_source.{unknown[0]} in credential_config_file of {whose} would have this process run a program or read "
            "its files. Put credentials into the connection, or use those of the environment."
        )
    for name, path in _texts(source, ("file",)):
        allowed.check_file(f"credential_source.{name} in credential_config_file", path, whose)
    for name, url in _texts(source, _MACHINE_URLS):
        allowed.check_endpoint(f"credential_source.{name} in credential_config_file", url, whose)


def _texts(given: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in names:
        if given.get(name):
            yield name, str(given[name])
