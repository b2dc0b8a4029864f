"""An Airflow as larger installations have it: CeleryExecutor on Redis, two schedulers, XComs on S3, all on loopback."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from live.airflow_services import SERVICES, Airflow, free_port
from stores.install import CELERY, PROGRAMS
from stores.servers import Versitygw

CONCURRENCY = 4


class CeleryAirflow(Airflow):
    """The live tests' Airflow, with other services.

    :param store: where the XComs are.
    """

    services = {
        **SERVICES,
        "second-scheduler": SERVICES["scheduler"],
        "worker": ["celery", "worker", "--concurrency", str(CONCURRENCY), "--skip-serve-logs"],
    }

    def __init__(self, home: Path, socket_directory: Path, store: Versitygw) -> None:
        self._store, self._redis_port = store, free_port()
        self.bucket = store.container()
        super().__init__(home, socket_directory)

    def environment(self, database: str, port: int) -> dict[str, str]:
        """Return the environment of all processes."""
        options = self._store.options
        xcom = {
            "conn_type": "aws",
            "login": options["aws_access_key_id"],
            "password": options["aws_secret_access_key"],
            "extra": {"endpoint_url": options["aws_endpoint_url"], "region_name": options["aws_region"]},
        }
        own = super().environment(database, port)
        return own | {
            "AIRFLOW_CONN_XCOM": json.dumps(xcom),
            "AIRFLOW__CELERY__BROKER_URL": f"redis://127.0.0.1:{self._redis_port}/0",
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{database}",
            "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_PATH": f"s3://xcom@{self.bucket}/xcom",
            "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_THRESHOLD": "0",  # all of them
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CORE__XCOM_BACKEND": "airflow.providers.common.io.xcom.backend.XComObjectStorageBackend",
            "PYTHONPATH": os.pathsep.join((str(CELERY), own["PYTHONPATH"])),
        }

    def start_redis(self) -> None:
        """Start the broker; to be called before :meth:`start`."""
        arguments = ["--port", str(self._redis_port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.home)]
        self._launch("redis", [str(PROGRAMS["Redis"]), *arguments])
        cli = PROGRAMS["Redis"].with_name("redis-cli")

        def answers() -> bool:
            ping = [str(cli), "-p", str(self._redis_port), "ping"]
            return subprocess.run(ping, capture_output=True, text=True, check=False).stdout.strip() == "PONG"

        self._wait("Redis", answers, of="redis")

    def xcoms(self) -> list[dict[str, Any]]:
        """Return the XComs on the store, parsed."""
        from stores.servers import s3_client

        client = s3_client(self._store.options)
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix="xcom/")
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        found = [json.loads(client.get_object(Bucket=self.bucket, Key=key)["Body"].read()) for key in keys]
        client.close()
        return found
