"""TLS, logins and rights against a real SASL_SSL listener, whose ACLs allow nothing by default."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from broker_filter.config import Kafka, Security
from broker_filter.errors import ConfigError
from broker_filter.kafka.consumer import KafkaSource
from broker_filter.kafka.progress import GroupProgress
from broker_filter.kafka.properties import read_properties
from broker_filter.kafka.sink import KafkaSink
from broker_filter.kafka.transaction import open_delivery
from broker_filter.observe.metrics import Metrics
from broker_filter.recovery.files import read_alerts
from broker_filter.schemas import schema_header
from tests import build
from tests.kafka_broker import KafkaCluster, make_topic

pytestmark = pytest.mark.kafka

PASSWORD = "hunter2-in-clear"  # noqa: S105
WRONG = "not-the-password"
PATIENCE_S = 60.0
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC, GROUP, TRANSACTION = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
PREFIXED = ResourcePatternType.PREFIXED
# The users, each with the rights that it has on what begins with a name.
RIGHTS = {
    "complete": [
        (TOPIC, "epochs", READ, DESCRIBE),
        (TOPIC, "alerts", WRITE, DESCRIBE),
        (TOPIC, "dead", WRITE, DESCRIBE),
        (GROUP, "filters", READ),
        (TRANSACTION, "filters", WRITE, DESCRIBE),
    ],
    "nobody": [],
    "publisher": [(TOPIC, "archive", WRITE, DESCRIBE)],
    "reader": [(TOPIC, "found", READ, DESCRIBE)],
    "groupless": [
        (TOPIC, "epochs", READ, DESCRIBE),
        (TOPIC, "alerts", WRITE, DESCRIBE),
        (TOPIC, "dead", WRITE, DESCRIBE),
    ],
    "blind": [(TOPIC, "epochs", DESCRIBE), (GROUP, "filters", READ)],
    "mute": [(TOPIC, "dead", WRITE, DESCRIBE), (TRANSACTION, "filters", WRITE, DESCRIBE)],
}


@dataclass(frozen=True, slots=True)
class Site:
    """A broker with one listener of good and one of expired certificate, and an OAuth server."""

    plain: str
    good: str
    expired: str
    ca: Path
    other_ca: Path
    token_url: str

    def kafka(self, user: str = "complete", mechanism: str = "SCRAM-SHA-512", **keys: str) -> Kafka:
        login = {"username": user, "password": keys.get("password", PASSWORD)}
        if mechanism == "OAUTHBEARER":
            login = {"token_url": self.token_url, "client_id": user, "client_secret": PASSWORD}
        ca = keys.get("ca", str(self.ca))
        return Kafka(
            bootstrap_servers=keys.get("servers", self.good),
            input_topics=("epochs",),
            alert_topic="alerts",
            dead_letter_topic="dead",
            group_id="filters",
            connect_timeout_s=PATIENCE_S,
            security=Security(protocol="sasl_ssl", mechanism=mechanism, ca_location=ca, **login),
        )


@pytest.fixture(scope="module")
def site(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:  # noqa: ARG001
    folder = tmp_path_factory.mktemp("certificates")
    ca, other_ca = (authority(folder, name) for name in ("ca", "other-ca"))
    secure = {
        "good": certificate(folder, "good", days=2),
        "expired": certificate(folder, "expired", days=0),
    }
    users = dict.fromkeys(RIGHTS, PASSWORD)
    with KafkaCluster(secure=secure, users=users) as cluster, oauth_server() as token_url:
        for topic in ("epochs", "alerts", "dead", "archive", "found"):
            make_topic(cluster.bootstrap_servers, topic)
        grant(AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}))
        with closing(KafkaSink(everything(cluster.bootstrap_servers))) as sink:
            sink.produce("epochs", b"star", b"epoch")
        good, expired = cluster.servers("good"), cluster.servers("expired")
        yield Site(cluster.bootstrap_servers, good, expired, ca, other_ca, token_url)


def everything(servers: str) -> Kafka:
    """Settings for the listener at which everybody may do everything."""
    return Kafka(bootstrap_servers=servers, input_topics=("epochs",))


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def authority(folder: Path, name: str) -> Path:
    """Certificate of a new CA."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    path = folder / f"{name}.pem"
    out = ["-keyout", folder / f"{name}.key", "-out", path]
    openssl("req", "-x509", *key, *out, "-subj", f"/CN={name}", "-days", 2)
    return path


def certificate(folder: Path, name: str, days: int) -> Path:
    """Key and certificate of a server at 127.0.0.1, as Kafka reads them; signed by "ca"."""
    key, request, signed = (folder / f"{name}.{end}" for end in ("key", "csr", "crt"))
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", *new, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    by = ["-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-CAcreateserial"]
    names = ["-extfile", folder / "names"]
    openssl("x509", "-req", "-in", request, *by, "-days", days, *names, "-out", signed)
    store = folder / f"{name}.pem"
    store.write_text(key.read_text() + signed.read_text())
    return store


def grant(admin: AdminClient) -> None:
    """Give each user its rights, and wait until the broker knows of them all."""
    bindings = [
        AclBinding(kind, name, PREFIXED, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for user, rights in RIGHTS.items()
        for kind, name, *operations in rights
        for operation in operations
    ]
    for done in admin.create_acls(bindings).values():
        done.result(PATIENCE_S)


class _OAuth(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        user, _, secret = login.partition(":")
        right = secret == PASSWORD
        answer = {"access_token": token(user)} if right else {"error": "invalid_client"}
        content = json.dumps({**answer, "token_type": "Bearer", "expires_in": 300}).encode()
        self.send_response(200 if right else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


def token(user: str) -> str:
    """An unsigned token (RFC 7519, section 6), which the broker takes where it is told to."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": user, "iat": now - 1, "exp": now + 300})
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    return ".".join([*(text.rstrip("=") for text in texts), ""])


@contextmanager
def oauth_server() -> Iterator[str]:
    """A token endpoint on 127.0.0.1: its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _OAuth) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()
        thread.join()


def read(kafka: Kafka) -> int:
    """Take the message that is there and commit it; its next offset."""
    with closing(KafkaSource(kafka)) as source:
        end = time.monotonic() + PATIENCE_S
        while not (messages := source.poll(1, 0.2)):
            assert time.monotonic() < end
        offsets = {(message.topic, message.partition): message.next_offset for message in messages}
        source.commit(offsets, wait=True)
        return offsets["epochs", 0]


def write(kafka: Kafka) -> None:
    with closing(KafkaSink(kafka)) as sink:
        sink.produce("alerts", b"star", b"alert")


def transact(kafka: Kafka) -> None:
    open_delivery(kafka, Metrics()).close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_a_user_with_rights_reads_commits_and_publishes(site, mechanism):
    kafka = site.kafka(mechanism=mechanism).model_copy(update={"group_id": f"filters-{mechanism}"})
    with closing(GroupProgress(kafka)) as progress:
        assert read(kafka) == 1
        assert progress(("epochs", 0)) == 1
    write(kafka)
    transact(kafka)


@pytest.mark.parametrize(
    ("user", "act", "parts"),
    [
        ("nobody", read, ["no topic 'epochs'", "lacks the rights Describe and Read"]),
        ("groupless", read, ["user 'groupless'", "Read on group filters (kafka.group_id)"]),
        ("blind", read, ["user 'blind'", "Read and Describe on topic epochs"]),
        ("mute", write, ["user 'mute'", "Write and Describe on topic alerts"]),
        ("nobody", write, ["user 'nobody'", "Write and Describe on topic alerts"]),
        ("nobody", transact, ["user 'nobody'", "transactional ids", "filters"]),
    ],
)
def test_a_missing_right_is_named_with_its_topic_or_group(site, user, act, parts):
    with pytest.raises(ConfigError) as caught:
        act(site.kafka(user))
    for part in parts:
        assert part in str(caught.value)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("act", [read, write])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_ends_at_once(site, act, mechanism):
    with pytest.raises(ConfigError, match="as user 'complete' was refused") as caught:
        act(site.kafka(mechanism=mechanism, password=WRONG))
    assert WRONG not in str(caught.value)


@pytest.mark.parametrize("act", [read, write])
def test_an_expired_certificate_is_refused(site, act):
    with pytest.raises(ConfigError, match=r"certificate could not be verified.*expired"):
        act(site.kafka(servers=site.expired))


@pytest.mark.parametrize("act", [read, write])
def test_a_certificate_of_an_unknown_authority_is_refused(site, act):
    with pytest.raises(ConfigError, match=r"could not be verified.*kafka.security.ca_loc"):
        act(site.kafka(ca=str(site.other_ca)))


def client_config(site: Site, folder: Path, user: str, password: str = PASSWORD) -> Path:
    """A file of librdkafka properties, as ``--client-config`` takes it."""
    path = folder / f"{user}.properties"
    path.write_text(
        "security.protocol=sasl_ssl\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.username={user}\nsasl.password={password}\nssl.ca.location={site.ca}\n"
    )
    return path


def replay(site: Site, folder: Path, properties: Path) -> subprocess.CompletedProcess[str]:
    archive = folder / "star.csv"
    archive.write_text("mjd,mag,magerr,filter\n60000.1,18.0,0.01,r\n60001.1,18.1,0.01,r\n")
    options = ["--topic", "archive", "--bootstrap-servers", site.good]
    return subprocess.run(
        [
            *(sys.executable, "-m", "broker_filter.cli", "replay", str(archive), *options),
            *("--client-config", str(properties), "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )


def test_a_replay_logs_in_to_the_broker_that_it_publishes_to(site, tmp_path):
    done = replay(site, tmp_path, client_config(site, tmp_path, "publisher"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["messages"] == 2


def test_a_replay_with_a_wrong_password_ends_with_one_message(site, tmp_path):
    done = replay(site, tmp_path, client_config(site, tmp_path, "publisher", WRONG))
    assert done.returncode == 2
    assert "was refused" in done.stderr
    assert WRONG not in done.stderr + done.stdout


def test_a_recovery_logs_in_to_the_topic_that_it_reads(site, tmp_path):
    sample = build.alert_sample()
    servers = site.good
    with closing(KafkaSink(everything(site.plain))) as sink:
        sink.produce("found", b"star", sample, (schema_header("alert"),))
    properties = read_properties(client_config(site, tmp_path, "reader"))
    assert len(list(read_alerts(f"kafka://{servers}/found", properties))) == 1
    stranger = read_properties(client_config(site, tmp_path, "nobody"))
    with pytest.raises(ConfigError, match=r"kafka://.*/found"):
        list(read_alerts(f"kafka://{servers}/found", stranger))


def test_the_program_ends_with_one_message_and_does_not_try_again(site, tiny_entry, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    security = {
        "protocol": "sasl_ssl",
        "mechanism": "SCRAM-SHA-256",
        "username": "groupless",
        "password_file": str(secret),
        "ca_location": str(site.ca),
    }
    kafka = {
        "bootstrap_servers": site.good,
        "input_topics": ["epochs"],
        "alert_topic": "alerts",
        "dead_letter_topic": "dead",
        "group_id": "filters",
        "delivery": "at_least_once",
        "security": security,
    }
    config = tmp_path / "config.yaml"
    model = {"path": str(tiny_entry), "threads": 1}
    config.write_text(yaml.safe_dump({"kafka": kafka, "model": model, "metrics": {"port": 0}}))
    done = subprocess.run(
        [sys.executable, "-m", "broker_filter.cli", "run", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,  # torch is slow to load on a busy machine
        check=False,
    )
    message = [line for line in done.stderr.splitlines() if line.startswith("broker-filter: ")]
    assert done.returncode == 2
    assert len(message) == 1
    assert "grant Read on group filters" in message[0]
    assert "Traceback" not in done.stderr
    assert PASSWORD not in done.stderr + done.stdout
