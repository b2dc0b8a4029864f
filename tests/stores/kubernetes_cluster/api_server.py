"""Kubernetes' API server with etcd, on loopback. What its scheduler and kubelet would do is the node's (``node.py``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from stores.install import KUBERNETES
from stores.kubernetes_cluster.client import Client
from stores.process import LOOPBACK, Service, free_port

ADMIN = "admin-of-the-tests"
NAMESPACE = "spark"
ACCOUNT = "spark"
"""A service account that may do in its namespace what Spark's drivers need, and nothing elsewhere."""

_VERBS = ["create", "get", "list", "watch", "delete", "deletecollection", "patch", "update"]
_RULES = [
    {
        "apiGroups": [""],
        "resources": ["pods", "services", "configmaps", "persistentvolumeclaims"],
        "verbs": _VERBS,
    },
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": _VERBS},
]


class ApiServer:
    """The server: tokens, RBAC and service accounts are Kubernetes' own.

    :param directory: an existing directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port, store, peers = free_port(), free_port(), free_port()
        self.url = f"https://{LOOPBACK}:{self.port}"
        self.certificate = directory / "certificates" / "apiserver.crt"
        """The server makes it, with the authority that has signed it."""
        key, tokens = directory / "accounts.pem", directory / "tokens.csv"
        private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        key.write_bytes(
            private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        tokens.write_text(f"{ADMIN},admin,admin,system:masters\n")
        self.client = Client(self.url, self.certificate, ADMIN)
        etcd = Service(
            "etcd",
            [
                KUBERNETES / "etcd", "--data-dir", directory / "etcd", "--unsafe-no-fsync",
                "--listen-client-urls", f"http://{LOOPBACK}:{store}", "--advertise-client-urls", f"http://{LOOPBACK}:{store}",
                "--listen-peer-urls", f"http://{LOOPBACK}:{peers}", "--initial-advertise-peer-urls", f"http://{LOOPBACK}:{peers}",
                "--initial-cluster", f"default=http://{LOOPBACK}:{peers}",
            ],
            directory,
            lambda: Client(f"http://{LOOPBACK}:{store}").answers("/health"),
        )  # fmt: skip
        server = Service(
            "kube-apiserver",
            [
                KUBERNETES / "kube-apiserver", "--etcd-servers", f"http://{LOOPBACK}:{store}", "--bind-address", LOOPBACK,
                "--secure-port", self.port, "--cert-dir", self.certificate.parent, "--endpoint-reconciler-type", "none",
                "--service-cluster-ip-range", "10.0.0.0/24", "--authorization-mode", "RBAC", "--token-auth-file", tokens,
                "--service-account-issuer", self.url, "--service-account-key-file", key,
                "--service-account-signing-key-file", key,
            ],
            directory,
            lambda: self.certificate.exists() and self.client.answers("/readyz"),
        )  # fmt: skip
        self.services = [etcd, server]
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as running:
            for service in self.services:
                running.enter_context(service)
            self._running = running.pop_all()
        self._prepare()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def memory(self) -> int:
        """Resident bytes of all processes."""
        return sum(service.memory for service in self.services)

    def kubeconfig(self) -> Path:
        """Return the path of a file for ``KUBECONFIG``, with which a worker reaches the cluster as one who may submit."""
        path = self.directory / "kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.certificate)}
        written = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "worker", "user": {"token": self.token("worker")}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "worker", "namespace": NAMESPACE}}],
            "current-context": "tests",
        }
        path.write_text(json.dumps(written))  # JSON is YAML
        return path

    def token(self, account: str) -> str:
        """Return a token of a service account."""
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86400}}
        return str(self.client.send("POST", path, asked)["status"]["token"])

    def put_secret(self, name: str, values: Mapping[str, str]) -> None:
        """Make a secret that pods of the namespace may have in their environment."""
        body = {"metadata": {"name": name}, "stringData": dict(values)}
        self.client.send("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", body)

    def pods(self, role: str | None = None) -> dict[str, Any]:
        """Return Spark's pods by name.

        :param role: ``driver`` or ``executor``.
        """
        selector = f"spark-role={role}" if role else "spark-role"
        found = self.client.get(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector}")["items"]
        return {pod["metadata"]["name"]: pod for pod in found}

    def configuration(self) -> dict[str, str]:
        """Return all that the namespace's ConfigMaps say, by their names."""
        found = self.client.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps")["items"]
        return {each["metadata"]["name"]: json.dumps(each.get("data", {})) for each in found}

    def _prepare(self) -> None:
        """Make the namespace, and the accounts of the worker and of the drivers: controllers would copy the certificate."""
        base = f"/api/v1/namespaces/{NAMESPACE}"
        roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        self.client.send("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        data = {"ca.crt": self.certificate.read_text()}
        self.client.send("POST", f"{base}/configmaps", {"metadata": {"name": "kube-root-ca.crt"}, "data": data})
        self.client.send("POST", f"{roles}/roles", {"metadata": {"name": "spark"}, "rules": _RULES})
        for name in (ACCOUNT, "worker"):
            self.client.send("POST", f"{base}/serviceaccounts", {"metadata": {"name": name}})
            binding = {
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "spark"},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
            }
            self.client.send("POST", f"{roles}/rolebindings", binding)
