"""A Spark pool of Azure Synapse, and the identity of a machine that may use it, on loopback.

What is submitted is checked against the model of Azure's own client: no unknown field, and each value of its type.
"""

from __future__ import annotations

import ipaddress
import itertools
import time
from pathlib import Path
from typing import Any, ClassVar

from azure.synapse.spark import models
from cryptography import x509
from msrest import Deserializer

from services.drivers import Driver, ServiceSpark
from services.loopback import Certificate, Drivers, JsonService, Refused
from stores.process import LOOPBACK

POOL = "pool"
TOKEN = "token-of-the-identity"
_STATES = {"running": "running", "succeeded": "success", "failed": "dead"}


class Identity(JsonService):
    """The endpoint at which a machine of Azure gets its tokens."""

    routes: ClassVar[dict[str, str]] = {"GET /token": "token"}

    @property
    def environment(self) -> dict[str, str]:
        """What a process on such a machine has."""
        return {"IDENTITY_ENDPOINT": f"{self.url}/token", "IDENTITY_HEADER": "of-the-machine"}

    def token(self, *, body: Any, headers: dict[str, str]) -> Any:
        """Return a token."""
        if not headers.get("X-Identity-Header", headers.get("X-IDENTITY-HEADER")):
            raise Refused(403, "Not from the machine")
        expires = str(int(time.time()) + 3600)
        return {"access_token": TOKEN, "expires_on": expires, "resource": body["resource"], "token_type": "Bearer"}


class Synapse(JsonService):
    """A workspace with one Spark pool.

    :param directory: an existing directory.
    :param spark: of the pool.
    """

    routes: ClassVar[dict[str, str]] = {
        f"POST /livyApi/versions/[-\\w]+/sparkPools/{POOL}/batches": "submit",
        f"GET /livyApi/versions/[-\\w]+/sparkPools/{POOL}/batches/(\\d+)": "get",
    }

    def __init__(self, directory: Path, spark: ServiceSpark) -> None:
        self.certificate = Certificate(directory, x509.IPAddress(ipaddress.ip_address(LOOPBACK)))
        super().__init__(self.certificate)
        self.drivers = Drivers(spark)
        self._ids = itertools.count(0)
        self._names: dict[int, str] = {}

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.drivers.__exit__()

    @property
    def connection(self) -> dict[str, Any]:
        """A connection of Airflow to the workspace, by the identity of its machine."""
        return {"conn_type": "azure_synapse", "host": self.url, "extra": {"subscriptionId": "subscription"}}

    def submit(self, *, body: Any, headers: dict[str, str]) -> Any:
        """Submit a batch."""
        self._check_token(headers)
        options = models.SparkBatchJobOptions
        known = {entry["key"] for entry in options._attribute_map.values()}
        if unknown := set(body) - known:
            raise Refused(400, f"Unknown fields: {', '.join(sorted(unknown))}")
        kinds = {name: kind for name, kind in vars(models).items() if isinstance(kind, type)}
        asked = Deserializer(kinds)("SparkBatchJobOptions", body)
        if not (asked.name and asked.file):
            raise Refused(400, "name and file are required")
        run = next(self._ids)
        self._names[run] = asked.name
        files = ["--py-files", ",".join(asked.python_files)] if asked.python_files else []
        self.drivers.start(run, Driver(asked.file, asked.arguments or [], files))
        return self._told(run)

    def get(self, run: str, *, body: Any, headers: dict[str, str]) -> Any:
        """Tell about a batch."""
        self._check_token(headers)
        if int(run) not in self._names:
            raise Refused(404, f"There is no batch {run}")
        return self._told(int(run))

    def _told(self, run: int) -> Any:
        state, output = self.drivers.state(run)
        return {"id": run, "name": self._names[run], "state": _STATES[state], "log": output.splitlines()}

    def _check_token(self, headers: dict[str, str]) -> None:
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refused(401, "No token of this workspace")
