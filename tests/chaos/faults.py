"""The faults: each disturbs one run of the archive, and gives a verdict and a note.

Every function takes a `Lab` and returns (verdict, note); an assertion that fails, such as a wait
that ends in vain or a wrong exit status, counts as a failed run.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.chaos.lab import EXIT_ERROR, POISON, Case, Lab, Result, live, with_poison
from tests.chaos.proxy import Proxy
from tests.integration.harness import Filter, Trial
from tests.integration.outcome import undisturbed
from tests.kafka_broker import KafkaCluster, free_ports, run_tool

__all__ = ["FAULTS"]

TIMES = 3
"""Disturbances of one run, where one alone takes little time."""
STOPPED_AFTER_S = (0.0, 0.5, 1.0)
"""How long the filter has read of a backlog before it is stopped."""
STOP_S = 30.0
"""From SIGTERM to the exit, as deploy/README states it."""
CUT_S = 60.0
PAUSED_S = 20.0
THROTTLED_S = 30.0
SLOW_S = 3
SLOW_STORE = """
import time
from fsspec.implementations.local import LocalFileSystem

opened = LocalFileSystem.open

def slow(self, path, mode="rb", *arguments, **keywords):
    file = opened(self, path, mode, *arguments, **keywords)
    time.sleep({seconds} if "w" in mode else 0)
    return file

LocalFileSystem.open = slow
"""
CLOCK = Path(__file__).with_name("clock.c")


def kill(lab: Lab) -> Result:
    """kill -9 at random moments."""
    with lab.trial() as (run, stream):
        filter_ = run.start("a")
        for moment in lab.moments(TIMES):
            live(run, filter_)
            stream.to(moment)
            lab.dawdle()
            filter_.kill()
            filter_ = run.start("a")
        return lab.end(run, stream, filter_), f"{TIMES} kills a run"


def terminate(lab: Lab) -> Result:
    """SIGTERM at random moments; each must end with status 0."""
    longest = 0.0
    with lab.trial() as (run, stream):
        filter_ = run.start()
        for moment in lab.moments(TIMES):
            live(run, filter_)
            stream.to(moment)
            lab.dawdle()
            began = time.monotonic()
            assert filter_.stop() == 0, run.logs()
            longest = max(longest, time.monotonic() - began)
            filter_ = run.start()
        verdict = lab.end(run, stream, filter_)
    return verdict, f"{TIMES} stops a run, status 0 within {longest:.1f} s"


def terminate_amid_backlog(lab: Lab) -> Result:
    """SIGTERM while the whole archive waits; each must end with status 0 in the time stated."""
    took, left = [], []
    with lab.trial() as (run, stream):
        stream.to(1, at_once=True)
        for seconds in STOPPED_AFTER_S:
            filter_ = run.start()
            live(run, filter_)
            time.sleep(seconds)
            began = time.monotonic()
            assert filter_.stop() == 0, run.logs()
            took.append(time.monotonic() - began)
            left.append(1 - run.share_done())
            assert took[-1] < STOP_S, run.logs()
            assert left[-1] > 0, run.logs()
        verdict = lab.end(run, stream, run.start())
    stops = ", ".join(f"{t:.1f} s ({100 * s:.0f} % left)" for t, s in zip(took, left, strict=True))
    return verdict, f"status 0 after {stops}"


def join_and_leave(lab: Lab) -> Result:
    """A second and a third instance join and leave, the last one by kill -9."""
    with lab.trial() as (run, stream):
        first = run.start()
        live(run, first)
        stream.to(0.15)
        second = run.start()
        live(run, second)
        stream.to(0.3)
        third = run.start()
        live(run, third)
        stream.to(0.55)
        lab.dawdle()
        assert third.stop() == 0, run.logs()
        stream.to(0.8)
        lab.dawdle()
        second.kill()
        return lab.end(run, stream, first), "2 join, 1 leaves, 1 is killed"


def sudden_rebalance(lab: Lab) -> Result:
    """Instances that leave while others join, by the strategy that revokes everything."""
    with lab.trial(kafka={"assignment_strategy": "range"}) as (run, stream):
        first, second = run.start(), run.start()
        live(run, first)
        live(run, second)
        stream.to(0.4)
        third = run.start()
        live(run, third)
        first.send(signal.SIGTERM)
        stream.to(0.7)
        assert first.process.wait(60) == 0, run.logs()
        return lab.end(run, stream, second, third), "3 rebalances, strategy range"


def broker_restart(lab: Lab) -> Result:
    """The only broker is killed and started again."""
    with KafkaCluster() as cluster, lab.trial(cluster.bootstrap_servers) as (run, stream):
        filter_ = run.start("a")
        for moment in lab.moments(2):
            live(run, filter_)
            stream.to(moment)
            cluster.nodes[0].kill()
            lab.dawdle()
            cluster.nodes[0].start()
            cluster.wait_ready()
        verdict, restarts = lab.end_supervised(run, stream, "a")
        return verdict, f"2 kills a run; {restarts} restarts"


def one_of_three(lab: Lab) -> Result:
    """One of three brokers is killed, and comes back."""
    with KafkaCluster(3) as cluster, lab.trial(cluster.bootstrap_servers) as (run, stream):
        filter_ = run.start("a")
        live(run, filter_)
        node = lab.rng.choice(cluster.nodes)
        stream.to(0.3)
        node.kill()
        stream.to(0.7)
        node.start()
        cluster.wait_ready()
        verdict, restarts = lab.end_supervised(run, stream, "a")
        return verdict, f"kill, 40 % of the stream, start; {restarts} restarts"


def coordinator(lab: Lab) -> Result:
    """The broker that coordinates our transactions freezes; two others go on."""
    with KafkaCluster(3) as cluster, lab.trial(cluster.bootstrap_servers) as (run, stream):
        filter_ = run.start("a")
        live(run, filter_)
        stream.to(0.3)
        node = cluster.nodes[coordinating_node(run, f"{run.name}-a") - 1]
        node.pause()
        time.sleep(PAUSED_S)
        node.resume()
        verdict, restarts = lab.end_supervised(run, stream, "a")
        return verdict, f"frozen for {PAUSED_S:.0f} s; {restarts} restarts"


def coordinating_node(run: Trial, transactional_id: str) -> int:
    """Id of the broker that coordinates a producer: by Java's hash of the name."""
    value = 0
    for character in transactional_id:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    topic = "__transaction_state"
    partitions = admin(run).list_topics(topic, timeout=30).topics[topic].partitions
    # Utils.abs of Kafka: the sign bit goes, also where the number is the least of all.
    signed = value - (1 << 32) if value >> 31 else value
    positive = 0 if signed == -(1 << 31) else abs(signed)
    return int(partitions[positive % len(partitions)].leader)


def network_cut(lab: Lab) -> Result:
    """Nothing passes to or from the broker for a minute, and no connection is closed."""
    (port,) = free_ports(1)
    settings = {"advertised.listeners": f"CLIENT://127.0.0.1:{port}"}
    cluster = KafkaCluster(1, settings=settings)
    target = int(cluster.bootstrap_servers.rpartition(":")[2])
    with Proxy(port, target) as proxy, cluster, lab.trial(f"127.0.0.1:{port}") as (run, stream):
        filter_ = run.start("a")
        live(run, filter_)
        stream.to(lab.rng.uniform(0.3, 0.7))
        proxy.cut()
        time.sleep(CUT_S)
        proxy.mend()
        verdict, restarts = lab.end_supervised(run, stream, "a")
        return verdict, f"cut for {CUT_S:.0f} s; {restarts} restarts"


def store_deleted(lab: Lab) -> Result:
    """All snapshots are gone at a restart."""
    with lab.trial() as (run, stream):
        filter_ = run.start("a")
        live(run, filter_)
        stream.to(lab.rng.uniform(0.4, 0.8))
        run.until(lambda: filter_.logged("snapshot"))
        filter_.kill()
        shutil.rmtree(run.folder / "snapshots")
        filter_ = run.start("a")
        verdict = lab.end(run, stream, filter_)
        outcome = (filter_.logged("restored") or {}).get("outcome")
    return verdict, f"restored from: {outcome}"


def store_unwritable(lab: Lab) -> Result:
    """Snapshots cannot be written from some moment on, nor read at the restart."""
    with lab.trial() as (run, stream):
        filter_ = run.start("a")
        live(run, filter_)
        stream.to(0.3)
        store = run.folder / "snapshots"
        run.until(lambda: filter_.logged("snapshot"))
        store.rename(run.folder / "away")
        store.write_text("a file where the folder was")
        stream.to(0.6)
        run.until(lambda: filter_.logged("snapshot_failed"))
        filter_.kill()
        filter_ = run.start("a")
        verdict = lab.end(run, stream, filter_)
        outcome = (filter_.logged("restored") or {}).get("outcome")
    return verdict, f"said so; restored from: {outcome}"


def store_full(lab: Lab) -> Result:
    """The disk of the snapshots is full (a tiny file system in memory; needs root)."""
    store = lab.folder / "full"
    with (
        small_disk(store, "64k"),
        lab.trial(snapshot={"url": str(store)}) as (run, stream),
    ):
        filter_ = run.start("a")
        live(run, filter_)
        stream.to(0.6)
        run.until(lambda: filter_.logged("snapshot_failed"))
        reason = (filter_.logged("snapshot_failed") or {}).get("reason")
        filter_.kill()
        filter_ = run.start("a")
        return lab.end(run, stream, filter_), f"reason given: {reason}"


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a file system in memory; needs root."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def store_slow(lab: Lab) -> Result:
    """Every snapshot takes seconds to write: a kill finds old ones, and one half written."""
    code = SLOW_STORE.format(seconds=SLOW_S)
    # Python imports a module of this name at every start.
    (lab.folder / "sitecustomize.py").write_text(code)
    with lab.trial(environment={"PYTHONPATH": str(lab.folder)}) as (run, stream):
        filter_ = run.start("a")
        for moment in lab.moments(2):
            live(run, filter_)
            stream.to(moment)
            lab.dawdle()
            filter_.kill()
            filter_ = run.start("a")
        return lab.end(run, stream, filter_), f"{SLOW_S} s each, 2 kills a run"


def clock_jump(lab: Lab) -> Result:
    """The wall clock that a filter sees jumps an hour on, two back, and one on.

    Needs a C compiler. A wait of the Kafka client that began an hour ahead lasts until then, so the
    watchdog may end the process, which then is started again.
    """
    library, offset = lab.folder / "clock.so", lab.folder / "offset"
    build = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(CLOCK), "-ldl"]
    subprocess.run(build, check=True, capture_output=True)
    environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}
    with lab.trial(environment=environment) as (run, stream):
        filter_ = run.start("a")
        live(run, filter_)
        for moment, seconds in zip(lab.moments(3), (3600, -3600, 0), strict=True):
            stream.to(moment)
            offset.write_text(f"{seconds}\n")
            # A line of the log shows that the filter lives by the new time.
            run.until(lambda off=seconds: abs(clock_of(filter_) - time.time() - off) < 1800)
        verdict, restarts = lab.end_supervised(run, stream, "a")
    return verdict, f"by a preloaded library: +1 h, -1 h, right again; {restarts} restarts"


def clock_of(filter_: Filter) -> float:
    """Unix time of the last line that a filter has logged."""
    return datetime.fromisoformat(filter_.lines()[-1]["time"]).timestamp()


def truncated_behind(lab: Lab) -> Result:
    """Retention deletes what was read: the snapshots hold the windows."""
    with lab.trial() as (run, stream):
        filter_ = run.start("a")
        live(run, filter_)
        stream.to(0.5)
        stream.settled()  # else the stop may leave some to the next start, which reads it again
        assert filter_.stop() == 0, run.logs()
        delete_before(run, run.committed())
        filter_ = run.start("a")
        return lab.end(run, stream, filter_), "up to what was committed"


def truncated_ahead(lab: Lab) -> Result:
    """Retention deletes what was not read yet: said loudly; the rest as if it had never been."""
    with lab.trial() as (run, stream):
        filter_ = run.start("a")
        live(run, filter_)
        stream.to(0.4)
        stream.settled()
        assert filter_.stop() == 0, run.logs()
        committed = run.committed()
        stream.to(0.5)
        low = {n: committed[n] + 30 for n in committed}
        delete_before(run, low)
        filter_ = run.start("a")
        lab.end(run, stream, filter_)
        assert filter_.logged("input_truncated"), run.logs()
        left = tuple(
            message
            for message in run.archive.messages
            if not committed[message.partition] <= message.offset < low[message.partition]
        )
        verdict = run.verdict(undisturbed(replace(run.archive, messages=left)))
    return verdict, "against a run without the 120 deleted messages"


def delete_before(run: Trial, offsets: dict[int, int]) -> None:
    """Delete the input before some offsets, as retention does."""
    wanted = [TopicPartition(run.input, n, offset) for n, offset in offsets.items()]
    client = admin(run)  # nothing is done for a client that is let go
    for done in client.delete_records(wanted).values():
        done.result(30)


def admin(run: Trial) -> AdminClient:
    """Administrator of the broker of a trial."""
    return AdminClient({"bootstrap.servers": run.servers, "log_level": 0})


def message_limit(lab: Lab) -> Result:
    """The alert topic takes no message as large as an alert, until its limit is raised."""
    limit = "max.message.bytes"
    with lab.trial(alert_topic_config={limit: "1000"}) as (run, stream):
        filter_ = run.start("a")
        live(run, filter_)
        stream.to(0.6)
        assert filter_.process.wait(60) == EXIT_ERROR, run.logs()
        assert limit in filter_.log(), run.logs()
        raised = ConfigEntry(limit, "1048588", incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ResourceType.TOPIC, run.alerts, incremental_configs=[raised])
        client = admin(run)
        for done in client.incremental_alter_configs([topic]).values():
            done.result(30)
        filter_ = run.start("a")
        return lab.end(run, stream, filter_), "status 2 with the reason, then raised"


def broker_disk_full(lab: Lab) -> Result:
    """The broker's disk fills up, and so it goes down; it comes back with room (needs root)."""
    cluster = KafkaCluster()
    node = cluster.nodes[0]
    with (
        small_disk(node.data, "96m"),
        cluster,
        lab.trial(cluster.bootstrap_servers) as (run, stream),
    ):
        filter_ = run.start("a")
        live(run, filter_)
        stream.to(lab.rng.uniform(0.2, 0.5))
        filter_.send(signal.SIGSTOP)  # with the input there, and nothing of it settled
        stream.to(0.7, at_once=True)
        filler = node.data / "filler"
        fill(filler)
        filter_.send(signal.SIGCONT)
        run.until(lambda: not node.running)
        filler.unlink()
        node.kill()
        node.start()
        cluster.wait_ready()
        verdict, restarts = lab.end_supervised(run, stream, "a")
        return verdict, f"no room left, broker down; {restarts} restarts"


def fill(file: Path) -> None:
    """Write until there is no room left."""
    with suppress(OSError), file.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))


def quota(lab: Lab) -> Result:
    """The brokers let one byte a second of ours into the alert topic, as a full quota does."""
    with KafkaCluster() as cluster, lab.trial(cluster.bootstrap_servers) as (run, stream):
        filter_ = run.start("a")
        live(run, filter_)
        stream.to(lab.rng.uniform(0.2, 0.4))
        limit = ["--bootstrap-server", run.servers, "--entity-type", "clients"]
        limit += ["--entity-name", "broker-filter", "--alter"]
        run_tool("kafka.admin.ConfigCommand", *limit, "--add-config", "producer_byte_rate=1")
        stream.to(0.8)
        time.sleep(THROTTLED_S)
        run_tool("kafka.admin.ConfigCommand", *limit, "--delete-config", "producer_byte_rate")
        verdict, restarts = lab.end_supervised(run, stream, "a")
        held_up = filter_.logged("delivery_failed") is not None
        said = "deliveries failed meanwhile" if held_up else "no delivery failed"
        return verdict, f"for {THROTTLED_S:.0f} s; {said}; {restarts} restarts"


def poison_100(lab: Lab) -> Result:
    """From some moment on no message can be used: status 2 with the reason, till it is allowed."""
    rows = 1500
    archive = with_poison(lab.archive, share=0, rows=rows)
    with lab.trial(archive=archive) as (run, stream):
        filter_ = run.start("a")
        live(run, filter_)
        stream.to(0.6)
        assert filter_.process.wait(60) == EXIT_ERROR, run.logs()
        assert "could not be used" in filter_.log(), run.logs()
        run.sections["dead_letters"] = {"max_ratio": 1, "max_consecutive": 1_000_000}
        filter_ = run.start("a")
        lab.end(run, stream, filter_)
        more = tuple(
            (m.partition, m.offset, "truncated") for m in archive.messages if m.value == POISON
        )
        verdict = run.verdict(replace(lab.expected, letters=more))
    return verdict, f"status 2 with the reason; {rows} dead letters once allowed"


FAULTS: dict[str, Case] = {
    "kill -9": kill,
    "SIGTERM": terminate,
    "SIGTERM amid a backlog": terminate_amid_backlog,
    "join and leave": join_and_leave,
    "rebalance of all": sudden_rebalance,
    "broker killed": broker_restart,
    "snapshots deleted": store_deleted,
    "poison 100 %": poison_100,
    "snapshots unwritable": store_unwritable,
    "snapshot disk full": store_full,
    "snapshots slow": store_slow,
    "message limit": message_limit,
    "alert topic's quota": quota,
    "broker's disk full": broker_disk_full,
    "input truncated, read": truncated_behind,
    "input truncated, unread": truncated_ahead,
    "clock jump": clock_jump,
    "network cut": network_cut,
    "one of three brokers killed": one_of_three,
    "transaction coordinator frozen": coordinator,
}
