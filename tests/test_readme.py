"""The pages against the code: commands, examples, settings, links, tables and figures.

`tests.pages` makes the marked blocks; ``python -m tests.pages`` writes them anew.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import broker_filter
import broker_filter.cli
import broker_filter.client.publish
import model_zoo.cli
from broker_filter.client.subscribe import Subscription
from broker_filter.config import Settings, load_settings
from broker_filter.decode.decoder import Decoder
from broker_filter.kafka.embedded import EmbeddedBroker
from broker_filter.kafka.ranges import TopicRange, messages_of, offsets_of
from broker_filter.kafka.sink import open_sink
from broker_filter.schemas import load_schema, schema_header
from broker_filter.types import Message
from tests import pages
from tests.build import alert_sample
from tests.pages import (
    BENCH,
    BLOCKS,
    CODE,
    DEPLOY,
    PACKAGE,
    PAGES,
    PICTURE,
    README,
    ROOMS,
    ROOT,
    rendered,
)

EXAMPLE = ROOT / "deploy" / "config.example.yaml"
KAFKA = ROOT / "deploy" / "kafka" / "README.md"
ALL_PAGES = (*PAGES, KAFKA)
MOST_BYTES, MOST_PICTURE_BYTES = 10_000, 120_000
PARSERS = {"broker-filter": broker_filter.cli._parser, "model-zoo": model_zoo.cli._parser}


# Reading pages


def blocks(page: Path, language: str) -> list[str]:
    """Fenced code of one language, without its indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", page.read_text(), re.DOTALL | re.M)
    return [re.sub(rf"^{indent}", "", code, flags=re.M) for indent, code in found]


def words(*some: Path) -> list[str]:
    """All inline code of pages."""
    found = []
    for page in some or ALL_PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        found += re.findall(r"`([^`\n]+)`", prose)
    return found


def commands(program: str) -> list[str]:
    """Every call of a program in shell code, up to the next shell operator."""
    calls = []
    for page in ALL_PAGES:
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
    assert block[0] == BLOCKS[page][name](), "run: python -m tests.pages"


def test_writing_changes_nothing_but_the_blocks() -> None:
    stale = "a\n<!-- metrics -->\nold\n<!-- /metrics -->\nz"
    others = [name for name in BLOCKS[DEPLOY] if name != "metrics"]
    rest = "".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in others)
    text = rendered(DEPLOY, f"{rest}{stale}")
    assert text.endswith(f"a\n<!-- metrics -->\n{pages.metrics()}\n<!-- /metrics -->\nz")
    assert rendered(DEPLOY, text) == text


def test_readme_is_short() -> None:
    assert len(README.read_bytes()) <= MOST_BYTES


def test_picture_is_small_and_shown() -> None:
    assert PICTURE.read_bytes().startswith(b"\x89PNG")
    assert PICTURE.stat().st_size < MOST_PICTURE_BYTES
    assert f"]({PICTURE.relative_to(ROOT)})" in README.read_text()


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


def test_the_table_of_rooms_shows_every_room() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(ROOMS)


def test_the_map_of_the_code_shows_every_module() -> None:
    shown = set(re.findall(r"\]\(([a-z_/]+\.py)\)", CODE.read_text()))
    modules = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    assert {name for name in modules if not name.endswith("__init__.py")} <= shown


def test_files_and_modules_in_the_prose_exist() -> None:
    named = [word for word in words(CODE) if re.fullmatch(r"[a-z_]+/[a-z_/]*(\.py)?", word)]
    assert len(named) > len(ROOMS)
    known = [(PACKAGE / name, PACKAGE / f"{name}.py", ROOT / name) for name in named]
    assert [str(paths[0]) for paths in known if not any(path.exists() for path in paths)] == []


def test_python_modules_to_run_exist() -> None:
    shell = [line for page in ALL_PAGES for code in blocks(page, "sh") for line in code.split("\n")]
    called = re.findall(r"python3? -m ([a-z_.]+)", "\n".join([*shell, *words()]))
    assert {"tests.pages", "tests.bench.bench_replay"} <= set(called)
    assert [name for name in called if importlib.util.find_spec(name) is None] == []


def test_tests_of_the_cases_exist() -> None:
    for case in json.loads(pages.CASES.read_text()):
        for test in case["tests"]:
            path, _, name = test.rpartition("::")
            assert f"def {name}(" in (ROOT / "tests" / path).read_text(), test


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    inline = [word.split()[1] for word in words() if word.startswith("make ")]
    named = {call.split()[1] for call in commands("make")} | set(inline)
    assert {"demo", "test"} <= named <= targets


def test_options_in_the_prose_exist() -> None:
    known = {
        option
        for program in PARSERS.values()
        for parser in subparsers(program()).values()
        for option in parser._option_string_actions
    }
    named = {word.split()[0] for word in words() if word.startswith("--")}
    assert named <= known


def test_settings_in_the_prose_exist() -> None:
    sections = "|".join(Settings.model_fields)
    dotted = [word for word in words() if re.fullmatch(rf"({sections})\.[a-z0-9_.]+\b.*", word)]
    named = [word.partition(":")[0] for word in dotted if not word.endswith(".py")]
    assert named
    assert [name for name in named if not setting(name.split("."))] == []


def test_environment_variables_lead_to_settings() -> None:
    text = "".join(page.read_text() for page in (*ALL_PAGES, EXAMPLE))
    names = re.findall(r"BROKER_FILTER_([A-Z0-9_]*__[A-Z0-9_]+)", text)
    assert names
    assert [name for name in names if not setting(name.lower().split("__"))] == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.parent.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if not path.startswith("http"):
            other = (page.parent / path).resolve() if path else page
            assert other.exists(), target
            assert not anchor or anchor in anchors(other), target


def test_yaml_of_the_pages_are_settings(tmp_path: Path) -> None:
    found = [code for page in PAGES if page != DEPLOY for code in blocks(page, "yaml")]
    assert found
    for i, code in enumerate(found):
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
        self.messages = [Message("microlensing-alerts", 0, 0, b"1", alert_sample())]

    def poll(self, timeout: float) -> Message | None:  # noqa: ARG002
        return self.messages.pop() if self.messages else None

    def mark_done(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_python_examples_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = inspect.signature(broker_filter.subscribe)

    def subscribe(*args: Any, **kwargs: Any) -> Subscription:
        wanted = signature.bind(*args, **kwargs).arguments
        return Subscription(OneAlert(), wanted["min_log10_k"], wanted["states"], timeout_s=0.01)

    monkeypatch.setattr(broker_filter, "subscribe", subscribe)
    with EmbeddedBroker({"photometry": 1}) as broker:
        monkeypatch.setattr(
            broker_filter.client.publish,
            "open_sink",
            lambda _, topic, config: open_sink(broker.bootstrap_servers, topic, config),
        )
        for page in PAGES:
            for code in blocks(page, "python"):
                exec(compile(code, str(page), "exec"), {})  # noqa: S102  our own page
        everything = TopicRange(broker.bootstrap_servers, "photometry")
        sent = [m for part in offsets_of(everything) for m in messages_of(part)]
    printed = capsys.readouterr().out
    assert "log10 K = " in printed
    assert "P(tE < 1 d)" in printed
    (shown,) = blocks(BENCH, "text")
    said = next(line for line in printed.splitlines() if line.startswith("star: "))
    number = r"\d[\d.e+]*"
    assert re.sub(number, "#", said) == re.sub(number, "#", shown.strip())
    figures = [[float(text) for text in re.findall(number, line)] for line in (said, shown)]
    assert figures[0] == pytest.approx(figures[1], rel=0.03)
    assert {message.headers for message in sent} == {(schema_header("photometry"),)}
    stars = [Decoder().decode(message).photometry[0].star for message in sent]
    assert stars == [[101], [102], [103]]


def test_fields_have_docs_in_the_tables() -> None:
    parsed, table = load_schema("alert"), pages.fields_table("alert")
    assert all(f"`{field['name']}`" in table for field in parsed["fields"])
    assert "`posterior.summary.p2_5`" in table
