"""What a schema must be before anything is made of it: valid, and of a bounded size.

A schema comes with a message, so that whoever writes to a topic decides what it says. Nothing that
does not matter to its bytes (documentation, defaults, aliases) is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from broker_filter.errors import SchemaError

__all__ = ["MAX_BRANCHES", "MAX_DEPTH", "MAX_FIELDS", "MAX_NAME", "MAX_TYPES", "checked"]

MAX_FIELDS: Final = 5000
"""Most fields of all records together; LSST's packets have 302."""

MAX_TYPES: Final = 20_000
"""Most types, those of fields, of branches, and of items counted each time; LSST's have 1100."""

MAX_DEPTH: Final = 64
"""Most types within each other; LSST's have 8."""

MAX_BRANCHES: Final = 64
"""Most types of a union."""

MAX_NAME: Final = 255
"""Most characters of a name."""

_NAMED: Final = ("record", "enum", "fixed")
_LOGICAL: Final = ("logicalType", "precision", "scale")
_PRIMITIVE: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)


def checked(document: object) -> Any:  # noqa: ANN401  a schema is a str, a list or a dict
    """Copy a schema, without all that does not matter to how it is read.

    Parameters
    ----------
    document : object
        As `json.loads` gives it.

    Raises
    ------
    SchemaError
        It is not a valid schema, or larger than one is allowed to be. Whether the types exist that
        it names is for the parser to say.
    """
    return _Copy().type(document, 0)


class _Copy:
    """One pass over a schema."""

    def __init__(self) -> None:
        self._types = self._fields = 0

    def type(self, given: object, depth: int) -> Any:  # noqa: ANN401  as `checked`
        self._types += 1
        if self._types > MAX_TYPES or depth > MAX_DEPTH:
            raise SchemaError(
                f"a schema of more than {MAX_TYPES} types, or of more than {MAX_DEPTH} within each"
                " other"
            )
        if isinstance(given, str):
            return _name(given, "type")
        if isinstance(given, list):
            return self._union(given, depth)
        if not isinstance(given, dict):
            raise SchemaError(f"not a type: {given!r:.80}")
        kind = given.get("type")
        if kind in _NAMED or kind in ("array", "map"):
            return self._complex(kind, given, depth)
        if isinstance(kind, str) and kind not in _PRIMITIVE:
            _name(kind, "type")
        inner = kind if isinstance(kind, str) else self.type(kind, depth + 1)
        return {"type": inner, **_logical(given)}

    def _union(self, branches: Sequence[object], depth: int) -> list[Any]:
        if not 0 < len(branches) <= MAX_BRANCHES:
            raise SchemaError(f"a union of {len(branches)} types; 1 to {MAX_BRANCHES} are read")
        if any(isinstance(branch, list) for branch in branches):
            raise SchemaError("a union within a union")
        return [self.type(branch, depth + 1) for branch in branches]

    def _complex(self, kind: str, given: Mapping[str, Any], depth: int) -> dict[str, Any]:
        if kind in ("array", "map"):
            inside = {"array": "items", "map": "values"}[kind]
            return {"type": kind, inside: self.type(given.get(inside), depth + 1)}
        made: dict[str, Any] = {"type": kind, "name": _name(given.get("name"), "name")}
        if given.get("namespace"):
            made["namespace"] = _name(given["namespace"], "namespace")
        if kind == "record":
            return made | {"fields": self._fields_of(given.get("fields"), depth)}
        if kind == "enum":
            return made | {"symbols": _symbols(given.get("symbols"))}
        return made | {"size": _size(given.get("size")), **_logical(given)}

    def _fields_of(self, fields: object, depth: int) -> list[dict[str, Any]]:
        if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
            raise SchemaError(f"fields of a record that are no list of fields: {fields!r:.80}")
        self._fields += len(fields)
        if self._fields > MAX_FIELDS:
            raise SchemaError(f"a schema of more than {MAX_FIELDS} fields")
        names = [_name(field.get("name"), "name") for field in fields]
        # WINTER's packets have two fields of one name, which Avro forbids: the last one keeps it.
        last = {name: i for i, name in enumerate(names)}
        return [
            {
                "name": name if last[name] == i else f"{name} (field {i})",
                "type": self.type(field.get("type"), depth + 1),
            }
            for i, (name, field) in enumerate(zip(names, fields, strict=True))
        ]


def _name(given: object, what: str) -> str:
    if not isinstance(given, str) or not 0 < len(given) <= MAX_NAME or not given.isprintable():
        raise SchemaError(f"a {what} that is no name: {given!r:.80}")
    return given


def _symbols(names: object) -> list[str]:
    if not isinstance(names, list):
        raise SchemaError(f"symbols of an enum that are no list: {names!r:.80}")
    return [_name(name, "symbol") for name in names]


def _size(size: object) -> int:
    # In Python a bool is an int too.
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 31:
        raise SchemaError(f"a fixed type of {size!r:.80} bytes")
    return size


def _logical(given: Mapping[str, Any], known: Collection[str] = _LOGICAL) -> dict[str, Any]:
    """What makes a number or a text something else, such as a date."""
    if not isinstance(given.get("logicalType"), str):
        return {}
    return {name: given[name] for name in known if name in given}
