"""A tree of settings from a YAML file, variables and files of secrets, and what is wrong with it.

Every problem is one line: where it stands, the key, its value (never a secret), what is allowed,
and the nearest key where one is misspelt.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from broker_filter.errors import ConfigError

__all__ = [
    "Keys",
    "hidden",
    "load_file",
    "problem_lines",
    "put",
    "read_secrets",
    "read_yaml",
    "unknown_variables",
    "variables",
    "written_secrets",
]

PREFIX = "BROKER_FILTER_"
MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 32  # levels of a YAML file; settings need four
# Keys of kafka.security that come from the environment, or from the file that <key>_file names.
SECRETS = ("password", "client_secret", "key_password")

_URL = re.compile(r"\w+://\S+")
_LOGIN = re.compile(r"(?<=://)\S*@|[^\s'\":/@,]+:[^\s'\":/@,]+@")
_ANSWERS = re.compile(r"([?&;#][^=&;#\s]+=)[^&;#\s'\"]+")
# What Kubernetes sets for a service of our name.
_OF_KUBERNETES = re.compile(PREFIX + r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)")

Keys = tuple[str, ...]
Model = TypeVar("Model", bound=BaseModel)


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[Keys, str]]:
    """Return the tree of a YAML file, and "file:line" of each of its keys."""
    try:
        data = path.read_bytes()
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: longer than {MAX_FILE_BYTES} bytes; is it a settings file?")
        loader = _Loader(data.decode())
        node = loader.get_single_node()
        places = dict(_places(node, path))
        tree = None if node is None else loader.construct_document(node)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Raised by PyYAML for a value that is not what its form or tag says, such as 2026-13-01.
        raise ConfigError(f"{path}: a value cannot be read: {error}") from None
    if not isinstance(tree, dict | None):
        raise ConfigError(f"{path}: needs sections such as 'kafka:', not one {_kind(tree)}")
    return tree or {}, places


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which by itself recurses once a level without any limit."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Build a node and all below it; a file nested too deeply is refused with its line."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            problem = f"nested more than {MAX_DEPTH} levels deep"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


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


def load_file(path: Path, model: type[Model]) -> Model:
    """Read a YAML file as one of our models.

    Parameters
    ----------
    path : Path
    model : subclass of pydantic.BaseModel

    Raises
    ------
    ConfigError
        With one line per problem: file and line, key, value and what is allowed.
    """
    tree, places = read_yaml(path)
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        lines = problem_lines(model, error, {(): str(path), **places}, tree)
    # Outside of "except", since pydantic's error holds the values, which may be secret.
    raise ConfigError("\n".join(lines))


def variables(environ: Mapping[str, str]) -> Iterator[tuple[str, Keys, str]]:
    """(name, keys, value) of the variables that are ours and not empty."""
    for name, value in sorted(environ.items()):
        keys = tuple(name.removeprefix(PREFIX).lower().split("__"))
        if name.startswith(PREFIX) and len(keys) > 1 and value:
            yield name, keys, value


def unknown_variables(model: type[BaseModel], environ: Mapping[str, str]) -> list[str]:
    """A line for each variable that has our prefix, but names no section and is not read."""
    known = [f"{PREFIX}{'__'.join(keys).upper()}" for keys in _leaves(model)]
    read = {name for name, _, _ in variables(environ)}
    lines = []
    for name in sorted(set(environ) - read):
        if name.upper().startswith(PREFIX) and environ[name] and not _OF_KUBERNETES.fullmatch(name):
            near = difflib.get_close_matches(name.upper(), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"settings are {PREFIX}SECTION__KEY"
            lines.append(f"{name} is not read: {hint}")
    return lines


def _leaves(model: type[BaseModel], keys: Keys = ()) -> Iterator[Keys]:
    """Keys of all settings that are no sections."""
    for name, field in model.model_fields.items():
        section = _section(field.annotation)
        if section is None or get_origin(field.annotation) is dict:
            yield (*keys, name)
        else:
            yield from _leaves(section, (*keys, name))


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
    except UnicodeDecodeError:  # it quotes what it could not read
        return f"{key}_file: {name}: cannot be read: not UTF-8"
    except (OSError, ValueError) as error:
        return f"{key}_file: {name}: cannot be read: {getattr(error, 'strerror', 0) or error}"
    if not secret:
        return f"{key}_file: {name}: empty"
    put(tree, keys, secret)
    return ""


def problem_lines(
    model: type[BaseModel],
    error: ValidationError,
    places: Mapping[Keys, str],
    tree: object,
) -> list[str]:
    """One line for each thing that pydantic found wrong in ``tree``, which is no ``model``.

    ``places`` gives "file:line" of keys; that of ``()`` stands for all keys without one.
    """
    found: dict[tuple[Keys, str], list[str]] = {}
    for item in error.errors(include_url=False):
        lacking = item["type"] == "missing"
        keys = _written(tuple(map(str, item["loc"])), tree, lacking=lacking)
        kind = item["type"] if lacking or item["type"] == "extra_forbidden" else ""
        message = str(item["msg"]).removeprefix("Value error, ").removeprefix("Input ")
        found.setdefault((keys, kind), []).append(hidden(message))
    return [
        # A value of several types has a message for each of them.
        _problem_line(model, keys, kind, " or ".join(dict.fromkeys(messages)), places, tree)
        for (keys, kind), messages in found.items()
    ]


def _written(keys: Keys, tree: object, *, lacking: bool) -> Keys:
    """Those of pydantic's keys that are in the tree: between them it names types and tags."""
    written: Keys = ()
    for key in keys[:-1] if lacking else keys:
        if isinstance(tree, dict) and key in (names := {str(name): name for name in tree}):
            written, tree = (*written, key), tree[names[key]]
    return (*written, *keys[-1:]) if lacking else written


def _problem_line(
    model: type[BaseModel],
    keys: Keys,
    kind: str,
    message: str,
    places: Mapping[Keys, str],
    tree: object,
) -> str:
    section, field = _resolve(model, keys)
    place = next((places[keys[:n]] for n in range(len(keys), -1, -1) if keys[:n] in places), "")
    start = ": ".join(part for part in (place, ".".join(keys)) if part)
    if kind == "extra_forbidden":
        return f"{start}: unknown key; {_suggestion(section, keys)}"
    if kind == "missing":
        return f"{start}: is needed ({field.description if field else ''})"
    value = _dig(tree, keys)
    # A wrong value in the place of a section may hold a secret, and so may a password's.
    plain = isinstance(value, str | int | float) and field is not None
    shown = f" = {_short(value)}" if plain and field and not _holds_secret(field.annotation) else ""
    hint = f" ({field.description})" if shown and field and field.description else ""
    return f"{start}{shown}: {message}{hint}"


def _resolve(model: type[BaseModel], keys: Keys) -> tuple[type[BaseModel] | None, Any]:
    """The section in which the last key stands, and its field; None where there is none."""
    inner: type[BaseModel] | None = model
    section, field, entries = None, None, False
    for key in keys:
        if entries:  # the name of an entry; what it holds is inner already
            section, field, entries = None, None, False
            continue
        section = inner
        field = section.model_fields.get(key) if section else None
        inner = _section(field.annotation) if field else None
        entries = field is not None and get_origin(field.annotation) is dict
    return section, field


def _section(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401
    """The model that a field holds, itself or one of several; None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section, get_args(annotation))), None)


def _suggestion(section: type[BaseModel] | None, keys: Keys) -> str:
    names = list(section.model_fields) if section else []
    near = difflib.get_close_matches(keys[-1], names, n=1)
    if near:
        return f"did you mean {'.'.join((*keys[:-1], near[0]))}?"
    return f"allowed are {', '.join(names)}"


def _holds_secret(annotation: Any) -> bool:  # noqa: ANN401  annotations have no common type
    return "SecretStr" in str(annotation) or _section(annotation) is not None


def hidden(text: str) -> str:
    """Put ``***`` where a URL or address may hold a secret: its user and password, its query."""
    text = _LOGIN.sub("***@", text)
    return _URL.sub(lambda url: _ANSWERS.sub(r"\1***", url[0]), text)


def _short(value: object) -> str:
    text = hidden(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _kind(value: object) -> str:
    names: dict[type, str] = {list: "list", str: "text"}
    return names.get(type(value), type(value).__name__)
