"""What a connection may use of the process that opens it: files, places to ask for credentials, its own credentials.

A connection gives values. Whoever may edit it must not get at the secrets of a worker or of the API server by it: a file that
it names, or a token that the process fetches, would be sent to an endpoint that it names, too. So files and endpoints for
credentials are used only if the deployment lists them, the process's own credentials only in the processes that it lists, and
never at an endpoint that is neither the cloud's own nor listed (section ``delta`` of Airflow's configuration).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from airflow_delta.contract.location import AZURE, GCS, HDFS, S3
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.storage.identity import is_explicit
from airflow_delta.log.storage.options import CREDENTIAL_ENDPOINTS, ENDPOINTS, FILES, NETWORK
from airflow_delta.masking import masked

SECTION = "delta"
TASK, TRIGGERER, API_SERVER = "task", "triggerer", "api_server"
"""Kinds of processes."""

DEFAULT_PROCESSES = f"{TASK}, {TRIGGERER}"
_TRIGGERER = "airflow.jobs.triggerer_job_runner"
_API_SERVER = "airflow.api_fastapi.main"  # the module that uvicorn serves
_REGION = r"[a-z]{2}(?:-[a-z]+)+-\d"
# Hosts that only the cloud itself can serve: not *.amazonaws.com, below which anybody may have a load balancer, nor
# *.vpce.amazonaws.com, below which anybody may have a service; those of the cloud's services are named after them.
_OWN_HOSTS = {
    S3: lazy_pattern(
        rf"(?:[a-z0-9.-]+\.)?(?:s3(?:-fips|-accelerate)?(?:\.dualstack)?(?:[.-]{_REGION})?|s3express-[a-z0-9-]+\.{_REGION}|"
        rf"vpce-[a-z0-9-]+\.s3\.{_REGION}\.vpce)"
        r"\.amazonaws\.com(?:\.cn)?"
    ),
    AZURE: lazy_pattern(
        r"[a-z0-9-]+(?:\.z\d+)?\.(?:blob|dfs)\.(?:core\.(?:windows\.net|chinacloudapi\.cn|usgovcloudapi\.net|cloudapi\.de)|"
        r"fabric\.microsoft\.com|storage\.azure\.net)"
    ),
    GCS: lazy_pattern(r"(?:[a-z0-9._-]+\.)?storage(?:\.[a-z0-9-]+\.rep)?\.googleapis\.com"),
}
_OWN_TOKEN_HOSTS = {
    S3: lazy_pattern(rf"(?:sts(?:-fips)?(?:\.{_REGION})?|vpce-[a-z0-9-]+\.sts\.{_REGION}\.vpce)\.amazonaws\.com(?:\.cn)?"),
    AZURE: lazy_pattern(r"login\.(?:microsoftonline\.(?:com|us|de)|windows\.net|chinacloudapi\.cn|partner\.microsoftonline\.cn)"),
}
_OWN_SECRETS_GO_THERE = frozenset({"aws_endpoint_url_sts", "azure_storage_authority_host"})


@dataclass(frozen=True)
class Allowed:
    """What the deployment lets connections use in this process.

    :param process: :data:`TASK`, :data:`TRIGGERER` or :data:`API_SERVER`.
    :param processes: processes whose own credentials, and listed files and endpoints, connections may use.
    :param files: patterns of files that a connection may name.
    :param endpoints: URLs to which the process's credentials may be sent, and that may be asked for them.
    """

    process: str
    processes: tuple[str, ...]
    files: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()

    @classmethod
    def here(cls, process: str | None = None) -> Allowed:
        """Return what Airflow's configuration says for this process."""
        from airflow.sdk import conf

        def listed(name: str, default: str = "") -> tuple[str, ...]:
            text = str(conf.get(SECTION, name, fallback=default) or "")
            return tuple(part.strip() for part in text.split(",") if part.strip())

        return cls(
            process or this_process(),
            listed("process_credentials_in", DEFAULT_PROCESSES),
            listed("credential_files"),
            listed("credential_endpoints"),
        )

    @property
    def has_process(self) -> bool:
        """Whether connections may use anything of this process."""
        return self.process in self.processes

    def check(self, options: Mapping[str, str], store: str | None, whose: str) -> None:
        """Refuse options that use what the deployment has not allowed.

        :param options: of a connection, under their canonical names.
        :param whose: the connection, for errors.
        :raises DeltaIllegalArgumentException: if there are such; it names the option and the setting.
        """
        if store is None or store == HDFS:
            return
        own = is_explicit(options, store)
        for name in sorted(options.keys() & FILES):
            self.check_file(name, options[name], whose)
        for name in sorted(options.keys() & CREDENTIAL_ENDPOINTS):
            if not (own and name in _OWN_SECRETS_GO_THERE):
                self.check_endpoint(name, options[name], whose, _OWN_TOKEN_HOSTS.get(store))
        if own:
            return
        self.check_process(whose)
        trusted = False
        for name, value in endpoints_in(options):
            trusted = self.check_endpoint(name, value, whose, _OWN_HOSTS.get(store)) or trusted
        for name in sorted(options.keys() & NETWORK):
            if not (trusted or self._lists(options[name])):
                raise DeltaIllegalArgumentException(
                    f"{name} of {whose} is used with credentials that are not those of the connection: whoever sets it could "
                    "read them. Put credentials into the connection, or have the deployment list the endpoint in "
                    f"{_setting('credential_endpoints')}."
                )

    def check_process(self, whose: str) -> None:
        """Refuse to use the credentials of this process, of its machine or of its files, if the deployment has not allowed it.

        :raises DeltaIllegalArgumentException: if so.
        """
        if not self.has_process:
            raise DeltaIllegalArgumentException(
                f"{whose[:1].upper()}{whose[1:]} has no credentials of its own, and those of this process ({self.process}) may "
                f"not be used. Put credentials into the connection, or have the deployment add {self.process!r} to "
                f"{_setting('process_credentials_in')} ({', '.join(self.processes) or 'empty'})."
            )

    def check_file(self, name: str, path: str, whose: str) -> None:
        """Refuse a file of this process that the deployment has not listed.

        :param name: the option that names it, for errors.
        :param whose: the connection, for errors.
        :raises DeltaIllegalArgumentException: if it is not listed.
        """
        real = os.path.normpath(path)
        if self.has_process and os.path.isabs(path) and real == path and any(_matches(path, each) for each in self.files):
            return
        raise DeltaIllegalArgumentException(
            f"{name} of {whose} names a file of this process ({self.process}), which a connection may do only where the "
            f"deployment allows it: list {path} in {_setting('credential_files')}, and the process in "
            f"{_setting('process_credentials_in')}. Or put the content into the connection, or use the credentials of the "
            "environment."
        )

    def read_file(self, name: str, path: str, whose: str) -> str:
        """Return the text of a file that a connection names.

        :raises DeltaIllegalArgumentException: if the deployment does not allow it, or there is no such file.
        """
        self.check_file(name, path, whose)
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except (OSError, ValueError) as error:
            raise DeltaIllegalArgumentException(f"{name} of {whose} names {path}, which cannot be read: {error}") from error

    def check_endpoint(self, name: str, url: str, whose: str, own_hosts: re.Pattern[str] | None = None) -> bool:
        """Return whether the deployment has listed an endpoint; refuse one that is neither listed nor the cloud's own.

        :param name: the option that names it, for errors.
        :param whose: the connection, for errors.
        :param own_hosts: hosts that only the cloud itself can serve.
        :raises DeltaIllegalArgumentException: if it is refused.
        """
        parts = urlsplit(url if "://" in url else f"https://{url}")
        if (
            parts.scheme == "https"
            and own_hosts is not None
            and own_hosts.fullmatch((parts.hostname or "").lower())
            and not parts.username
        ):
            return False
        if self.has_process and self._lists(url):
            return True
        raise DeltaIllegalArgumentException(
            f"{name} of {whose} is {masked(url)}: not the cloud's own endpoint, but the credentials for it would not be those of "
            f"the connection. Put credentials into the connection, or have the deployment list the URL in "
            f"{_setting('credential_endpoints')}, and the process ({self.process}) in {_setting('process_credentials_in')}."
        )

    def _lists(self, url: str) -> bool:
        return url.rstrip("/") in {each.rstrip("/") for each in self.endpoints}


def _matches(path: str, pattern: str) -> bool:
    """Return whether a path is one of a pattern, part by part: ``*`` stands for no slash."""
    parts, patterns = path.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def endpoints_in(options: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yield the options that name the store, and the one in a service account's key."""
    for name in sorted(options.keys() & ENDPOINTS):
        yield name, options[name]
    try:
        key = json.loads(options.get("google_service_account_key") or "{}")
    except ValueError:
        return
    if isinstance(key, dict) and key.get("gcs_base_url"):
        yield "gcs_base_url in google_service_account_key", str(key["gcs_base_url"])


def this_process() -> str:
    """Return the kind of this process: what is neither the API server nor the triggerer runs tasks, or is somebody's shell."""
    if _TRIGGERER in sys.modules:
        return TRIGGERER
    return API_SERVER if _API_SERVER in sys.modules else TASK


def _setting(name: str) -> str:
    return f"AIRFLOW__{SECTION.upper()}__{name.upper()}"
