"""Containers as processes, where no container can run: the command that an operator would give to its image."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator


class ProcessPodOperator(BaseOperator):
    """Runs what ``KubernetesPodOperator`` runs in a pod, with its names of parameters and its templates, as a process.

    :param durable: must be false: another try runs the command again.
    """

    template_fields: Sequence[str] = ("image", "cmds", "arguments", "namespace")

    def __init__(
        self, *, image: str, cmds: Sequence[str], arguments: Sequence[str], namespace: str, durable: bool, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.image, self.cmds, self.arguments, self.namespace, self.durable = image, cmds, arguments, namespace, durable

    def execute(self, context: Any) -> None:
        """Run the command with the programs of the path."""
        if self.durable:
            raise ValueError("A retry would wait for the pod of the try before.")
        subprocess.run([*self.cmds, *self.arguments], check=True, stdin=subprocess.DEVNULL)
