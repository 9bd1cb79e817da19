"""The READMEs against the code: commands, examples, settings, links, tables and figures.

``python tests/test_readme.py --write`` renders the marked blocks of the pages anew, from the model
card, the schemas, the metrics and (where they are there) the figures of benchmark and demo.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import broker_filter
import broker_filter.cli
import broker_filter.kafka.sink
import model_zoo.cli
from broker_filter.client.subscribe import Subscription
from broker_filter.config import Model, Settings, load_settings
from broker_filter.decode.decoder import Decoder
from broker_filter.kafka.sink import MemorySink
from broker_filter.observe.table import METRICS, markdown_table
from broker_filter.schemas import current_version, load_schema, schema_folder, schema_header
from broker_filter.types import Message

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DEPLOY = ROOT / "deploy" / "README.md"
PAGES = (README, DEPLOY)
EXAMPLE = ROOT / "deploy" / "config.example.yaml"
CARD = ROOT / "model_zoo" / "weights" / Model().id / "card.json"
BENCH = ROOT / "tests" / "bench" / "results.json"
DEMO = ROOT / "tests" / "demo_summary.json"
CHAOS = ROOT / "tests" / "chaos" / "results.json"
SERVICE = ROOT / "tests" / "bench" / "service.json"
PARSERS = {"broker-filter": broker_filter.cli._parser, "model-zoo": model_zoo.cli._parser}


# What the marked blocks hold


def figures() -> str:
    """Measured figures: the default model's card, the benchmark, the demo."""
    parts = [_card(json.loads(CARD.read_text()))]
    for path, title in ((BENCH, "Speed (`make bench`)"), (DEMO, "Demo (`make demo`)")):
        if path.is_file():
            rows = _leaves(json.loads(path.read_text()))
            parts.append(f"{title}:\n\n{_table(('what', 'figure'), rows)}")
    return "\n\n".join(parts)


def _card(card: Mapping[str, Any]) -> str:
    training, measured = card["training"], card["evaluation"]
    head = (
        f"`{card['model_id']}`, trained on {training['curves']:,} simulated curves in"
        f" {training['minutes']:g} minutes ({training['machine']}). Tested on"
        f" {measured['n_events']:,} events and {measured['n_noise']:,} noise curves"
        f" ({measured['test_set']})."
    )
    tables = [
        _table(("detection", "figure"), _detection(card)),
        _table(("k", "noise curves with K >= k", "bound 1/k"), _tail(measured)),
        _posteriors(measured),
    ]
    limits = "\n".join(f"- {limit}" for limit in card["limits"])
    return "\n\n".join([head, *tables, f"Limits, as the card states them:\n\n{limits}"])


def _detection(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    measured = card["evaluation"]
    yield (
        "events found at the threshold with no false alarm in 5,000 other noise curves",
        (
            f"{measured['tpr_zero_fp']:.2%} (rho >= 5: {measured['tpr_rho_ge_5']:.2%}),"
            f" with {measured['fp_noise']} false alarms"
        ),
    )
    yield "events found at log10 K > 0.8, the paper's threshold", f"{measured['tpr_at_0_8']:.2%}"
    if "tpr_certified_6_6" in measured:
        yield (
            f"events found at certified log10 K >= 6.6, of {measured['n_certified']:,}",
            f"{measured['tpr_certified_6_6']:.2%}",
        )
    yield "alert threshold (gate)", f"log10 K {card['gate']['log10_k']:g}: {card['gate']['from']}"
    yield "mean K of the noise curves (at most 1 is right)", f"{measured['mean_k_noise']:.3g}"
    if "npe_10k_ms" in measured:
        yield "time for 10,000 posterior samples", f"{measured['npe_10k_ms']:,} ms"


def _tail(measured: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    n = measured["n_tail"]
    for row in measured["k_tail"]:
        share = f"{row['observed']:.2g}" if row["observed"] else f"0 (below {3 / n:.2g} at 95 %)"
        yield f"{row['k']:,.4g}", share, f"{row['bound']:g}"


def _posteriors(measured: Mapping[str, Any]) -> str:
    columns = {
        "bias": "bias",
        "RMSE": "rmse",
        "median error": "median_abs_error",
        "r": "r",
        "in 68 %": "coverage68",
        "in 95 %": "coverage95",
    }
    rows = (
        (name, *(f"{measured[key][name]:.3f}" for key in columns.values()))
        for name in measured["rmse"]
    )
    title = f"posterior medians of {measured['n_posterior']:,} events"
    return _table((title, *columns), rows)


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Numbers and words of nested JSON, with the way to each; rows may be named."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, f"{path}, {key}" if path else str(key))
    elif isinstance(tree, list):
        for i, value in enumerate(tree):
            rest = dict(value) if isinstance(value, Mapping) else value
            name = rest.pop("name", i) if isinstance(rest, dict) else i
            yield from _leaves(rest, f"{path}, {name}" if path else str(name))
    else:
        yield path, _number(tree) if isinstance(tree, int | float) else str(tree)


def _number(value: float) -> str:
    if isinstance(value, bool):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def faults() -> str:
    """What was lost or doubled under each fault."""
    runs = json.loads(CHAOS.read_text())
    rows = (
        (row["fault"], f"{row['runs']}", f"{row['lost']}", f"{row['doubled']}", row["note"])
        for row in runs["rows"]
    )
    table = _table(("fault", "runs", "lost", "doubled", "what happened"), rows)
    codes = ", ".join(sorted({row["code"] for row in runs["rows"]}))
    return f"{table}\n\n`make chaos` at {codes}, {runs['date'][:10]}, {runs['machine']}."


def service() -> str:
    """Figures of the whole service on a real Kafka."""
    parts = json.loads(SERVICE.read_text()).values()
    rows = ((case, _number(value)) for part in parts for case, value in part["figures"].items())
    dates = ", ".join(sorted({part["date"][:10] for part in parts}))
    machines = ", ".join(sorted({part["machine"]["processor"] for part in parts}))
    return (
        f"{_table(('what', 'figure'), rows)}\n\n"
        f"`python -m tests.bench.bench_service`, {dates}, {machines}, 2 cores."
    )


def fields_table(schema: str) -> str:
    """One row a field of a schema, nested ones with dots."""
    return _table(("field", "type", "meaning"), _fields(json_schema(schema)["fields"]))


def json_schema(name: str) -> dict[str, Any]:
    path = schema_folder() / name / current_version(name) / f"{name}.avsc"
    schema: dict[str, Any] = json.loads(path.read_text())
    return schema


def _fields(fields: list[dict[str, Any]], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    for field in fields:
        doc = field["doc"].replace("|", "\\|").replace("<", "&lt;")
        yield f"`{prefix}{field['name']}`", _kind(field["type"]), doc
        kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
        for kind in kinds:
            inner = kind.get("items", kind) if isinstance(kind, dict) else {}
            if isinstance(inner, dict) and inner.get("type") == "record":
                yield from _fields(inner["fields"], f"{prefix}{field['name']}.")


def _kind(kind: Any) -> str:
    if isinstance(kind, list):
        return " or ".join(map(_kind, kind))
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"list of {_kind(kind['items'])}"
    return " \\| ".join(kind["symbols"]) if kind["type"] == "enum" else str(kind["name"])


def unfed() -> str:
    """Metrics that nothing in the package sets yet."""
    modules = (ROOT / "broker_filter").glob("*.py")
    sources = "".join(path.read_text() for path in modules if path.name != "metrics_table.py")
    names = [f"`{metric.name}`" for metric in METRICS if f'"{metric.name}"' not in sources]
    return f"Not measured yet, so without a value or at zero: {', '.join(names) or 'none'}."


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


BLOCKS: Mapping[Path, Mapping[str, Callable[[], str]]] = {
    README: {
        "figures": figures,
        "metrics": markdown_table,
        "unfed": unfed,
        **{
            name: lambda name=name: fields_table(name)
            for name in ("photometry", "photometry_block", "alert", "dead_letter")
        },
    },
    DEPLOY: {"faults": faults, "service": service},
}


def rendered(page: Path, text: str) -> str:
    """The page with every marked block made anew."""
    for name, render in BLOCKS[page].items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{page} lacks the lines {begin.strip()} and {end}")
        text = f"{before}{begin}{render()}\n{end}{after}"
    return text


# Reading pages


def blocks(page: Path, language: str) -> list[str]:
    """Fenced code of one language, without its indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", page.read_text(), re.DOTALL | re.M)
    return [re.sub(rf"^{indent}", "", code, flags=re.M) for indent, code in found]


def words() -> list[tuple[str, str]]:
    """(page, word) of all inline code."""
    pairs = []
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        pairs += [(page.parent.name, word) for word in re.findall(r"`([^`\n]+)`", prose)]
    return pairs


def commands(program: str) -> list[str]:
    """Every call of a program in shell code, up to the next shell operator."""
    calls = []
    for page in PAGES:
        for code in blocks(page, "sh"):
            text = code.replace("\\\n", " ")
            calls += re.findall(rf"(?:^|until )({program} [^|>;&#\n]*)", text, re.M)
    return [re.sub(r"\s\d$", "", call.strip()) for call in calls]


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def setting(keys: list[str]) -> bool:
    """Whether the keys lead to a setting."""
    model: Any = Settings
    for key in keys:
        if key not in getattr(model, "model_fields", {}):
            return False
        model = model.model_fields[key].annotation
    return True


# Tests


@pytest.mark.parametrize(
    ("page", "name"), [(page, name) for page, blocks in BLOCKS.items() for name in blocks]
)
def test_block_says_what_code_and_figures_say(page: Path, name: str) -> None:
    block = page.read_text().partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- /{name} -->")
    assert block[0] == BLOCKS[page][name](), "run: python tests/test_readme.py --write"


def test_writing_changes_nothing_but_the_blocks() -> None:
    stale = "a\n<!-- metrics -->\nold\n<!-- /metrics -->\nz"
    others = [name for name in BLOCKS[README] if name != "metrics"]
    rest = "".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in others)
    text = rendered(README, f"{rest}{stale}")
    assert text.endswith(f"a\n<!-- metrics -->\n{markdown_table()}\n<!-- /metrics -->\nz")
    assert rendered(README, text) == text


@pytest.mark.parametrize("call", [*commands("broker-filter"), *commands("model-zoo")])
def test_command_is_understood(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *arguments = shlex.split(call)
    try:
        PARSERS[program]().parse_args(arguments)
    except SystemExit:
        pytest.fail(f"{call}: {capsys.readouterr().err}")


def test_readme_shows_every_command() -> None:
    shown = {tuple(call.split()[:2]) for program in PARSERS for call in commands(program)}
    assert shown == {
        (program, name) for program, parser in PARSERS.items() for name in subparsers(parser())
    }


def test_the_map_of_the_code_shows_every_module() -> None:
    drawn = README.read_text().split("## The code")[1].split("```")[1]
    modules = {path.stem for path in (ROOT / "broker_filter").iterdir() if path.suffix == ".py"}
    folders = {f"{path.parent.name}/" for path in (ROOT / "broker_filter").glob("*/__init__.py")}
    shown = set(re.findall(r"[a-z_]+/?", drawn))
    assert (modules | folders) - {"__init__"} <= shown


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    inline = [word.split()[1] for _, word in words() if word.startswith("make ")]
    named = {call.split()[1] for call in commands("make")} | set(inline)
    assert {"demo", "test"} <= named <= targets


def test_options_in_the_prose_exist() -> None:
    known = {
        option
        for program in PARSERS.values()
        for parser in subparsers(program()).values()
        for option in parser._option_string_actions
    }
    named = {word.split()[0] for _, word in words() if word.startswith("--")}
    assert named <= known


def test_settings_in_the_prose_exist() -> None:
    sections = "|".join(Settings.model_fields)
    dotted = [word for _, word in words() if re.fullmatch(rf"({sections})\.[a-z0-9_.]+\b.*", word)]
    named = [word.partition(":")[0] for word in dotted if not word.endswith(".py")]
    assert named
    assert [name for name in named if not setting(name.split("."))] == []


def test_environment_variables_lead_to_settings() -> None:
    text = "".join(page.read_text() for page in (*PAGES, EXAMPLE))
    names = re.findall(r"BROKER_FILTER_([A-Z0-9_]*__[A-Z0-9_]+)", text)
    assert names
    assert [name for name in names if not setting(name.lower().split("__"))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if not path.startswith("http"):
            other = (page.parent / path).resolve() if path else page
            assert other.exists(), target
            assert not anchor or anchor in anchors(other), target


def test_yaml_of_the_readme_are_settings(tmp_path: Path) -> None:
    for i, code in enumerate(blocks(README, "yaml")):
        path = tmp_path / f"{i}.yaml"
        path.write_text(code)
        assert load_settings(path, {}).kafka.input_topics == ("photometry",)


def test_example_loads_and_every_key_has_a_comment() -> None:
    assert load_settings(EXAMPLE, {}).kafka.group_id == "broker-filter"
    lines = EXAMPLE.read_text().splitlines()
    keys = [line for line in lines if re.match(r" *[a-z0-9_]+:", line)]
    assert len(keys) == len(list(_keys(yaml.safe_load(EXAMPLE.read_text()))))
    assert [line for line in keys if " # " not in line] == []


def _keys(tree: object) -> Iterator[str]:
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield key
        yield from _keys(value)


class OneAlert:
    """A reader that has the schema's sample alert, and then nothing."""

    def __init__(self) -> None:
        value = (schema_folder() / "alert/1/1/sample.avro").read_bytes()
        self.messages = [Message("microlensing-alerts", 0, 0, b"1", value)]

    def poll(self, timeout: float) -> Message | None:  # noqa: ARG002
        return self.messages.pop() if self.messages else None

    def mark_done(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_python_examples_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = inspect.signature(broker_filter.client.subscribe)
    sink = MemorySink()

    def subscribe(*args: Any, **kwargs: Any) -> Subscription:
        wanted = signature.bind(*args, **kwargs).arguments
        return Subscription(OneAlert(), wanted["min_log10_k"], wanted["states"], timeout_s=0.01)

    monkeypatch.setattr(broker_filter, "subscribe", subscribe)
    monkeypatch.setattr(broker_filter.kafka.sink, "KafkaSink", lambda _: sink)
    for code in blocks(README, "python"):
        exec(compile(code, str(README), "exec"), {})  # noqa: S102  our own page
    printed = capsys.readouterr().out
    assert "log10 K = " in printed
    assert "P(tE < 1 d)" in printed
    (sent,) = sink.messages
    assert sent.headers == (schema_header("photometry_block"),)
    received = Message(sent.topic, 0, 0, sent.key, sent.value, headers=sent.headers)
    assert Decoder().decode(received).photometry[0].star == [101, 102, 103]


def test_fields_have_docs_in_the_tables() -> None:
    parsed = load_schema("alert")
    assert all(f"`{field['name']}`" in fields_table("alert") for field in parsed["fields"])
    assert "`posterior.summary.p2_5`" in fields_table("alert")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_readme.py --write")
    for page in PAGES:
        page.write_text(rendered(page, page.read_text()))
        sys.stdout.write(f"{page} is fresh\n")
