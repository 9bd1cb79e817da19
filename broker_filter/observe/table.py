"""The one table of all metrics: name, type, labels, meaning, and what to do about it.

The Prometheus objects (`metrics`) and the table in deploy/README.md come from it; the dashboard and
the alert rules are tested against it. Labels are bounded: never a star or an alert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from broker_filter.schemas import schema_id

__all__ = ["METRICS", "PREFIX", "PROCESS_METRICS", "Metric"]

PREFIX = "broker_filter_"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LATENCY = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
_COUNTS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)
_FRACTIONS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
_LOG10_K = (-20.0, -10.0, -5.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: what it counts, and what to do about it.

    Parameters
    ----------
    name : str
        Without `PREFIX`.
    kind : str
    labels : tuple of str
    meaning : str
        Goes out with every scrape too.
    action : str
        When to worry and what to do then.
    buckets : tuple of float
        Upper bounds of a histogram.
    known : tuple of str
        Values of the only label that are there, at zero, from the start: Prometheus sees no
        increase in a series that begins with its first event.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str
    action: str
    buckets: tuple[float, ...] = ()
    known: tuple[str, ...] = ()


_INTAKE = (
    Metric(
        "records_consumed_total",
        "counter",
        ("topic",),
        "messages taken from the input topics",
        "flat while the survey observes: check the broker, the group and /readyz",
    ),
    Metric(
        "records_dead_total",
        "counter",
        ("reason",),
        "messages that could not be used, sent to the dead-letter topic",
        "above 1 % of the consumed: read the dead letters; a schema has probably changed",
        known=(
            *("bad_dtype", "bad_name", "bad_schema", "bad_star_id", "column_length", "empty"),
            *(
                "internal",
                "no_epochs",
                "too_large",
                "too_many_items",
                "trailing_bytes",
                "truncated",
            ),
            *("undecodable", "unknown_codec", "unknown_format", "unknown_schema_id"),
            "unknown_survey",
        ),
    ),
    Metric(
        "records_tombstone_total",
        "counter",
        (),
        "messages without a value, passed over: tombstones of a compacted topic",
        "many: is a compacted topic the right input?",
    ),
    Metric(
        "points_inserted_total",
        "counter",
        ("outcome",),
        "epochs by what became of them: inserted, thinned (merged with their neighbours in a window"
        " that is full), duplicate, late, or rejected and why",
        "many rejected: check flag_mask, mjd_min and mjd_max against the survey; many thinned: a"
        " denser cadence than window.max_points is made for",
        known=("inserted", "thinned", "duplicate", "late"),
    ),
    Metric(
        "consumer_lag_records",
        "gauge",
        ("topic", "partition"),
        "messages between our position and the end of the partition",
        "grows: add members, up to the number of partitions",
    ),
    Metric(
        "consumer_lag_seconds",
        "gauge",
        ("topic", "partition"),
        "how old, by its Kafka timestamp, the newest message taken is; 0 at the end of the"
        " partition",
        "above two cadences: the filter is too slow, or stands still; see /readyz and"
        " backpressure_seconds_total",
    ),
    Metric(
        "last_record_timestamp_seconds",
        "gauge",
        (),
        "Kafka timestamp of the newest message, Unix time",
        "two cadences old in season: the source has stopped",
    ),
    Metric(
        "fetch_queue_bytes",
        "gauge",
        (),
        "messages that the Kafka client has fetched ahead",
        "far above 16 MB: lower queued.max.messages.kbytes in kafka.options",
    ),
)

_GROUP = (
    Metric(
        "assigned_partitions",
        "gauge",
        (),
        "partitions that this member owns",
        "0 for long: more members than partitions, or the group cannot settle",
    ),
    Metric(
        "rebalances_total",
        "counter",
        ("kind",),
        "changes of our partitions: assigned, revoked, lost",
        "frequent, or any lost: members restart or poll too rarely",
        known=("assigned", "revoked", "lost"),
    ),
    Metric(
        "backpressure_seconds_total",
        "counter",
        (),
        "time during which intake was paused for the network",
        "grows steadily: as gpu_queue_batches",
    ),
)

_STATE = (
    Metric(
        "windows",
        "gauge",
        (),
        "windows in memory",
        "grows without end: stars are not shared out by partition, or ids are not stable",
    ),
    Metric(
        "window_store_bytes",
        "gauge",
        (),
        "memory of all windows",
        "near the pod's limit: add members to the group, or lower window.max_stars",
    ),
    Metric(
        "windows_dropped_total",
        "counter",
        ("kind",),
        "windows dropped because a partition has more than window.max_stars: quiet (without an"
        " epoch for the length of a window), observed",
        "any observed: raise window.max_stars, or share the stars out over more partitions",
        known=("quiet", "observed"),
    ),
    Metric(
        "events_dropped_total",
        "counter",
        (),
        "open events whose window was dropped (windows_dropped_total): they get no final",
        "above 0: raise window.max_stars, or share the stars out over more partitions",
    ),
    Metric(
        "snapshots_total",
        "counter",
        ("outcome",),
        "snapshots of a partition: written, failed",
        "any failed: the log names the store and the reason; without snapshots a restart replays"
        " the topic",
        known=("written", "failed"),
    ),
    Metric(
        "snapshot_age_seconds",
        "gauge",
        (),
        "age of the oldest snapshot of our partitions",
        "above three intervals: check the snapshot store",
    ),
    Metric(
        "snapshot_seconds",
        "histogram",
        (),
        "time to write a snapshot",
        "near kafka.max_poll_interval_ms: more, smaller partitions",
        _LATENCY,
    ),
    Metric(
        "restores_total",
        "counter",
        ("outcome",),
        "partitions taken over, by how they began: snapshot, new, disabled (no snapshots are"
        " kept), truncated (the topic no longer held all that was needed), or why no snapshot could"
        " be used and the topic was replayed: missing, damaged, version, window, ahead,"
        " unreachable, permission",
        "any truncated: raise the topic's retention; any of the reasons: the log names the snapshot"
        " and the way out",
        known=(
            *("snapshot", "new", "disabled", "truncated", "missing", "damaged", "version"),
            *("window", "ahead", "unreachable", "permission"),
        ),
    ),
    Metric(
        "restore_seconds",
        "histogram",
        (),
        "time to load a snapshot and replay up to now",
        "long: shorten the snapshot interval",
        _LATENCY,
    ),
)

_INFERENCE = (
    Metric(
        "batch_windows",
        "histogram",
        (),
        "windows per batch",
        "small while lag grows: raise batch.max_wait_s",
        _COUNTS,
    ),
    Metric(
        "batch_fill_ratio",
        "histogram",
        (),
        "points over padded points per batch",
        "low: windows are short for their buckets",
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    ),
    Metric(
        "inference_seconds",
        "histogram",
        ("stage",),
        "time of a batch per stage: scan (the matched filter), evidence (scan and network),"
        " certified (a window's fit), event (that of the whole event), rivals, posterior",
        "high: fewer alert.posterior_samples, more model.threads, or a GPU",
        _SECONDS,
        known=("scan", "evidence", "posterior"),
    ),
    Metric(
        "looks_total",
        "counter",
        (),
        "windows whose K was certified, about a tenth of a second each",
        "far more than alerts: the noise of the stars is larger than the network learned; raise"
        " alert.trigger_log10_k",
    ),
    Metric(
        "looks_without_fit_total",
        "counter",
        (),
        "windows whose K was to be certified and that could not be fitted: too few epochs, or none"
        " that any lens explains; the next evaluation tries again",
        "steady growth: see notFitted of alerts, and the errors and baselines of the input",
    ),
    Metric(
        "evaluations_lost_total",
        "counter",
        ("stage",),
        "evaluations that failed, by stage: certified, event or rivals (the alert goes without) or"
        " decision (the evaluation is lost, the next one tries again)",
        "any: the log names star, epoch and error; please report it",
        known=("certified", "event", "rivals", "decision"),
    ),
    Metric(
        "gpu_queue_batches",
        "gauge",
        (),
        "batches that wait for the network",
        "at batch.queue_depth for 10 minutes: the network is too slow for the stream",
    ),
    Metric(
        "windows_settled_total",
        "counter",
        (),
        "windows that the matched filter settled, which the network did not see",
        "under seven in ten of all: error bars are too small, or the threshold is low",
    ),
    Metric(
        "log_bayes_factor",
        "histogram",
        (),
        "log10 K of the windows that the network saw",
        "shifts: instrument, calibration or model has changed; compare with the model card",
        _LOG10_K,
    ),
    Metric(
        "posterior_support_fraction",
        "histogram",
        (),
        "share of posterior samples that are finite; none can leave the prior",
        "below 1: the network overflows; the light curves are unlike those of the training",
        _FRACTIONS,
    ),
)

_OUTPUT = (
    Metric(
        "alerts_published_total",
        "counter",
        ("schema",),
        "alerts published",
        "far above the usual rate: look at log_bayes_factor for a change of the input",
        known=(schema_id("alert"),),
    ),
    Metric(
        "event_to_alert_seconds",
        "histogram",
        (),
        "time from a message's Kafka timestamp to its alert",
        "p99 above 2 s: look at the lag, the queue and batch.max_wait_s",
        _LATENCY,
    ),
    Metric(
        "transactions_total",
        "counter",
        ("outcome",),
        "Kafka transactions: committed, aborted (and then tried again)",
        "aborted again and again: see the log; transaction coordinator, quota or message size",
        known=("committed", "aborted"),
    ),
    Metric(
        "build_info",
        "gauge",
        ("version", "model"),
        "always 1; the labels name what runs",
        "two values at once: a roll-out is under way",
    ),
)

METRICS: tuple[Metric, ...] = (*_INTAKE, *_GROUP, *_STATE, *_INFERENCE, *_OUTPUT)

PROCESS_METRICS: tuple[Metric, ...] = (
    Metric(
        "process_start_time_seconds",
        "gauge",
        (),
        "start of the process, Unix time",
        "changes often: the process crashes; its last log line says why",
    ),
    Metric(
        "process_resident_memory_bytes",
        "gauge",
        (),
        "memory of the process",
        "near the limit: as window_store_bytes",
    ),
    Metric(
        "process_cpu_seconds_total",
        "counter",
        (),
        "processor time of all threads",
        "one core busy all the time while lag grows: intake is the limit; add members",
    ),
    Metric(
        "process_open_fds",
        "gauge",
        (),
        "open files and sockets",
        "grows without end: a leak; report it",
    ),
)
"""What the Prometheus client measures by itself on Linux; these names have no prefix."""
