from __future__ import annotations

import ctypes
import logging
import re
import traceback
from pathlib import Path

import confluent_kafka.cimpl
import pytest
import yaml
from pydantic import ValidationError

from broker_filter.config import Kafka, Settings, load_settings, masked
from broker_filter.errors import ConfigError
from broker_filter.kafka.client import client_config

EXAMPLE = Path(__file__).parents[2] / "deploy" / "config.example.yaml"
SECRET = "hunter2-in-clear"  # noqa: S105
MINIMAL = "kafka:\n  bootstrap_servers: localhost:9092\n  input_topics: [photometry]\n"
SASL = {
    "BROKER_FILTER_KAFKA__SECURITY__PROTOCOL": "sasl_ssl",
    "BROKER_FILTER_KAFKA__SECURITY__MECHANISM": "SCRAM-SHA-512",
    "BROKER_FILTER_KAFKA__SECURITY__USERNAME": "filter",
}
SECURITY = "BROKER_FILTER_KAFKA__SECURITY__"
PASSWORD = f"{SECURITY}PASSWORD"
OAUTH = {
    f"{SECURITY}PROTOCOL": "sasl_ssl",
    f"{SECURITY}MECHANISM": "OAUTHBEARER",
    f"{SECURITY}TOKEN_URL": "https://login.example/token",
    f"{SECURITY}CLIENT_ID": "filter",
}


def load(tmp_path, text=MINIMAL, environ=None):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load_settings(path, environ or {})


def problem(tmp_path, text=MINIMAL, environ=None):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, environ)
    # What a crash would print, too, must be free of secrets.
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


def keys_of(model, prefix=()):
    for name, field in model.model_fields.items():
        yield (*prefix, name), field
        if hasattr(field.annotation, "model_fields"):
            yield from keys_of(field.annotation, (*prefix, name))


def test_example_holds_every_key_with_its_default(tmp_path):
    example = yaml.safe_load(EXAMPLE.read_text())
    plain = load(tmp_path)
    assert load_settings(EXAMPLE, {}) == plain
    for keys, _ in keys_of(Settings):
        node = example
        for key in keys:
            if keys[-1] in {"password", "client_secret", "key_password"}:
                continue
            assert key in node, f"{'.'.join(keys)} is missing in {EXAMPLE.name}"
            node = node[key]


def test_a_window_holds_twenty_days_of_the_survey(tmp_path):
    survey_epochs = 20 * 24 * 60 / 12.1
    assert load(tmp_path).window.max_points > survey_epochs


def test_every_key_is_described():
    assert all(field.description for _, field in keys_of(Settings))


def test_settings_cannot_be_changed(tmp_path):
    settings = load(tmp_path)
    with pytest.raises(ValueError, match="frozen"):
        settings.alert.seed = 3


def test_environment_overrides_file(tmp_path):
    text = MINIMAL + "alert:\n  log10_k: 2\n  seed: 5\n"
    environ = {
        "BROKER_FILTER_ALERT__LOG10_K": "3.5",
        "BROKER_FILTER_KAFKA__INPUT_TOPICS": "one, two",
        "BROKER_FILTER_METRICS__ENABLED": "false",
        "BROKER_FILTER_KAFKA__OPTIONS__SOCKET_TIMEOUT_MS": "5000",
        "BROKER_FILTER_ALERT__SEED": "",
        "BROKER_FILTER_TEST_DATA": "/somewhere",
        "BROKER_FILTER_ALERT__NOISE__RED_NOISE_DAYS": "0.1, 30",
        "UNRELATED__ALERT__SEED": "7",
    }
    settings = load(tmp_path, text, environ)
    assert (settings.alert.log10_k, settings.alert.seed) == (3.5, 5)
    assert settings.kafka.input_topics == ("one", "two")
    assert settings.alert.noise.red_noise_days == (0.1, 30)
    assert settings.metrics.enabled is False
    assert client_config(settings.kafka)["socket.timeout.ms"] == "5000"


def test_environment_alone_is_enough():
    settings = load_settings(
        None,
        {
            "BROKER_FILTER_KAFKA__BOOTSTRAP_SERVERS": "a:1,b:2",
            "BROKER_FILTER_KAFKA__INPUT_TOPICS": "^ztf_.*",
        },
    )
    assert settings.kafka.input_topics == ("^ztf_.*",)


def test_process_environment_is_the_default(monkeypatch, tmp_path):
    monkeypatch.setenv("BROKER_FILTER_BATCH__CHUNK", "7")
    path = tmp_path / "config.yaml"
    path.write_text(MINIMAL)
    assert load_settings(path).batch.chunk == 7


@pytest.mark.parametrize(
    ("text", "environ", "parts"),
    [
        ("kafka:\n  gruop_id: x\n", {}, [":2: kafka.gruop_id: unknown key", "kafka.group_id?"]),
        (MINIMAL + "kafak: {}\n", {}, [":4: kafak: unknown key", "did you mean kafka?"]),
        (MINIMAL + "alert:\n  zzz: 1\n", {}, ["alert.zzz: unknown key; allowed are log10_k"]),
        (MINIMAL, {"BROKER_FILTER_ALERT__LOG10K": "3"}, ["BROKER_FILTER_ALERT__LOG10K: alert.lo"]),
        (MINIMAL + "metrics: {port: 70000}\n", {}, ["metrics.port = 70000", "65535", "TCP port"]),
        (MINIMAL + "model: {device: gpu}\n", {}, ["model.device = 'gpu'", "'cpu' or 'cuda'"]),
        (MINIMAL + "alert: {log10_k: .nan}\n", {}, ["alert.log10_k = nan"]),
        (MINIMAL + "alert: {prior_odds: 0}\n", {}, ["alert.prior_odds = 0", "greater than 0"]),
        (MINIMAL + "alert: {decide_on: certified, certified: false}\n", {}, ["certified: true"]),
        (MINIMAL + "alert: 3\n", {}, [":4: alert"]),
        (MINIMAL + "alert: 3\n", {"BROKER_FILTER_ALERT__SEED": "1"}, ["alert is not a section"]),
        (MINIMAL + "input: {mjd_min: 9e4}\n", {}, ["mjd_min 90000.0 must be before mjd_max"]),
        (MINIMAL + "input: {schema_registry_login_file: f}\n", {}, ["needs schema_registry"]),
        (
            MINIMAL + "input: {schema_registry: 'http://r.org', schema_registry_login_file: f}\n",
            {},
            ["must begin with https://"],
        ),
        ("{}", {}, ["kafka: is needed"]),
        ("kafka: {bootstrap_servers: 'a:1'}", {}, ["kafka.input_topics: is needed (topics to"]),
        (MINIMAL.replace("localhost:9092", "localhost"), {}, ["'localhost' is not host:port"]),
        (MINIMAL + "  alert_topic: photometry\n", {}, ["must all differ"]),
        (
            MINIMAL.replace("photometry", "^site_.*") + "  alert_topic: site_alerts\n",
            {},
            ["'^site_.*' matches 'site_alerts'"],
        ),
        (
            MINIMAL.replace("photometry", "^.*letters$"),
            {},
            ["matches 'microlensing-dead-letters', which this program writes"],
        ),
        (MINIMAL.replace("photometry", "^(a"), {}, ["'^(a' is not a regular expression"]),
        (MINIMAL + "  options: {group.id: x}\n", {}, ["group.id cannot be set here"]),
        (MINIMAL + "  options: {sasl.password: hunter2-in-clear}\n", {}, ["sasl.password cannot"]),
        (MINIMAL + "  options: {enable_auto_commit: true}\n", {}, ["enable.auto.commit cannot"]),
        (MINIMAL, SASL, ["kafka.security", "protocol sasl_ssl also needs password"]),
        (MINIMAL, SASL | {f"{SECURITY}MECHANISM": "GSSAPI"}, ["mechanism = 'GSSAPI'", "OAUTHBEA"]),
        (MINIMAL, OAUTH, ["protocol sasl_ssl also needs client_secret"]),
        (
            MINIMAL,
            OAUTH | {f"{SECURITY}TOKEN_URL": "http://login.example/token"},
            ["kafka.security.token_url = 'http://login.example/token'", "must begin with https://"],
        ),
        (
            MINIMAL + "  security: {mechanism: PLAIN, username: a}\n",
            {PASSWORD: SECRET},
            ["protocol plaintext does not use mechanism, username, password: take"],
        ),
        (
            MINIMAL + "  security: {ca_location: ca.pem}\n",
            {},
            ["protocol plaintext does not use ca_location"],
        ),
        (
            MINIMAL + "  security: {protocol: ssl, key_location: key.pem}\n",
            {},
            ["certificate_location and key_location go together"],
        ),
        (MINIMAL + "  options: {https.ca.location: x}\n", {}, ["https.ca.location cannot"]),
        (MINIMAL + "log: {level: info}\nlog: {}\n", {}, [":5: log is given twice"]),
        (MINIMAL + "  security: {username: a}\n", {}, ["plaintext does not use username"]),
        (MINIMAL, SASL | {PASSWORD: "x", f"{SECURITY}SCOPE": "s"}, ["does not use scope"]),
        (
            MINIMAL + '  security: {password_file: "a\\0b"}\n',
            {},
            ["password_file: a\0b: cannot be read", "holds a NUL"],
        ),
        (
            MINIMAL + "  alert_schema_registry_login_file: f\n",
            {},
            ["alert_schema_registry_login_file needs alert_schema_registry"],
        ),
        (
            MINIMAL + "  max_poll_interval_ms: 44999\n",
            {},
            ["max_poll_interval_ms 44999 must not be less than session_timeout_ms 45000"],
        ),
        (
            MINIMAL + "  options: {a: null}\n",
            {},
            [":4: kafka.options.a: should be a valid string or"],
        ),
        (
            MINIMAL + "schedule: {min_points: 65}\nwindow: {max_points: 64}\n",
            {},
            ["config.yaml: schedule.min_points 65 must not be more than window.max_points 64"],
        ),
        (
            MINIMAL + "alert: {false_alarms_per_night: .inf, stars: 9}\n",
            {},
            [":4: alert.false_alarms_per_night = inf: should be a finite number"],
        ),
        (
            MINIMAL + f"alert: {{false_alarms_per_night: 1, stars: 1{'0' * 400}}}\n",
            {},
            ["alert.stars", "less than or equal to 1000000000000"],
        ),
        (MINIMAL + "alert: {rates: {flare: 1.0e+10}}\n", {}, ["flare", "equal to 1000000000"]),
        (
            MINIMAL + "alert:\n  noise:\n    usual: {error_scal: [1, 2]}\n",
            {},
            [":6: alert.noise.usual.error_scal: unknown key; did you mean alert.noise.usual.er"],
        ),
        (
            MINIMAL + "alert:\n  noise:\n    surveys:\n      ztf: {red_noise: 11}\n",
            {},
            [":7: alert.noise.surveys.ztf.red_noise = 11: should be less than or equal to 10"],
        ),
        (
            MINIMAL + "alert: {noise: {red_noise_days: [1]}}\n",
            {},
            ["noise.red_noise_days: needs two"],
        ),
        (MINIMAL + "alert: {noise: red}\n", {}, [":4: alert.noise: should be 'white'"]),
        (
            MINIMAL + "input: {packets: {roman_zero_points: {F146: 99}}}\n",
            {},
            [":4: input.packets.roman_zero_points.F146: should be less than or equal to 50"],
        ),
        (
            MINIMAL + "model: {surveys: {ZTF: a, ztf: b}}\n",
            {},
            [":4: model.surveys: 'ZTF' and 'ztf' are one survey"],
        ),
        (
            MINIMAL + "alert: {noise: {surveys: {roman: {}, Roman: {}}}}\n",
            {},
            [":4: alert.noise.surveys: 'roman' and 'Roman' are one survey"],
        ),
        (MINIMAL + f"model: {{surveys: {{{'z' * 65}: a}}}}\n", {}, ["at most 64 characters"]),
        (
            MINIMAL + "input: {topic_schemas: {photmetry: avsc}}\n",
            {},
            ["input.topic_schemas: 'photmetry' is none of kafka.input_topics: photometry"],
        ),
        (MINIMAL + "snapshot: {url: ''}\n", {}, ["snapshot.url = ''", "at least 1 character"]),
        (MINIMAL + "model: {path: ''}\n", {}, ["model.path = ''", "is no path"]),
        (MINIMAL, {"BROKER_FILTER_KAFAK__X": "1"}, ["BROKER_FILTER_KAFAK__X: kafak: unknown"]),
        (MINIMAL, {"BROKER_FILTER_ALERT__SEED__X": "1"}, ["ALERT__SEED__X: alert.seed: should be"]),
        ("", {}, ["config.yaml: kafka: is needed"]),
        ("kafka: [", {}, [":1: not YAML"]),
        ("- a\n", {}, ["not one list"]),
        ("[" * 100_000, {}, [":1: not YAML: nested more than 32 levels deep"]),
        ("a:\n" + "- " * 40 + "b\n", {}, [":2: not YAML: nested more than 32 levels deep"]),
        (MINIMAL + "log: {level: 2026-13-01}\n", {}, ["config.yaml: a value cannot be read"]),
        (MINIMAL + f"alert: {{seed: {'9' * 5000}}}\n", {}, ["config.yaml: a value cannot be"]),
        (MINIMAL + "alert: {seed: !!int ''}\n", {}, ["config.yaml: a value cannot be read"]),
        (MINIMAL + "alert: {seed: !!bool x}\n", {}, ["config.yaml: a value cannot be read"]),
        (MINIMAL + "alert: {seed: !!python/name:os.x}\n", {}, [":4: not YAML"]),
        (MINIMAL + "log: {[a]: b}\n", {}, [":4: not YAML"]),
        ("kafka: &a {x: *a}\n", {}, ["kafka.x: unknown key"]),
        ("kafka: &a {options: *a}\n", {}, ["kafka.options"]),
    ],
)
def test_each_problem_is_one_clear_line(tmp_path, text, environ, parts):
    message = problem(tmp_path, text, environ)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "pattern",
    [
        r"^ztf_\d{8}$",
        r"^ztf_\w+",
        r"^ztf_[^\d]",
        "^ztf_(?:a|b)$",
        "^ztf_.*?$",
        "^ztf_{x",
        "^[[:digit:]]",
    ],
)
def test_a_pattern_that_kafka_would_read_otherwise_is_refused(tmp_path, pattern):
    message = problem(tmp_path, MINIMAL.replace("photometry", f"'{pattern}'"))
    assert "is not the same to Python and to Kafka's client" in message


@pytest.mark.parametrize("pattern", ["^ztf_[0-9]{8}$", r"^a\.(b|c)-.*", "^a{2,}b{,3}[^x]+$"])
def test_a_pattern_of_posix_is_taken(tmp_path, pattern):
    text = MINIMAL.replace("photometry", f"'{pattern}'")
    assert load(tmp_path, text).kafka.patterns == (pattern,)


def test_a_repetition_without_bounds_is_no_expression(tmp_path):
    text = MINIMAL.replace("photometry", "'^a{99999999999999}'")
    assert "is not a regular expression: the repetition number" in problem(tmp_path, text)


def test_all_problems_come_at_once(tmp_path):
    lines = problem(tmp_path, MINIMAL + "metrics: {port: -1}\nlog: {lvl: x}\n").splitlines()
    assert len(lines) == 2


@pytest.mark.parametrize(
    "text",
    [
        MINIMAL + f"  security: {{password: {SECRET}}}\n",
        MINIMAL + f"  security: {{pasword: {SECRET}}}\n",
        MINIMAL + f"  security: {SECRET}\n",
        MINIMAL + f"  security: {{protocol: sasl_ssl, password: [{SECRET}]}}\n",
        MINIMAL + f"  security: {{client_secret: {SECRET}}}\n",
        MINIMAL + f"  security: {{key_password: {SECRET}}}\n",
        f"kafka: {SECRET}\n",
    ],
)
def test_errors_never_show_a_secret(tmp_path, text):
    assert "security" in problem(tmp_path, text) or "kafka" in problem(tmp_path, text)


# Each secret: its key, what is needed beside it, and the property of librdkafka that it becomes.
SECRETS = pytest.mark.parametrize(
    ("key", "environ", "where"),
    [
        ("password", SASL, "sasl.password"),
        ("client_secret", OAUTH, "sasl.oauthbearer.client.secret"),
        ("key_password", {f"{SECURITY}PROTOCOL": "ssl"}, "ssl.key.password"),
    ],
)


@SECRETS
def test_a_secret_in_the_file_is_refused_with_the_way_out(tmp_path, key, environ, where):  # noqa: ARG001
    message = problem(tmp_path, MINIMAL + f"  security: {{{key}: {SECRET}}}\n")
    assert f":4: kafka.security.{key} must not be" in message
    assert f"{SECURITY}{key.upper()} or kafka.security.{key}_file" in message


@SECRETS
def test_secrets_are_masked_everywhere(tmp_path, caplog, key, environ, where):
    settings = load(tmp_path, environ=environ | {f"{SECURITY}{key.upper()}": SECRET})
    logging.getLogger("broker_filter.test").warning("settings %s %r", settings, settings)
    shown = f"{settings}{settings!r}{masked(settings)}{settings.model_dump_json()}{caplog.text}"
    assert SECRET not in shown
    assert masked(settings)["kafka"]["security"][key] == "*" * 10
    assert client_config(settings.kafka)[where] == SECRET


@SECRETS
def test_a_secret_comes_from_a_file(tmp_path, key, environ, where):
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    text = MINIMAL + f"  security: {{{key}_file: {secret}}}\n"
    settings = load(tmp_path, text, environ)
    assert client_config(settings.kafka)[where] == SECRET
    assert SECRET not in str(masked(settings))
    given_twice = environ | {f"{SECURITY}{key.upper()}": SECRET}
    assert f"give {key} or {key}_file, not both" in problem(tmp_path, text, given_twice)
    secret.write_text("")
    assert f"{secret}: empty" in problem(tmp_path, text, environ)
    secret.write_bytes(b"\xe9t\xe9")
    assert f"{secret}: cannot be read: not UTF-8" in problem(tmp_path, text, environ)
    assert "0xe9" not in problem(tmp_path, text, environ)
    secret.unlink()
    assert f"{secret}: cannot be read" in problem(tmp_path, text, environ)


def librdkafka_properties() -> list[str]:
    """Names of all properties that the client's library knows, from the table that it prints."""
    library, c = ctypes.CDLL(confluent_kafka.cimpl.__file__), ctypes.CDLL(None)
    c.tmpfile.restype = ctypes.c_void_p
    file = ctypes.c_void_p(c.tmpfile())
    library.rd_kafka_conf_properties_show(file)
    c.rewind(file)
    buffer = ctypes.create_string_buffer(1 << 20)
    size = c.fread(buffer, 1, len(buffer), file)
    c.fclose(file)
    rows = buffer.raw[:size].decode().splitlines()
    return sorted({row.split("|")[0].strip() for row in rows if row.count("|") > 3})


SPEAK_OF_ONE = r"pass|secret|token|credential|\.key\b|\.pem$|assertion|kinit|oauthbearer\.config"
SECRET_PROPERTIES = [name for name in librdkafka_properties() if re.search(SPEAK_OF_ONE, name)]


def test_the_properties_that_hold_secrets_are_known():
    assert {
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.kerberos.kinit.cmd",
    } <= set(SECRET_PROPERTIES)


@pytest.mark.parametrize("name", SECRET_PROPERTIES)
def test_no_property_that_holds_a_secret_is_taken_or_shown(tmp_path, name):
    text = MINIMAL + f"  options: {{{name}: {SECRET}}}\n"
    assert f"{name.replace('_', '.')} cannot be set here" in problem(tmp_path, text)
    variable = f"BROKER_FILTER_KAFKA__OPTIONS__{name.replace('.', '_').upper()}"
    assert "cannot be set here" in problem(tmp_path, environ={variable: SECRET})


def test_certificates_are_checked_whatever_the_options_say(tmp_path):
    text = MINIMAL + "  options: {enable.ssl.certificate.verification: false}\n"
    assert "enable.ssl.certificate.verification cannot be set here" in problem(tmp_path, text)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"s3://KEY:{SECRET}@bucket/x", "s3://***@bucket/x"),
        (f"s3://KEY:{SECRET}/a@b/c@bucket/x", "s3://***@bucket/x"),
        (f"https://{SECRET}@host/x", "https://***@host/x"),
        (f"abfs://x/y?sig={SECRET}&v=2", "abfs://x/y?sig=***&v=***"),
        (f"https://host/x#token={SECRET}", "https://host/x#token=***"),
        ("s3://bucket/x", "s3://bucket/x"),
        ("/var/lib/broker filter", "/var/lib/broker filter"),
    ],
)
def test_secrets_in_urls_are_masked(tmp_path, url, shown):
    settings = load(tmp_path, MINIMAL + f"snapshot: {{url: '{url}'}}\n")
    assert masked(settings)["snapshot"]["url"] == shown
    assert settings.snapshot.url == url


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (MINIMAL.replace("localhost", f"me:{SECRET}@localhost"), "bootstrap_servers"),
        (MINIMAL.replace("localhost", f"http://me:{SECRET}@localhost"), "bootstrap_servers"),
        (MINIMAL + f"input: {{schema_registry: 'https://r?apikey={SECRET}'}}\n", "registry"),
        (MINIMAL + f"input: {{schema_registry: 'https://me:{SECRET}@r'}}\n", "registry"),
        (
            MINIMAL + f"  security: {{token_url: 'http://login.example?secret={SECRET}'}}\n",
            "token_url",
        ),
    ],
)
def test_problems_with_urls_show_no_secret(tmp_path, text, key):
    assert key in problem(tmp_path, text)


def test_nobody_else_reaches_metrics_and_health_by_default(tmp_path):
    assert load(tmp_path).metrics.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("topics", "given", "used"),
    [
        ("^nightly_.*", "auto", "range"),
        ("^nightly_.*", "range", "range"),
        ("photometry", "auto", "cooperative-sticky"),
        ("photometry", "roundrobin", "roundrobin"),
    ],
)
def test_topics_of_a_pattern_go_to_one_member(topics, given, used):
    kafka = Kafka(bootstrap_servers="h:1", input_topics=[topics], assignment_strategy=given)
    assert kafka.strategy == used


def test_the_schema_of_a_topic_that_a_pattern_matches_is_taken():
    kafka = {"bootstrap_servers": "h:1", "input_topics": ["^night_"]}
    settings = {"kafka": kafka, "input": {"topic_schemas": {"night_1": "avsc"}}}
    assert Settings.model_validate(settings).input.topic_schemas
    settings["input"] = {"topic_schemas": {"nihgt_1": "avsc"}}
    with pytest.raises(ValidationError, match=r"'nihgt_1' is none of kafka\.input_topics"):
        Settings.model_validate(settings)


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "roundrobin"])
def test_a_strategy_that_parts_topics_of_a_pattern_is_refused(strategy):
    with pytest.raises(ValidationError, match=rf"{strategy} may give.*\^n.*range or auto"):
        Kafka(bootstrap_servers="h:1", input_topics=["^n"], assignment_strategy=strategy)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load_settings(tmp_path / "nowhere.yaml", {})
