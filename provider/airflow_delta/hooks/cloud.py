"""Storage options from Airflow's connections to clouds: ``aws``, ``google_cloud_platform``, ``wasb`` and ``adls``.

A connection with plain credentials needs no other provider. What must be fetched first (an assumed role, a token) comes from the
hook of that cloud's provider.
"""

from __future__ import annotations

import contextvars
import hashlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import UTC
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.sdk.log import mask_secret

from airflow_delta.contract.location import AZURE, S3
from airflow_delta.exceptions import CredentialsUnavailableException, DeltaIllegalArgumentException
from airflow_delta.hooks.allowed import Allowed
from airflow_delta.hooks.aws_client import client_options
from airflow_delta.hooks.azure import azure_options
from airflow_delta.hooks.credential_sources import check_aws_sources, check_google_sources
from airflow_delta.hooks.extra import extra_of, field_of, json_type, texts
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.storage.credentials import EXPIRES_AT, renewable
from airflow_delta.log.storage.identity import check_identity
from airflow_delta.masking import secret_values

if TYPE_CHECKING:
    from airflow.sdk import Connection

CONN_TYPES = {"aws": "aws_conn_id", "google_cloud_platform": "gcp_conn_id", "wasb": "wasb_conn_id", "adls": "adls_conn_id"}
"""Connection types that can be read here, with the field of a ``delta`` connection that names one."""

KEPT_SECONDS = 60.0
"""How long fetched credentials are reused: a task opens its table several times."""

_AWS_HOOK = "airflow.providers.amazon.aws.hooks.base_aws"
_GOOGLE_HOOK = "airflow.providers.google.common.hooks.base_google"
_PLAIN_AWS = {
    *("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region_name", "endpoint_url", "service_config"),
    *("verify", "config_kwargs"),
}
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_ROLE_OPTIONS = (*_KEYS, "aws_role_arn", "aws_role_session_name", "aws_region", "aws_endpoint_url_sts")
_SESSION = "airflow-delta"
_OF_ACCOUNT = ("azure_storage_account_key", "azure_storage_sas_key")
_SALT = os.urandom(16)

CREDENTIALS_TIMEOUT = 20.0
"""Seconds for which credentials are waited for; then the connection fails, and at once for :data:`_FAILED_SECONDS`."""

_CONNECT_TIMEOUT, _READ_TIMEOUT = 5, 10
_RETRIES = {"total_max_attempts": 3, "mode": "standard"}
_BUSY = frozenset({"RequestLimitExceeded", "ServiceUnavailable", "Throttling", "ThrottlingException", "TooManyRequestsException"})
"""Codes with which a service says that it may answer later."""
_FAILED_SECONDS = 5.0


def cloud_options(connection: Connection, conn_id: str, allowed: Allowed) -> dict[str, str]:
    """Return the storage options for a connection to a cloud.

    :param allowed: what it may use of this process.
    :raises DeltaIllegalArgumentException: if it needs a provider that is not installed, holds nothing that a store can use, or
        uses what the deployment has not allowed.
    """
    return _READERS[str(connection.conn_type)](connection, conn_id, allowed)


def _aws(connection: Connection, conn_id: str, allowed: Allowed) -> dict[str, str]:
    given = extra_of(connection, conn_id)
    extra = {key.removeprefix("extra__aws__"): value for key, value in given.items() if value or value is False}
    client = client_options(extra, _named(conn_id), lambda path: allowed.read_file("verify", path, _named(conn_id)))
    has_keys = bool(connection.login or "aws_access_key_id" in extra)
    if not extra.keys() - _PLAIN_AWS and has_keys:
        services = _object(extra.get("service_config"), "service_config", conn_id)
        service = _object(services.get("s3"), "s3 in service_config", conn_id)
        region = texts(aws_region=service.get("region_name") or extra.get("region_name"))
        keys = texts(
            aws_access_key_id=connection.login or extra.get("aws_access_key_id"),
            aws_secret_access_key=connection.password or extra.get("aws_secret_access_key"),
            aws_session_token=extra.get("aws_session_token"),
        )
        endpoint = texts(aws_endpoint_url=service.get("endpoint_url") or extra.get("endpoint_url"))
        return {**client, **region, **endpoint, **({} if "aws_skip_signature" in client else keys)}
    # The hook may read files and profiles, and ask the machine.
    allowed.check_process(_named(conn_id))
    check_aws_sources(extra, client, allowed, _named(conn_id), has_keys=has_keys)
    unsigned = "aws_skip_signature" in client
    fetched = _kept if unsigned else _renewed
    found = fetched(_fingerprint(connection, conn_id), _named(conn_id), lambda: _from_aws_hook(conn_id, unsigned=unsigned))
    if not has_keys:
        allowed.check({name: value for name, value in {**client, **found}.items() if name not in _KEYS}, S3, _named(conn_id))
    return {**client, **found}


def _object(value: Any, name: str, conn_id: str) -> Mapping[str, Any]:
    if value and not isinstance(value, Mapping):
        raise DeltaIllegalArgumentException(
            f"{name} of {_named(conn_id)} must be a JSON object; it is a JSON {json_type(value)}."
        )
    return value or {}


def _from_aws_hook(conn_id: str, *, unsigned: bool) -> dict[str, str]:
    hook = _module(_AWS_HOOK, "apache-airflow-providers-amazon", conn_id).AwsBaseHook(aws_conn_id=conn_id, client_type="s3")
    config = hook.conn_config
    options = {"aws_region": hook.region_name, "aws_endpoint_url": config.get_service_endpoint_url("s3")}
    if unsigned:
        return texts(**options)
    botocore_errors = _module("botocore.exceptions", "apache-airflow-providers-amazon", conn_id)
    try:
        credentials = hook.get_credentials(region_name=hook.region_name)
    except (botocore_errors.BotoCoreError, botocore_errors.ClientError) as error:
        kind = CredentialsUnavailableException if _may_pass(error) else DeltaIllegalArgumentException
        raise kind(f"The credentials of {_named(conn_id)} cannot be fetched: {error}") from error
    return texts(
        **options,
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        aws_session_token=credentials.token,
    )


def assumed_role(options: Mapping[str, str], whose: str) -> dict[str, str]:
    """Return options with the credentials of ``aws_role_arn``, which object_store assumes only for a web identity.

    :raises DeltaIllegalArgumentException: if boto3 is not installed, or the role cannot be assumed.
    :raises CredentialsUnavailableException: if the service does not answer now.
    """
    if not options.get("aws_role_arn") or options.get("aws_web_identity_token_file"):
        return dict(options)
    wanted = {name: value for name, value in options.items() if name in _ROLE_OPTIONS}
    kept = {name: value for name, value in options.items() if not name.startswith("aws_role_") and name not in _KEYS}
    return {**kept, **_renewed(_digest(wanted), whose, lambda: _assume(wanted, whose))}


def _assume(options: Mapping[str, str], whose: str) -> dict[str, str]:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ModuleNotFoundError as error:
        raise DeltaIllegalArgumentException(
            f"aws_role_arn of {whose} needs boto3 on this worker. Install it, or set AWS_WEB_IDENTITY_TOKEN_FILE or aws_conn_id."
        ) from error
    role = options["aws_role_arn"]
    client = boto3.client(
        "sts",
        region_name=options.get("aws_region"),
        endpoint_url=options.get("aws_endpoint_url_sts"),
        aws_access_key_id=options.get("aws_access_key_id"),
        aws_secret_access_key=options.get("aws_secret_access_key"),
        aws_session_token=options.get("aws_session_token"),
        config=Config(connect_timeout=_CONNECT_TIMEOUT, read_timeout=_READ_TIMEOUT, retries=_RETRIES),
    )
    try:
        found = client.assume_role(RoleArn=role, RoleSessionName=options.get("aws_role_session_name") or _SESSION)["Credentials"]
    except (BotoCoreError, ClientError) as error:
        kind = CredentialsUnavailableException if _may_pass(error) else DeltaIllegalArgumentException
        raise kind(f"The role {role} of {whose} cannot be assumed: {error}") from error
    finally:
        client.close()
    return {
        "aws_access_key_id": found["AccessKeyId"],
        "aws_secret_access_key": found["SecretAccessKey"],
        "aws_session_token": found["SessionToken"],
        EXPIRES_AT: str(found["Expiration"].timestamp()),
    }


def _may_pass(error: Exception) -> bool:
    """Return whether an error of botocore may pass by itself: no answer, or a service that is too busy. A refusal does not."""
    from botocore import exceptions

    if not isinstance(error, exceptions.ClientError):
        return isinstance(error, exceptions.ConnectionError | exceptions.HTTPClientError | exceptions.MetadataRetrievalError)
    answer: Mapping[str, Any] = error.response
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= 500 or answer.get("Error", {}).get("Code") in _BUSY


def _google(connection: Connection, conn_id: str, allowed: Allowed) -> dict[str, str]:
    if field_of(connection, "is_anonymous"):
        return {"google_skip_signature": "true"}
    if not field_of(connection, "impersonation_chain"):
        if key := field_of(connection, "keyfile_dict"):
            return {"google_service_account_key": key if isinstance(key, str) else json.dumps(key)}
        if path := field_of(connection, "key_path"):
            allowed.check_process(_named(conn_id))
            return {"google_service_account": str(path)}
    allowed.check_process(_named(conn_id))
    check_google_sources(field_of(connection, "credential_config_file"), allowed, _named(conn_id))
    return _renewed(_fingerprint(connection, conn_id), _named(conn_id), lambda: _from_google_hook(conn_id))


def _from_google_hook(conn_id: str) -> dict[str, str]:
    module = _module(_GOOGLE_HOOK, "apache-airflow-providers-google", conn_id)
    google_errors = _module("google.auth.exceptions", "apache-airflow-providers-google", conn_id)
    from google.auth.transport.requests import Request

    try:
        credentials, _ = module.GoogleBaseHook(gcp_conn_id=conn_id).get_credentials_and_project_id()
        if not credentials.valid:
            credentials.refresh(partial(Request(), timeout=_READ_TIMEOUT))
    except google_errors.GoogleAuthError as error:
        kind = CredentialsUnavailableException if error.retryable else DeltaIllegalArgumentException
        raise kind(f"The credentials of {_named(conn_id)} cannot be fetched: {error}") from error
    until = credentials.expiry  # without a zone, in UTC
    return texts(
        **{"google_bearer_token": credentials.token, EXPIRES_AT: until.replace(tzinfo=UTC).timestamp() if until else None}
    )


def _azure(connection: Connection, conn_id: str, allowed: Allowed) -> dict[str, str]:
    options = azure_options(connection, conn_id)
    if not options.get("azure_storage_account_name") and any(options.get(name) for name in _OF_ACCOUNT):
        raise DeltaIllegalArgumentException(
            f"The connection {conn_id!r} has the key or a SAS token of a storage account, but does not name the account: it "
            "would be sent to whatever account a location names. Set its host to the account's name."
        )
    check_identity(options, AZURE, _named(conn_id))
    allowed.check(options, AZURE, _named(conn_id))
    return options


_READERS: Mapping[str, Callable[[Any, str, Allowed], dict[str, str]]] = {
    "aws": _aws,
    "google_cloud_platform": _google,
    "wasb": _azure,
    "adls": _azure,
}


def _module(name: str, package: str, conn_id: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise DeltaIllegalArgumentException(
            f"The connection {conn_id!r} needs {package} to get its credentials, which is not installed on this worker. Install "
            "it, or put plain credentials into the connection."
        ) from error


@dataclass
class _Fetched:
    """Credentials of one identity: waiting for them blocks no other."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    at: float = 0.0
    options: dict[str, str] | None = None
    error: BaseException | None = None

    def get(self, fetch: Callable[[], dict[str, str]], whose: str) -> dict[str, str]:
        """Return them, at most :data:`KEPT_SECONDS` old.

        :raises CredentialsUnavailableException: if they do not come in time.
        """
        started = time.monotonic()
        if not self.lock.acquire(timeout=CREDENTIALS_TIMEOUT):
            raise _late(whose)
        try:
            age = time.monotonic() - self.at
            if self.options is not None and age <= KEPT_SECONDS:
                return dict(self.options)
            if self.error is not None and age <= _FAILED_SECONDS and self.at >= started:  # it was fetched while we waited
                raise self.error
            self.options, self.error = None, None
            try:
                self.options = _within(fetch, whose)
            except Exception as error:
                self.error = error
                raise
            finally:
                self.at = time.monotonic()
            return dict(self.options)
        finally:
            self.lock.release()


_lock = threading.Lock()
_fetched: dict[str, _Fetched] = {}


def _kept(identity: str, whose: str, fetch: Callable[[], dict[str, str]]) -> dict[str, str]:
    with _lock:
        now = time.monotonic()
        for old in [key for key, found in _fetched.items() if now - found.at > KEPT_SECONDS and not found.lock.locked()]:
            if old != identity:
                del _fetched[old]
        found = _fetched.setdefault(identity, _Fetched())
    return found.get(fetch, whose)


def _renewed(identity: str, whose: str, fetch: Callable[[], dict[str, str]]) -> dict[str, str]:
    """Return credentials, with the name under which a store fetches them again before they expire."""

    def again() -> dict[str, str]:
        options = _kept(identity, whose, fetch)
        for value in secret_values(options):
            mask_secret(value)
        return options

    return renewable(again(), identity, again)


def _within(fetch: Callable[[], dict[str, str]], whose: str) -> dict[str, str]:
    """Return what a function returns, or give up: a provider's hook may have no time limits of its own."""
    answers: queue.SimpleQueue[dict[str, str] | BaseException] = queue.SimpleQueue()
    context = contextvars.copy_context()

    def ask() -> None:
        try:
            answers.put(context.run(fetch))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            answers.put(error)

    threading.Thread(target=ask, name="delta-credentials", daemon=True).start()
    try:
        answer = answers.get(timeout=CREDENTIALS_TIMEOUT)
    except queue.Empty:
        raise _late(whose) from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _late(whose: str) -> CredentialsUnavailableException:
    return CredentialsUnavailableException(
        f"The credentials of {whose} did not come within {CREDENTIALS_TIMEOUT:.0f} s. Check the endpoint that is asked for them."
    )


def _fingerprint(connection: Connection, conn_id: str) -> str:
    """Return a key for what a connection says: after it is edited, or in another team, its id is another identity."""
    return _digest([conn_id, connection.conn_type, connection.login, connection.password, connection.host, connection.extra])


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), key=_SALT).hexdigest()


def _named(conn_id: str) -> str:
    return f"the connection {conn_id!r}"
