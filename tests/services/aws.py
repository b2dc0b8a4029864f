"""AWS on loopback: moto keeps what is submitted to EMR and Glue, a thread runs it as the services do, and S3 obeys IAM.

moto runs nothing, and has no permissions on objects by role. Here a job is run by a Spark of its own with the credentials of its
role, and what the role's policy does not allow on S3 is refused, as moto's own evaluation of policies has it.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock
from urllib.parse import parse_qs, unquote
from xml.etree import ElementTree

import boto3
from moto.emr.models import emr_backends
from moto.emrcontainers.models import emrcontainers_backends
from moto.emrserverless.models import emrserverless_backends
from moto.glue.models import glue_backends
from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.moto_api import state_manager

from services.drivers import Driver, ServiceSpark, arguments_by_name
from stores.locked_moto import LockedMotoServer
from stores.process import LOOPBACK, free_port

ACCOUNT, REGION = "123456789012", "us-east-1"
BUCKET = "lake"
JOB_KEY, JOB_SECRET = "AKIAOFTHEJOBSROLE001", "secret-of-the-job"
WORKER_KEY, WORKER_SECRET = "AKIAOFTHEWORKER00001", "secret-of-the-worker"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/delta-job"

_POLL = 0.2


class Permissions:
    """What stands before S3: requests of the job's role are held against its policy, those of everybody else pass.

    :param moto: the application behind.
    """

    def __init__(self, moto: Any) -> None:
        self._moto = moto
        self.policy: Mapping[str, Any] | None = None
        """An IAM policy; ``None``: everything is allowed."""
        self.used: set[tuple[str, str]] = set()
        self.refused: set[tuple[str, str]] = set()
        """Action and resource of what the role has asked for."""

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        if f"Credential={JOB_KEY}/" not in environ.get("HTTP_AUTHORIZATION", ""):
            return self._moto(environ, start_response)
        asked = set(_asked(environ))
        self.used |= asked
        refused = {each for each in asked if not self._allows(*each)}
        self.refused |= refused
        if not refused:
            return self._moto(environ, start_response)
        if "delete" in parse_qs(environ["QUERY_STRING"], keep_blank_values=True):  # each key by itself; here, none is deleted
            keys = [resource.partition("/")[2] for _, resource in asked]
            return _answer(start_response, "200 OK", _not_deleted(keys))
        return _answer(
            start_response, "403 Forbidden", "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        )

    def _allows(self, action: str, resource: str) -> bool:
        if self.policy is None:
            return True
        return IAMPolicy(json.dumps(self.policy)).is_action_permitted(action, resource) == PermissionResult.PERMITTED


def _answer(start_response: Any, status: str, body: str) -> list[bytes]:
    data = b'<?xml version="1.0" encoding="UTF-8"?>' + body.encode()
    start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(data)))])
    return [data]


def _not_deleted(keys: list[str]) -> str:
    errors = [f"<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>Access Denied</Message></Error>" for key in keys]
    return f"<DeleteResult>{''.join(errors)}</DeleteResult>"


def _asked(environ: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the actions and resources that a request to S3 needs, as AWS documents them."""
    bucket, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
    method, query = environ["REQUEST_METHOD"], parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
    resource = f"arn:aws:s3:::{bucket}/{key}" if key else f"arn:aws:s3:::{bucket}"
    if not key and method == "POST" and "delete" in query:
        body = environ["wsgi.input"].read()
        environ["wsgi.input"].seek(0)
        for element in ElementTree.fromstring(body).iter():
            if element.tag.rpartition("}")[2] == "Key":
                yield "s3:DeleteObject", f"arn:aws:s3:::{bucket}/{element.text}"
    elif not key:
        names = {"location": "s3:GetBucketLocation", "uploads": "s3:ListBucketMultipartUploads"}
        yield next((names[name] for name in query if name in names), "s3:ListBucket"), resource
    elif method in ("GET", "HEAD"):
        yield "s3:GetObject", resource
    elif method == "DELETE":
        yield ("s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject"), resource
    else:
        yield "s3:PutObject", resource
        if source := environ.get("HTTP_X_AMZ_COPY_SOURCE"):
            yield "s3:GetObject", f"arn:aws:s3:::{unquote(source).lstrip('/')}"


class _Server(LockedMotoServer):
    def behind(self, moto: Any) -> Permissions:
        self.permissions = Permissions(moto)
        return self.permissions


class Aws:
    """An account with a bucket, a role, and something of each service for jobs to be submitted to."""

    def __init__(self) -> None:
        self.url = f"http://{LOOPBACK}:{(port := free_port())}"
        self._server = _Server(ip_address=LOOPBACK, port=port, verbose=False)
        self.clients: dict[str, Any] = {}
        self.ended = threading.Event()
        """Set as soon as a job has ended, of those that are :meth:`running`."""
        # moto's own job has succeeded when it is submitted.
        self._submitted_first = mock.patch("moto.emrserverless.models.JOB_STATUS", "SUBMITTED")

    def __enter__(self) -> Self:
        self._submitted_first.start()
        self._server.start()
        self._forget()
        names = ("s3", "iam", "emr-serverless", "emr", "emr-containers", "glue")
        self.clients = {name: self._client(name) for name in names}
        self.clients["s3"].create_bucket(Bucket=BUCKET)
        self.clients["iam"].create_role(RoleName="delta-job", AssumeRolePolicyDocument="{}")
        release = {"releaseLabel": "emr-7.9.0", "type": "SPARK"}
        self.application = self.clients["emr-serverless"].create_application(name="spark", **release)["applicationId"]
        instances = {"MasterInstanceType": "m5.xlarge", "InstanceCount": 1, "KeepJobFlowAliveWhenNoSteps": True}
        cluster = {
            "Name": "spark",
            "ReleaseLabel": "emr-7.9.0",
            "Instances": instances,
            "ServiceRole": "emr",
            "JobFlowRole": "ec2",
        }
        self.cluster = self.clients["emr"].run_job_flow(**cluster)["JobFlowId"]
        provider = {"id": "eks", "type": "EKS", "info": {"eksInfo": {"namespace": "spark"}}}
        virtual = self.clients["emr-containers"].create_virtual_cluster(name="spark", containerProvider=provider)
        self.virtual_cluster = virtual["id"]
        # A run of Glue's ends when the test says so, not when somebody has looked twice.
        state_manager.set_transition("glue::job_run", {"progression": "manual", "times": 10**9})
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for client in self.clients.values():
            client.close()
        self._server.stop()
        self._submitted_first.stop()

    def _forget(self) -> None:
        """Let moto forget what an account before this one had: it keeps all in the process."""
        request = urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()

    def _client(self, name: str) -> Any:
        keys = {"aws_access_key_id": WORKER_KEY, "aws_secret_access_key": WORKER_SECRET}
        return boto3.client(name, endpoint_url=self.url, region_name=REGION, **keys)

    @property
    def permissions(self) -> Permissions:
        """What the job's role may do on S3."""
        return self._server.permissions

    @property
    def connection(self) -> dict[str, Any]:
        """The connection ``aws_default`` of the worker."""
        extra = {"endpoint_url": self.url, "region_name": REGION}
        return {"conn_type": "aws", "login": WORKER_KEY, "password": WORKER_SECRET, "extra": extra}

    @property
    def root(self) -> str:
        """The URI of the bucket."""
        return f"s3://{BUCKET}"

    def empty(self) -> None:
        """Delete what is in the bucket."""
        store = self.clients["s3"]
        for page in store.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            for each in page.get("Contents", ()):
                store.delete_object(Bucket=BUCKET, Key=each["Key"])

    @property
    def storage_options(self) -> dict[str, str]:
        """Storage options, for those who judge the tables."""
        return {
            "aws_endpoint_url": self.url, "aws_access_key_id": WORKER_KEY, "aws_secret_access_key": WORKER_SECRET,
            "aws_region": REGION, "aws_allow_http": "true",
        }  # fmt: skip

    def spark(self, version: str, directory: Path, *, is_amazons: bool = True) -> ServiceSpark:
        """Return a service's Spark, which reaches S3 with the credentials of the job's role.

        :param is_amazons: it knows ``s3://``, too. Hadoop by itself only knows ``s3a://``.
        """
        directory.mkdir(exist_ok=True)
        defaults = {
            **({"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"} if is_amazons else {}),
            "spark.hadoop.fs.s3a.endpoint": self.url,
            "spark.hadoop.fs.s3a.endpoint.region": REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        }
        keys = {"AWS_ACCESS_KEY_ID": JOB_KEY, "AWS_SECRET_ACCESS_KEY": JOB_SECRET}
        return ServiceSpark(version, directory, defaults, keys)

    @contextmanager
    def running(self, *sparks: ServiceSpark) -> Iterator[list[Job]]:
        """Run each job that is submitted meanwhile, and yield the list of those that have been run.

        :param sparks: by which; if they are several, each runs every job, at the same time.
        """
        over, done, errors = threading.Event(), list[Job](), list[BaseException]()
        self.ended.clear()

        def serve() -> None:
            while not over.wait(_POLL):
                for job in self._submitted():
                    try:
                        if not job.is_over():
                            with ThreadPoolExecutor() as pool:
                                outputs = list(pool.map(job.run, sparks))
                            job.log = "\n".join(output.stdout for output in outputs)
                            done.append(job)
                            job.end(all(output.returncode == 0 for output in outputs))
                            self.ended.set()
                    except BaseException as error:
                        errors.append(error)
                        job.end(False)
                        self.ended.set()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield done
        finally:
            over.set()
            thread.join()
        assert not errors, errors

    def _submitted(self) -> Iterator[Job]:
        """Yield every job, as the services' own interfaces describe it."""
        yield from self._emr_serverless()
        yield from self._emr_steps()
        yield from self._emr_containers()
        yield from self._glue()

    def _emr_serverless(self) -> Iterator[Job]:
        client, here = self.clients["emr-serverless"], {"applicationId": self.application}
        runs = emrserverless_backends[ACCOUNT][REGION].job_runs.get(
            self.application, []
        )  # without any, moto lists none, but fails
        for run in list(runs):
            said = client.get_job_run(**here, jobRunId=run.id)["jobRun"]["jobDriver"]["sparkSubmit"]
            driver = Driver(said["entryPoint"], said.get("entryPointArguments", []), said.get("sparkSubmitParameters", ""))
            yield Job("EMR Serverless", run, "state", ("SUCCESS", "FAILED"), ["spark-submit", *driver.command])

    def _emr_steps(self) -> Iterator[Job]:
        client = self.clients["emr"]
        for step in list(emr_backends[ACCOUNT][REGION].clusters[self.cluster].steps):
            said = client.describe_step(ClusterId=self.cluster, StepId=step.id)["Step"]["Config"]
            assert said["Jar"] == "command-runner.jar", said
            yield Job("EMR on EC2", step, "state", ("COMPLETED", "FAILED"), said["Args"])

    def _emr_containers(self) -> Iterator[Job]:
        client, here = self.clients["emr-containers"], {"virtualClusterId": self.virtual_cluster}
        for run in list(emrcontainers_backends[ACCOUNT][REGION].job_runs.values()):
            said = client.describe_job_run(**here, id=run.id)["jobRun"]["jobDriver"]["sparkSubmitJobDriver"]
            driver = Driver(said["entryPoint"], said.get("entryPointArguments", []), said.get("sparkSubmitParameters", ""))
            yield Job("EMR on EKS", run, "state", ("COMPLETED", "FAILED"), ["spark-submit", *driver.command])

    def _glue(self) -> Iterator[Job]:
        client = self.clients["glue"]
        for name, job in list(glue_backends[ACCOUNT][REGION].jobs.items()):
            script = client.get_job(JobName=name)["Job"]["Command"]["ScriptLocation"]
            for run in list(job.job_runs):
                said = client.get_job_run(JobName=name, RunId=run.job_run_id)["JobRun"]["Arguments"]
                arguments = [
                    "--JOB_NAME",
                    name,
                    "--JOB_RUN_ID",
                    run.job_run_id,
                    *arguments_by_name(said),
                ]  # Glue gives its own, too
                driver = Driver(script, arguments)
                yield Job("Glue", run, "status", ("SUCCEEDED", "FAILED"), ["spark-submit", *driver.command])


@dataclass
class Job:
    """A job that was submitted."""

    service: str
    kept: Any
    """What moto keeps of it."""
    attribute: str
    """Name of its state there."""
    ends: tuple[str, str]
    """The states of a job that has succeeded, and of one that has failed."""
    command: list[str]
    log: str = ""

    def is_over(self) -> bool:
        """Tell whether it has ended."""
        return getattr(self.kept, self.attribute) in self.ends

    def run(self, spark: ServiceSpark) -> Any:
        """Run exactly what was submitted."""
        return spark.command(self.command)

    def end(self, succeeded: bool) -> None:
        """Tell the service's own interface what came of it."""
        setattr(self.kept, self.attribute, self.ends[0 if succeeded else 1])
