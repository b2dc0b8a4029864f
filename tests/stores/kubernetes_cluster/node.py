"""The node of the API server: ``python -m stores.kubernetes_cluster.node URL CERTIFICATE DIRECTORY`` with ``NODE_TOKEN``.

It does what the scheduler and a kubelet do: binds pods, mounts their volumes, runs their container with the names of the
namespace's services in its ``/etc/hosts``, tells their status, serves their logs, and ends what is deleted. Not here: limits of
resources, probes, several containers of a pod, and the removal of what a deleted pod owns.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stores.kubernetes_cluster.api_server import ADMIN, ApiServer
from stores.kubernetes_cluster.client import Client
from stores.kubernetes_cluster.image import Image, start_container
from stores.process import LOOPBACK, ROOT, Service

NODE = "node"
_IMAGES = "images.json"
_PATCH = "application/strategic-merge-patch+json"
_POLL = 0.1  # seconds


class NotYet(Exception):
    """What a pod mounts is not there yet: Spark makes its driver's pod before the rest."""


@dataclass
class Pod:
    """A pod that has been bound to the node."""

    ip: str
    directory: Path
    process: subprocess.Popen[bytes] | None = None
    started: str = ""
    asked_to_end: float | None = None
    hosts: str = ""


class Node:
    """The node.

    :param images: by their names.
    :param directory: an existing directory for a folder for each pod, with its log.
    """

    def __init__(self, client: Client, url: str, images: Mapping[str, Image], directory: Path) -> None:
        self._client, self._images, self._directory = client, images, directory
        self._server = urllib.parse.urlsplit(url)
        self._pods: dict[str, Pod] = {}
        self._addresses = 0

    def join(self, port: int) -> None:
        """Tell the server of this node, and of the port on which it serves logs."""
        self._client.send("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        status = {
            "addresses": [{"type": "InternalIP", "address": LOOPBACK}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "Joined", "message": ""}],
        }
        self._client.send("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status}, kind=_PATCH)

    def log_of(self, name: str) -> tuple[Path, Callable[[], bool]]:
        """Return the log of a pod by its name, and what says whether its container is running.

        :raises KeyError: if no container of the pod has been started.
        """
        [found] = [pod for pod in list(self._pods.values()) if pod.directory.name == name and pod.process is not None] or [None]
        if found is None or found.process is None:
            raise KeyError(name)
        process = found.process
        return found.directory / "log", lambda: process.poll() is None

    def run(self) -> None:
        """Run what is bound to the node until the process ends."""
        while True:
            pods = self._client.get("/api/v1/pods")["items"]
            services = self._client.get("/api/v1/services")["items"]
            for pod in pods:
                try:
                    self._step(pod, pods, services)
                except NotYet:
                    continue
                except urllib.error.HTTPError as error:
                    if error.code not in (404, 409):  # it has just gone, or changed: the next round sees it
                        raise
            for uid in self._pods.keys() - {pod["metadata"]["uid"] for pod in pods}:
                self._end(self._pods.pop(uid), signal.SIGKILL)
            time.sleep(_POLL)

    def _step(self, pod: dict[str, Any], pods: list[Any], services: list[Any]) -> None:
        meta, path = pod["metadata"], _path(pod)
        if "nodeName" not in pod["spec"]:
            bound = {"metadata": {"name": meta["name"]}, "target": {"kind": "Node", "name": NODE}}
            self._client.send("POST", f"{path}/binding", bound)
            return
        found = self._pods.get(meta["uid"])
        if "deletionTimestamp" in meta:
            self._delete(pod, found)
        elif pod["status"].get("phase") in ("Succeeded", "Failed"):
            return
        elif found is None:
            self._addresses += 1
            directory = self._directory / meta["name"]
            directory.mkdir()
            self._pods[meta["uid"]] = found = Pod(f"127.1.{self._addresses // 250}.{self._addresses % 250 + 1}", directory)
            self._tell(pod, found, "Pending", {"waiting": {"reason": "ContainerCreating"}})
        elif found.process is None:
            self._start(pod, found)
        elif (code := found.process.poll()) is not None:
            ended = {"exitCode": abs(code), "reason": "Error" if code else "Completed"}
            ended |= {"startedAt": found.started, "finishedAt": _now()}
            self._tell(pod, found, "Failed" if code else "Succeeded", {"terminated": ended})
        if found is not None:
            self._write_hosts(pod, found, pods, services)

    def _start(self, pod: dict[str, Any], found: Pod) -> None:
        [container] = pod["spec"]["containers"]
        if (image := self._images.get(container["image"])) is None:
            self._tell(pod, found, "Pending", {"waiting": {"reason": "ImagePullBackOff"}})
            return
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        mounts = {
            mount["mountPath"]: self._volume(pod, found, volumes[mount["name"]]) for mount in container.get("volumeMounts", [])
        }
        environment = {"KUBERNETES_SERVICE_HOST": str(self._server.hostname), "KUBERNETES_SERVICE_PORT": str(self._server.port)}
        for variable in container.get("env", []):
            environment[variable["name"]] = self._value(pod, variable)
        found.started = _now()
        found.process = start_container(
            image,
            found.directory,
            command=container.get("command"),
            arguments=container.get("args", []),
            environment=environment,
            mounts=mounts,
            name=_host(pod),
            hosts=found.directory / "hosts",
        )
        self._tell(pod, found, "Running", {"running": {"startedAt": found.started}})

    def _delete(self, pod: dict[str, Any], found: Pod | None) -> None:
        if found is not None and found.process is not None and found.process.poll() is None:
            grace = pod["metadata"].get("deletionGracePeriodSeconds", 30)
            if found.asked_to_end is None:
                found.asked_to_end = time.monotonic()
                self._end(found, signal.SIGTERM)
            elif time.monotonic() > found.asked_to_end + grace:
                self._end(found, signal.SIGKILL)
            return
        self._client.send("DELETE", _path(pod), {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}})

    @staticmethod
    def _end(found: Pod, number: int) -> None:
        if found.process is not None and found.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(found.process.pid, number)

    def _tell(self, pod: dict[str, Any], found: Pod, phase: str, state: dict[str, Any]) -> None:
        [container] = pod["spec"]["containers"]
        status = {
            "phase": phase,
            "hostIP": "127.0.0.1",
            "podIP": found.ip,
            "podIPs": [{"ip": found.ip}],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": container["image"],
                    "ready": phase == "Running",
                    "started": phase == "Running",
                    "restartCount": 0,
                    "state": state,
                }
            ],
        }
        self._client.send("PATCH", f"{_path(pod)}/status", {"status": status}, kind=_PATCH)

    def _value(self, pod: dict[str, Any], variable: dict[str, Any]) -> str:
        if "valueFrom" not in variable:
            return str(variable.get("value", ""))
        source = variable["valueFrom"]
        if "fieldRef" in source:
            value: Any = pod
            for name in source["fieldRef"]["fieldPath"].split("."):
                value = value[name]
            return str(value)
        asked = source["secretKeyRef"]
        return base64.b64decode(self._data(pod, "secrets", asked["name"])[asked["key"]]).decode()

    def _volume(self, pod: dict[str, Any], found: Pod, volume: dict[str, Any]) -> Path:
        """Return the folder of a volume."""
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        folder = found.directory / "volumes" / volume["name"]
        folder.mkdir(parents=True, exist_ok=True)
        for source in volume.get("projected", {}).get("sources", [volume]):
            for name, data in self._files(pod, source).items():
                (folder / name).write_bytes(data)
        return folder

    def _files(self, pod: dict[str, Any], source: dict[str, Any]) -> dict[str, bytes]:
        if "emptyDir" in source:
            return {}
        if "configMap" in source:
            data = self._data(pod, "configmaps", source["configMap"]["name"])
            return _named(source["configMap"], {name: text.encode() for name, text in data.items()})
        if "secret" in source:
            data = self._data(pod, "secrets", source["secret"].get("secretName", source["secret"].get("name")))
            return _named(source["secret"], {name: base64.b64decode(text) for name, text in data.items()})
        if "downwardAPI" in source:
            return {item["path"]: self._value(pod, {"valueFrom": item}).encode() for item in source["downwardAPI"]["items"]}
        asked, meta = source["serviceAccountToken"], pod["metadata"]
        account = pod["spec"]["serviceAccountName"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
        spec = {"expirationSeconds": asked.get("expirationSeconds", 3600), "boundObjectRef": bound}
        path = f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/{account}/token"
        answer = self._client.send("POST", path, {"metadata": {}, "spec": spec})
        return {asked["path"]: answer["status"]["token"].encode()}

    def _data(self, pod: dict[str, Any], kind: str, name: str) -> dict[str, str]:
        try:
            found = self._client.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/{kind}/{name}")
        except urllib.error.HTTPError as error:
            raise NotYet from error
        return dict(found.get("data", {}))

    def _write_hosts(self, pod: dict[str, Any], found: Pod, pods: list[Any], services: list[Any]) -> None:
        """Write the names of headless services, each with the address of the pod that it selects, as a cluster's DNS has them."""
        lines = ["127.0.0.1 localhost", f"{found.ip} {_host(pod)}"]
        for service in services:
            meta, selector = service["metadata"], service["spec"].get("selector") or {}
            for other in pods:
                labels, ip = other["metadata"].get("labels", {}), other["status"].get("podIP")
                if ip and selector and other["metadata"]["namespace"] == meta["namespace"] and selector.items() <= labels.items():
                    lines.append(
                        f"{ip} {meta['name']}.{meta['namespace']}.svc {meta['name']}.{meta['namespace']}.svc.cluster.local"
                    )
        text = "\n".join([*lines, ""])
        if text != found.hosts:
            with (found.directory / "hosts").open("w") as file:  # the same file: containers have it mounted
                file.write(text)
            found.hosts = text


def log_server(node: Node, certificates: Path) -> ThreadingHTTPServer:
    """Return the server of the containers' logs, as the API server asks a kubelet for them."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urllib.parse.urlsplit(self.path)
            follow = "follow=true" in asked.query
            stamped = "timestamps=true" in asked.query
            try:
                log, running = node.log_of(asked.path.split("/")[3])
            except (IndexError, KeyError):
                self.send_error(404)
                return
            self.send_response(200)
            self.end_headers()
            with log.open("rb") as file:
                while True:
                    alive = running()
                    for line in file:
                        self.wfile.write(f"{datetime.now(UTC).isoformat()} ".encode() + line if stamped else line)
                    self.wfile.flush()
                    if not (follow and alive):
                        return
                    time.sleep(_POLL)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "apiserver.crt", certificates / "apiserver.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server


def node_service(server: ApiServer, images: Mapping[str, Image]) -> Service:
    """Return the node of a server, as a process that ends with everything that it has started.

    :param images: by their names.
    """
    directory = server.directory / "node"
    directory.mkdir()
    known = {
        name: {**vars(image), "folders": {place: str(folder) for place, folder in image.folders.items()}}
        for name, image in images.items()
    }
    (directory / _IMAGES).write_text(json.dumps(known))
    argv = [sys.executable, "-m", "stores.kubernetes_cluster.node", server.url, server.certificate, directory]
    environment = {"NODE_TOKEN": ADMIN, "PYTHONPATH": str(ROOT / "tests")}
    return Service("node", argv, directory, lambda: server.client.answers(f"/api/v1/nodes/{NODE}"), environment)


def main(url: str, certificate: str, place: str) -> None:
    directory = Path(place)
    known = json.loads((directory / _IMAGES).read_text())
    images = {
        name: Image(**{**image, "folders": {target: Path(folder) for target, folder in image["folders"].items()}})
        for name, image in known.items()
    }
    node = Node(Client(url, Path(certificate), os.environ["NODE_TOKEN"]), url, images, directory)
    logs = log_server(node, Path(certificate).parent)
    threading.Thread(target=logs.serve_forever, daemon=True).start()
    node.join(logs.server_port)
    node.run()


def _named(asked: dict[str, Any], files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files of a volume that names some, or gives them other names; else all."""
    if "items" not in asked:
        return files
    return {item["path"]: files[item["key"]] for item in asked["items"]}


def _path(pod: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _host(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])[:63]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    main(*sys.argv[1:])
