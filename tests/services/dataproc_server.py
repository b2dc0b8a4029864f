"""Dataproc's API on loopback, with the messages of Google's own client library, which refuse what is not in their schema.

Nothing of the operators or their hook is replaced: gRPC reaches ``<region>-dataproc.googleapis.com`` through the proxy that its
environment names, which leads here, and trusts the certificate that its environment names.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import shutil
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc
from cryptography import x509
from google.cloud import dataproc_v1 as dataproc
from google.longrunning import operations_pb2
from google.protobuf import any_pb2

from services.drivers import Driver, ServiceSpark
from services.loopback import Certificate, Drivers
from stores.process import LOOPBACK

PROJECT = "lake-project"
_JOB_STATES = {
    "running": dataproc.JobStatus.State.RUNNING,
    "succeeded": dataproc.JobStatus.State.DONE,
    "failed": dataproc.JobStatus.State.ERROR,
}
_BATCH_STATES = {
    "running": dataproc.Batch.State.RUNNING,
    "succeeded": dataproc.Batch.State.SUCCEEDED,
    "failed": dataproc.Batch.State.FAILED,
}


@functools.cache
def _certificate() -> Certificate:
    """Return the certificate of all servers of this process: gRPC reads once in a process what it trusts."""
    directory = tempfile.mkdtemp(prefix="airflow-delta-services-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Certificate(Path(directory), x509.DNSName("*.googleapis.com"))


class Dataproc:
    """The jobs and the batches of a project.

    :param spark: of its clusters and batches.
    """

    def __init__(self, spark: ServiceSpark) -> None:
        self.drivers = Drivers(spark)
        self._ids = itertools.count(1)
        self._jobs: dict[str, dataproc.Job] = {}
        self._batches: dict[str, dataproc.Batch] = {}
        self._requests: dict[str, Any] = {}
        certificate = _certificate()
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers(
            (
                _service(
                    "JobController",
                    SubmitJob=(self.submit_job, dataproc.SubmitJobRequest, dataproc.Job.serialize),
                    GetJob=(self.get_job, dataproc.GetJobRequest, dataproc.Job.serialize),
                ),
                _service(
                    "BatchController",
                    CreateBatch=(self.create_batch, dataproc.CreateBatchRequest, operations_pb2.Operation.SerializeToString),
                    GetBatch=(self.get_batch, dataproc.GetBatchRequest, dataproc.Batch.serialize),
                ),
            )
        )
        keys = [(certificate.key_path.read_bytes(), certificate.path.read_bytes())]
        self._proxy = _Proxy(self._server.add_secure_port(f"{LOOPBACK}:0", grpc.ssl_server_credentials(keys)))
        self.environment = {
            "grpc_proxy": f"http://{LOOPBACK}:{self._proxy.server_address[1]}",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(certificate.path),
        }
        """What leads gRPC's clients here."""

    def __enter__(self) -> Self:
        self._server.start()
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()
        self._server.stop(None).wait()
        self.drivers.__exit__()

    connection: dict[str, Any] = {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True, "project": PROJECT}}
    """A connection of Airflow to the project."""

    def submit_job(self, request: dataproc.SubmitJobRequest, context: grpc.ServicerContext) -> dataproc.Job:
        """Submit a job to a cluster; a request that was seen before returns the job it made."""
        if request.request_id and request.request_id in self._requests:
            return self._requests[request.request_id]
        job = request.job
        if not (request.project_id == PROJECT and request.region and job.placement.cluster_name):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "project_id, region and placement.cluster_name are required")
        driver = _driver(job.pyspark_job, context)
        job.reference.project_id, job.reference.job_id = PROJECT, job.reference.job_id or f"job-{next(self._ids)}"
        if job.reference.job_id in self._jobs:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"There is a job {job.reference.job_id}")
        self._jobs[job.reference.job_id] = self._requests[request.request_id] = job
        self.drivers.start(job.reference.job_id, driver, retries=job.scheduling.max_failures_per_hour)
        return self._told(job)

    def get_job(self, request: dataproc.GetJobRequest, context: grpc.ServicerContext) -> dataproc.Job:
        """Return a job with its state."""
        if request.job_id not in self._jobs:
            context.abort(grpc.StatusCode.NOT_FOUND, f"There is no job {request.job_id}")
        return self._told(self._jobs[request.job_id])

    def create_batch(self, request: dataproc.CreateBatchRequest, context: grpc.ServicerContext) -> operations_pb2.Operation:
        """Create a batch; the operation's metadata name it."""
        batch_id = request.batch_id or f"batch-{next(self._ids)}"
        name = f"{request.parent.replace('/regions/', '/locations/')}/batches/{batch_id}"  # the service knows both
        if name in self._batches:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"There is a batch {name}")
        driver = _driver(request.batch.pyspark_batch, context)
        request.batch.name = name
        self._batches[name] = request.batch
        self.drivers.start(name, driver)
        metadata = any_pb2.Any()
        metadata.Pack(dataproc.BatchOperationMetadata.pb(dataproc.BatchOperationMetadata(batch=name)))
        return operations_pb2.Operation(name=f"{request.parent}/operations/{batch_id}", metadata=metadata)

    def get_batch(self, request: dataproc.GetBatchRequest, context: grpc.ServicerContext) -> dataproc.Batch:
        """Return a batch with its state."""
        if request.name not in self._batches:
            context.abort(grpc.StatusCode.NOT_FOUND, f"There is no batch {request.name}")
        batch = self._batches[request.name]
        state, output = self.drivers.state(request.name)
        batch.state, batch.state_message = _BATCH_STATES[state], output if state == "failed" else ""
        return batch

    def _told(self, job: dataproc.Job) -> dataproc.Job:
        state, output = self.drivers.state(job.reference.job_id)
        job.status = dataproc.JobStatus(state=_JOB_STATES[state], details=output if state == "failed" else "")
        return job


def _service(name: str, **methods: tuple[Callable[..., Any], Any, Callable[..., bytes]]) -> grpc.GenericRpcHandler:
    handlers = {
        method: grpc.unary_unary_rpc_method_handler(call, request_deserializer=asked.deserialize, response_serializer=answer)
        for method, (call, asked, answer) in methods.items()
    }
    return grpc.method_handlers_generic_handler(f"google.cloud.dataproc.v1.{name}", handlers)


def _driver(job: dataproc.PySparkJob | dataproc.PySparkBatch, context: grpc.ServicerContext) -> Driver:
    if not job.main_python_file_uri.endswith(".py"):
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"Not a Python file: {job.main_python_file_uri!r}")
    files = ["--py-files", ",".join(job.python_file_uris)] if job.python_file_uris else []
    return Driver(job.main_python_file_uri, list(job.args), files)


class _Proxy(socketserver.ThreadingTCPServer):
    """An HTTP proxy that leads every connection to one port on loopback, whatever name is asked for."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__((LOOPBACK, 0), _Tunnel)
        self.port = port


class _Tunnel(socketserver.StreamRequestHandler):
    server: _Proxy

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        with socket.create_connection((LOOPBACK, self.server.port)) as there:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_pump, args=(there, self.connection), daemon=True)
            back.start()
            _pump(self.connection, there)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one of the two has gone
        return
