"""What a connection of type ``aws`` says about the client of the store: what object_store can do, and by name what it cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.extra import texts

# https://botocore.amazonaws.com/v1/documentation/api/latest/reference/config.html
_HARMLESS = frozenset(
    {
        *("user_agent", "user_agent_extra", "user_agent_appid", "max_pool_connections", "tcp_keepalive", "parameter_validation"),
        *("request_checksum_calculation", "response_checksum_validation", "disable_request_compression", "inject_host_prefix"),
        *("request_min_compression_size_bytes", "endpoint_discovery_enabled", "defaults_mode"),
    }
)
_CARRIED = frozenset({"proxies", "connect_timeout", "read_timeout", "retries", "signature_version", "region_name", "s3"})
_HARMLESS_S3 = frozenset({"payload_signing_enabled", "us_east_1_regional_endpoint", "use_arn_region"})
_SIGNATURES = ("s3v4", "v4", "unsigned")


def client_options(extra: Mapping[str, Any], whose: str, certificate: Callable[[str], str]) -> dict[str, str]:
    """Return the storage options for ``verify`` and ``config_kwargs`` of a connection's extra.

    :param certificate: returns the certificates in a file that ``verify`` names, if the deployment allows that.
    :param whose: the connection, for errors.
    :raises DeltaIllegalArgumentException: if object_store has no such option, or a value is not valid.
    """
    verify, given = extra.get("verify"), extra.get("config_kwargs") or {}
    if not isinstance(given, Mapping):
        raise DeltaIllegalArgumentException(f"config_kwargs of {whose} must be a JSON object, got {given!r}.")
    _refuse(given.keys() - _CARRIED - _HARMLESS, "config_kwargs", whose)
    of_s3 = given.get("s3") or {}
    _refuse(of_s3.keys() - _HARMLESS_S3 - {"addressing_style"}, "config_kwargs.s3", whose)
    if (signature := given.get("signature_version")) not in (None, *_SIGNATURES):
        raise DeltaIllegalArgumentException(
            f"signature_version of {whose} is {signature!r}; there are {', '.join(_SIGNATURES)}. Remove it."
        )
    retries = given.get("retries") or {}
    attempts = retries.get("total_max_attempts")
    return texts(
        allow_invalid_certificates="true" if verify is False or str(verify).lower() == "false" else None,
        root_certificate=certificate(verify) if isinstance(verify, str) and verify.lower() not in ("true", "false", "") else None,
        proxy_url=_proxy(given.get("proxies") or {}, whose),
        connect_timeout=_seconds(given.get("connect_timeout")),
        read_timeout=_seconds(given.get("read_timeout")),
        max_retries=str(int(attempts) - 1) if attempts else str(retries["max_attempts"]) if "max_attempts" in retries else None,
        aws_skip_signature="true" if signature == "unsigned" else None,
        aws_virtual_hosted_style_request="true" if of_s3.get("addressing_style") == "virtual" else None,
        aws_region=given.get("region_name"),
    )


def _refuse(unknown: Any, name: str, whose: str) -> None:
    if unknown:
        raise DeltaIllegalArgumentException(
            f"{name} of {whose} has {', '.join(sorted(unknown))}, which object_store's client cannot do. Remove it, or use a "
            "connection of type delta, whose storage_options are those of object_store (an endpoint of its own, for example)."
        )


def _proxy(proxies: Mapping[str, Any], whose: str) -> str | None:
    urls = {str(url) if "://" in str(url) else f"http://{url}" for url in proxies.values() if url}
    if len(urls) > 1:
        hosts = ", ".join(sorted(str(urlsplit(url).hostname) for url in urls))
        raise DeltaIllegalArgumentException(
            f"proxies of {whose} names {len(urls)} proxies ({hosts}); the client of a store has one. Name one."
        )
    return next(iter(urls), None)


def _seconds(value: Any) -> str | None:
    return f"{round(float(value) * 1000)}ms" if value else None
