"""A real Apache Kafka (KRaft) on 127.0.0.1, for development and tests; no Docker needed.

``python -m tests.kafka_broker [--nodes N] [--port PORT] [--topics NAME:PARTITIONS,...]`` runs one
until Ctrl-C; ``make kafka`` calls it. Java 17 and, the first time, Maven are needed: the jars that
``deploy/kafka/pom.xml`` names are fetched once into ``build/kafka/``. Everything else lies in a
temporary folder.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic

__all__ = [
    "KafkaCluster",
    "Node",
    "free_ports",
    "make_topic",
    "missing_tools",
    "run_tool",
    "server_settings",
]

REPOSITORY = Path(__file__).parents[1]
POM = REPOSITORY / "deploy" / "kafka" / "pom.xml"
JARS = REPOSITORY / "build" / "kafka"
HOST = "127.0.0.1"
START_S, STOP_S, LAST_S = 120.0, 30.0, 2.0
# A test broker lives for a minute: a small heap, and no time spent on optimising compilers.
JVM = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def missing_tools() -> str:
    """What a broker of our own lacks on this machine, in words; empty where it can run."""
    if shutil.which("java") is None:
        return "no java on the PATH (Java 17 is needed)"
    if not _jar_folder().is_dir() and shutil.which("mvn") is None:
        return "no mvn on the PATH (Maven fetches the jars of the broker)"
    return ""


class Node:
    """One server process; it keeps its ports and its data from one start to the next.

    Parameters
    ----------
    folder : Path
        Where its settings, its data and what it prints go.
    properties : mapping
        Its ``server.properties``.

    Attributes
    ----------
    data : Path
        Folder of its log.
    """

    def __init__(self, folder: Path, properties: Mapping[str, object]) -> None:
        folder.mkdir(parents=True)
        self.data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._output = folder / "output.log"
        self._properties = folder / "server.properties"
        lines = [f"{key}={value}\n" for key, value in properties.items()]
        self._properties.write_text("".join([*lines, f"log.dirs={self.data}\n"]))

    @property
    def running(self) -> bool:
        """Whether the process is there, be it paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._alive().pid

    def format(self, cluster_id: str, users: Mapping[str, str]) -> None:
        """Prepare the data folder; ``users`` (name to password) may log in with SCRAM."""
        command = _java("kafka.tools.StorageTool", "format", "--config", str(self._properties))
        # As one word, since an id may begin with a dash.
        command += [f"--cluster-id={cluster_id}"]
        for name, password in users.items():
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                command += ["--add-scram", f"{mechanism}=[name={name},password={password}]"]
        _run(command)

    def start(self) -> None:
        """Start the process; `KafkaCluster.wait_ready` waits until it serves."""
        if self.running:
            raise RuntimeError("this node runs already")
        self._dismiss_guard()
        with self._output.open("ab") as output:
            # In a session of its own, Ctrl-C does not reach it before we stop it in order.
            self._process = subprocess.Popen(
                _java("kafka.Kafka", str(self._properties)),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # A test run that is killed closes the pipe, and takes the server with it.
        self._guard = subprocess.Popen(
            ["sh", "-c", 'read _; kill -9 "$0"', str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def wait(self) -> None:
        """Wait until the process ends."""
        self._alive().wait()

    def terminate(self) -> None:
        """Ask for a shutdown in order (SIGTERM), and do not wait for it."""
        if self.running:
            self.resume()
            self._alive().terminate()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Shut down in order and wait; kill where that takes too long."""
        self.terminate()
        if self._process is not None:
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self._dismiss_guard()

    def kill(self) -> None:
        """End without notice (SIGKILL), as a crash does; nothing where it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._dismiss_guard()

    def pause(self) -> None:
        """Freeze (SIGSTOP): connections stay open and nobody answers."""
        self._alive().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._alive().send_signal(signal.SIGCONT)

    def output(self) -> str:
        """The end of what it printed."""
        return self._output.read_text(errors="replace")[-4000:] if self._output.exists() else ""

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            with self._guard:
                self._guard.kill()
            self._guard = None

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"this node does not run: {self.output()}")
        return self._process


class KafkaCluster:
    """Brokers that are controllers too, all on 127.0.0.1; a context manager that starts them.

    Parameters
    ----------
    nodes : int
        How many; with three, topics and internal topics are replicated and one may fail.
    port : int
        Port of the first node's plaintext listener; 0 takes a free one.
    settings : mapping, optional
        Further server properties, which override ours.
    secure : mapping, optional
        SASL_SSL listeners: name to the PEM file with the server's key (PKCS #8) and certificates.
        They take PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER (unsigned tokens), and what a
        user may do there is up to ACLs. Everybody may do everything at the plaintext listener,
        which is where tests make topics and ACLs.
    users : mapping, optional
        Name to password of the users of the secure listeners.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        port: int = 0,
        settings: Mapping[str, object] | None = None,
        secure: Mapping[str, Path] | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-"))
        self._users = dict(users or {})
        names = ["client", "controller", *(secure or {})]
        ports = iter(free_ports(nodes * len(names)))
        self._ports = [{name: next(ports) for name in names} for _ in range(nodes)]
        self._ports[0]["client"] = port or self._ports[0]["client"]
        voters = [f"{n}@{HOST}:{p['controller']}" for n, p in enumerate(self._ports, 1)]
        common = {"controller.quorum.voters": ",".join(voters), **server_settings(nodes)}
        common |= _secure_settings(secure or {}, self._users)
        self.nodes = [
            Node(
                self._folder / f"node-{n}",
                {**common, "node.id": n, **_listeners(p), **(settings or {})},
            )
            for n, p in enumerate(self._ports, 1)
        ]

    @property
    def bootstrap_servers(self) -> str:
        """host:port of the plaintext listener of every node, separated by commas."""
        return self.servers("client")

    def servers(self, listener: str) -> str:
        """host:port of one listener, such as a secure one, of every node."""
        return ",".join(f"{HOST}:{ports[listener]}" for ports in self._ports)

    def start(self) -> None:
        """Format the storage, start all nodes and wait until they serve."""
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for node in self.nodes:
            node.format(cluster_id, self._users)
        for node in self.nodes:
            node.start()
        self.wait_ready()

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Wait until every running node answers, and knows all the others.

        Raises
        ------
        RuntimeError
            With the end of a node's output, where one ended or the time ran out.
        """
        end = time.monotonic() + timeout_s
        running = [n for n, node in enumerate(self.nodes) if node.running]
        for n in running:
            server = f"{HOST}:{self._ports[n]['client']}"
            client = _admin(server)
            while _brokers(client) < len(running):
                if time.monotonic() > end or not self.nodes[n].running:
                    raise RuntimeError(f"Kafka is not ready: {self.nodes[n].output()}")

    def stop(self) -> None:
        """Stop all nodes in order and remove what they wrote."""
        for node in self.nodes:
            node.terminate()
        for node in self.nodes:
            # The last of several waits in vain for a quorum that lets it go.
            node.stop(STOP_S if len(self.nodes) == 1 else LAST_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def server_settings(nodes: int = 1) -> dict[str, object]:
    """Server properties that suit tests: quick, small, strict; for ``nodes`` brokers."""
    copies = min(3, nodes)
    return {
        "process.roles": "broker,controller",
        "controller.listener.names": "CONTROLLER",
        # A misspelt topic is an error, as on a well-kept cluster.
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": max(1, copies - 1),
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": max(1, copies - 1),
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": 1,
        # Members come and go by the second here.
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        "group.consumer.min.session.timeout.ms": 1000,
        "group.consumer.min.heartbeat.interval.ms": 500,
        "group.consumer.heartbeat.interval.ms": 1000,
        "broker.heartbeat.interval.ms": 500,
        "broker.session.timeout.ms": 3000,
        "log.segment.bytes": 64 << 20,
    }


def run_tool(main: str, *arguments: str) -> None:
    """Run one of Kafka's command-line tools by its class, such as ``kafka.admin.ConfigCommand``."""
    _run(_java(main, *arguments))


def make_topic(
    servers: str, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Make a topic, and wait until the brokers know a leader for each partition."""
    client = _admin(servers)
    new = NewTopic(topic, num_partitions=partitions, config=dict(config or {}))
    client.create_topics([new])[topic].result(START_S)
    # The controller answers first; the brokers hear of the topic a moment later.
    end = time.monotonic() + START_S
    while _leaders(client, topic) < partitions:
        if time.monotonic() > end:
            raise RuntimeError(f"topic {topic} has no leaders")


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody uses now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def _listeners(ports: Mapping[str, int]) -> dict[str, str]:
    addresses = {name: f"{name.upper()}://{HOST}:{port}" for name, port in ports.items()}
    plain = ("client", "controller")
    protocols = {name: "PLAINTEXT" if name in plain else "SASL_SSL" for name in ports}
    return {
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(v for k, v in addresses.items() if k != "controller"),
        "inter.broker.listener.name": "CLIENT",
        "listener.security.protocol.map": ",".join(
            f"{name.upper()}:{protocol}" for name, protocol in protocols.items()
        ),
    }


def _secure_settings(secure: Mapping[str, Path], users: Mapping[str, str]) -> dict[str, str]:
    if not secure:
        return {}
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Brokers, controllers and the tests' own set-up come by the plaintext listeners.
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.type": "PEM",
    }
    package = "org.apache.kafka.common.security"
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    modules = {
        "plain": f"{package}.plain.PlainLoginModule required {known};",
        "scram-sha-256": f"{package}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{package}.scram.ScramLoginModule required;",
        "oauthbearer": f"{package}.oauthbearer.OAuthBearerLoginModule required"
        ' unsecuredLoginStringClaim_sub="broker";',
    }
    for listener, certificate in secure.items():
        prefix = f"listener.name.{listener}"
        settings[f"{prefix}.ssl.keystore.location"] = str(certificate)
        for mechanism, module in modules.items():
            settings[f"{prefix}.{mechanism}.sasl.jaas.config"] = module
    return settings


def _admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


def _leaders(client: AdminClient, topic: str) -> int:
    known = client.list_topics(timeout=START_S).topics.get(topic)
    return sum(p.leader >= 0 for p in known.partitions.values()) if known else 0


def _brokers(client: AdminClient) -> int:
    """How many brokers the cluster knows and serves from; 0 where none answers for now."""
    try:
        return len(client.list_topics(timeout=0.5).brokers)
    except ck.KafkaException:
        return 0


def _java(main: str, *arguments: str) -> list[str]:
    level = "-Dorg.apache.logging.log4j.level=WARN"
    return ["java", *JVM, level, "-cp", _class_path(), main, *arguments]


def _class_path() -> str:
    folder = _jar_folder()
    if not folder.is_dir():
        _fetch_jars(folder)
    return f"{folder}/*"


def _jar_folder() -> Path:
    # Named by what it was made from, so that a changed pom.xml is fetched anew.
    return JARS / hashlib.sha256(POM.read_bytes()).hexdigest()[:12]


def _fetch_jars(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix="fetch-"))
    command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={fresh}"]
    try:
        _run(command)
        if not folder.is_dir():  # somebody else may have been quicker
            fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _run(command: Iterable[str]) -> None:
    done = subprocess.run([*command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")


def main() -> None:
    """Run a cluster until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tests.kafka_broker", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--port", type=int, default=0, help="of the first node; 0: a free one")
    parser.add_argument("--topics", default="", help="to make: NAME:PARTITIONS, comma separated")
    args = parser.parse_args()
    if reason := missing_tools():
        sys.exit(f"kafka: {reason}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with KafkaCluster(args.nodes, port=args.port) as cluster:
            for name, _, partitions in (t.partition(":") for t in args.topics.split(",") if t):
                make_topic(cluster.bootstrap_servers, name, int(partitions or 1))
            print(f"bootstrap servers: {cluster.bootstrap_servers}\nCtrl-C stops it", flush=True)
            cluster.nodes[0].wait()
    except KeyboardInterrupt:
        print("stopped", flush=True)


if __name__ == "__main__":
    main()
