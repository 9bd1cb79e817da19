"""A tree of settings from a YAML file, variables and files of secrets, and what is wrong with it.

Every problem is one line: where it stands, the key, its value (never a secret), what is allowed,
and the nearest key where one is misspelt.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from broker_filter.errors import ConfigError

__all__ = [
    "Keys",
    "problem_line",
    "put",
    "read_secrets",
    "read_yaml",
    "variables",
    "written_secrets",
]

PREFIX = "BROKER_FILTER_"
MAX_FILE_BYTES = 1 << 20
# Keys of kafka.security that come from the environment, or from the file that <key>_file names.
SECRETS = ("password", "client_secret", "key_password")

Keys = tuple[str, ...]


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[Keys, str]]:
    """Return the tree of a YAML file, and "file:line" of each of its keys."""
    try:
        data = path.read_bytes()
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: longer than {MAX_FILE_BYTES} bytes; is it a settings file?")
        text = data.decode()
        places = dict(_places(yaml.compose(text, yaml.SafeLoader), path))
        tree = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None
    if not isinstance(tree, dict | None):
        raise ConfigError(f"{path}: needs sections such as 'kafka:', not one {_kind(tree)}")
    return tree or {}, places


def _places(node: yaml.Node | None, path: Path, keys: Keys = ()) -> Iterator[tuple[Keys, str]]:
    if not isinstance(node, yaml.MappingNode) or len(keys) > 4:  # an alias may be a circle
        return
    seen: set[str] = set()
    for key, value in node.value:
        place = f"{path}:{key.start_mark.line + 1}"
        inner = (*keys, str(key.value))
        if inner[-1] in seen:
            raise ConfigError(f"{place}: {'.'.join(inner)} is given twice")
        seen.add(inner[-1])
        yield inner, place
        yield from _places(value, path, inner)


def variables(environ: Mapping[str, str]) -> Iterator[tuple[str, Keys, str]]:
    """(name, keys, value) of the variables that are ours and not empty."""
    for name, value in sorted(environ.items()):
        keys = tuple(name.removeprefix(PREFIX).lower().split("__"))
        if name.startswith(PREFIX) and len(keys) > 1 and value:
            yield name, keys, value


def put(tree: Any, keys: Keys, value: str) -> bool:  # noqa: ANN401
    """Set a nested key; False where something that is not a section is in the way."""
    for key in keys[:-1]:
        if tree.get(key) is None:
            tree[key] = {}
        tree = tree[key]
        if not isinstance(tree, dict):
            return False
    tree[keys[-1]] = value
    return True


def _dig(tree: object, keys: Keys) -> Any:  # noqa: ANN401  a YAML value can be anything
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def written_secrets(tree: object, places: Mapping[Keys, str]) -> list[str]:
    """Return a problem for each secret that stands in the file itself."""
    return [
        f"{places[keys]}: {'.'.join(keys)} must not be written in a file of settings: use"
        f" {PREFIX}{'__'.join(keys).upper()} or {'.'.join(keys)}_file"
        for keys in (("kafka", "security", name) for name in SECRETS)
        if _dig(tree, keys) is not None
    ]


def read_secrets(tree: dict[str, Any]) -> list[str]:
    """Put the content of the files of secrets in its place; return the problems."""
    problems = (_read_secret(tree, ("kafka", "security", name)) for name in SECRETS)
    return [problem for problem in problems if problem]


def _read_secret(tree: dict[str, Any], keys: Keys) -> str:
    key = ".".join(keys)
    name = _dig(tree, (*keys[:-1], f"{keys[-1]}_file"))
    if not isinstance(name, str):
        return ""
    if _dig(tree, keys) is not None:
        return f"kafka.security: give {keys[-1]} or {keys[-1]}_file, not both"
    try:
        secret = Path(name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        return f"{key}_file: {name}: cannot be read: {getattr(error, 'strerror', 0) or 'not UTF-8'}"
    if not secret:
        return f"{key}_file: {name}: empty"
    put(tree, keys, secret)
    return ""


def problem_line(
    model: type[BaseModel],
    item: Mapping[str, Any],
    places: Mapping[Keys, str],
    tree: object,
) -> str:
    """What pydantic found wrong in one place of ``tree``, which is no ``model``."""
    keys = tuple(map(str, item["loc"]))
    known, field = _resolve(model, keys)
    place = next((places[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in places), "")
    start = f"{place}: {'.'.join(keys[:known])}" if place else ".".join(keys[:known])
    if item["type"] == "extra_forbidden":
        return f"{start}: unknown key; {_suggestion(model, keys[:known])}"
    message = str(item["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    if item["type"] == "missing":
        return f"{start}: is needed ({field.description if field else ''})"
    value = _dig(tree, keys[:known])
    # A wrong value in the place of a section may hold a secret, and so may a password's.
    plain = isinstance(value, str | int | float) and field is not None
    shown = f" = {_short(value)}" if plain and field and not _holds_secret(field.annotation) else ""
    hint = f" ({field.description})" if shown and field else ""
    return f"{start}{shown}: {message}{hint}"


def _resolve(tree_model: type[BaseModel], keys: Keys) -> tuple[int, Any]:
    """How many of the keys lie on the tree of settings, and the field of the last."""
    model: Any = tree_model
    field = None
    for n, key in enumerate(keys):
        fields = getattr(model, "model_fields", None)
        if fields is None:
            return n, field
        if key not in fields:
            return n + 1, None
        field = fields[key]
        model = field.annotation
    return len(keys), field


def _suggestion(tree_model: type[BaseModel], keys: Keys) -> str:
    model: Any = tree_model
    for key in keys[:-1]:
        model = model.model_fields[key].annotation
    names = list(model.model_fields)
    near = difflib.get_close_matches(keys[-1], names, n=1)
    if near:
        return f"did you mean {'.'.join((*keys[:-1], near[0]))}?"
    return f"allowed are {', '.join(names)}"


def _holds_secret(annotation: Any) -> bool:  # noqa: ANN401  annotations have no common type
    return "SecretStr" in str(annotation) or isinstance(annotation, type(BaseModel))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _kind(value: object) -> str:
    names: dict[type, str] = {list: "list", str: "text"}
    return names.get(type(value), type(value).__name__)
