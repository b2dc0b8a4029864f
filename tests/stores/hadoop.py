"""Hadoop's own mini clusters in one JVM, driven through Py4J: ``python hadoop.py hdfs|yarn JARS DIRECTORY CONFIGURATION``.

Writes the configuration for clients to that file when the cluster is up, and runs until it is terminated.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaGateway

MEMORY = "600m"
NODE_MEMORY = "2048"  # MiB that a node manager has to give


def hdfs(jvm: Any, directory: Path) -> Any:
    """Start a name node and a data node."""
    conf = jvm.org.apache.hadoop.hdfs.HdfsConfiguration()
    conf.set("hdfs.minidfs.basedir", str(directory / "dfs"))
    conf.set("dfs.permissions.enabled", "false")
    cluster = jvm.org.apache.hadoop.hdfs.MiniDFSCluster.Builder(conf).numDataNodes(1).build()
    cluster.waitActive()
    return cluster.getConfiguration(0)


def yarn(jvm: Any, directory: Path) -> Any:
    """Start a resource manager and a node manager."""
    conf = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
    conf.set("yarn.nodemanager.resource.memory-mb", NODE_MEMORY)
    conf.set("yarn.scheduler.minimum-allocation-mb", "128")
    conf.set("yarn.scheduler.maximum-allocation-mb", NODE_MEMORY)
    conf.set("yarn.nodemanager.vmem-check-enabled", "false")
    conf.set("yarn.nodemanager.pmem-check-enabled", "false")
    conf.set("yarn.nodemanager.env-whitelist", "JAVA_HOME,SPARK_HOME,SPARK_LOCAL_IP,PYSPARK_PYTHON,PATH")
    conf.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "100")
    conf.set("yarn.resourcemanager.am.max-attempts", "1")
    # The default scheduler needs a file of queues.
    conf.set("yarn.resourcemanager.scheduler.class", "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler")
    cluster = jvm.org.apache.hadoop.yarn.server.MiniYARNCluster("lake", 1, 1, 1)
    cluster.init(conf)
    cluster.start()
    return cluster.getConfig()


def main() -> None:
    kind, jars, place, written = sys.argv[1:]
    directory = Path(place)
    options = [f"-Xmx{MEMORY}", "-XX:+UseSerialGC", f"-Dtest.build.data={directory}/build"]
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    gateway = JavaGateway.launch_gateway(
        jarpath=py4j_jar(),
        classpath=f"{jars}/*",
        javaopts=options,
        java_path=java,
        die_on_exit=True,
        redirect_stdout=sys.stdout,
        redirect_stderr=sys.stderr,
    )
    configuration = {"hdfs": hdfs, "yarn": yarn}[kind](gateway.jvm, directory)
    output = gateway.jvm.java.io.FileOutputStream(f"{written}.part")
    configuration.writeXml(output)
    output.close()
    os.replace(f"{written}.part", written)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    stopped.wait()
    gateway.shutdown()


def py4j_jar() -> str:
    """Return Py4J's JAR, which PySpark has."""
    import pyspark

    [path] = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    return str(path)


if __name__ == "__main__":
    main()
