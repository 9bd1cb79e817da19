"""The schemas that packets were written with: parsed once, each with named types of its own.

A survey changes its schemas while the names of the types in them stay (``diaSource``), and packets
of several versions come mixed in one stream. So nothing here is known by a type's name alone: a
`WriterSchema` carries its own table of named types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import fastavro
from fastavro.read import LOGICAL_READERS

from broker_filter.decode.avro.check import checked
from broker_filter.errors import SchemaError

__all__ = [
    "MAX_SCHEMA_BYTES",
    "AvroType",
    "WriterSchema",
    "is_converted",
    "load_folder",
    "parse_document",
    "parse_json",
]

MAX_SCHEMA_BYTES: Final = 2 << 20
"""Longest schema that is parsed; the longest seen has 350 kB."""

AvroType: TypeAlias = "str | list[Any] | Mapping[str, Any]"
"""A type as a parsed schema writes it: a name, a union, or a definition."""

_INVALID: Final = (
    *(LookupError, TypeError, ValueError, AttributeError, RecursionError),
    fastavro.schema.SchemaParseException,
)


@dataclass(frozen=True, slots=True, eq=False)
class WriterSchema:
    """Schema of one kind of packet.

    Parameters
    ----------
    name : str
        Full name of the record, such as ``"lsst.v11_1.alert"``.
    root : mapping
        Definition of the record, as fastavro parses it.
    named : mapping of str to mapping
        Definitions of all named types in it, by full name.
    """

    name: str
    root: Mapping[str, Any]
    named: Mapping[str, Mapping[str, Any]]

    @property
    def field_names(self) -> frozenset[str]:
        """Names of the record's own fields."""
        return frozenset(field["name"] for field in self.root["fields"])

    def resolve(self, avro_type: AvroType) -> tuple[str, AvroType]:
        """Kind of a type (``"long"``, ``"record"``, ``"union"`` ...) and its definition."""
        if isinstance(avro_type, list):
            return "union", avro_type
        if isinstance(avro_type, str):
            if avro_type not in self.named:
                return avro_type, avro_type
            avro_type = self.named[avro_type]
        kind = avro_type["type"]
        # {"type": {"type": "array", ...}} says no more than what is inside.
        return (kind, avro_type) if isinstance(kind, str) else self.resolve(kind)


def is_converted(definition: AvroType) -> bool:
    """Whether a type is a logical one (a timestamp, a decimal), which readers make an object of."""
    if not isinstance(definition, Mapping) or "logicalType" not in definition:
        return False
    return f"{definition['type']}-{definition['logicalType']}" in LOGICAL_READERS


def parse_document(document: object) -> WriterSchema:
    """Check a schema and take note of its named types.

    Parameters
    ----------
    document : dict
        As `json.loads` gives it; one that fastavro has parsed before is parsed again.

    Raises
    ------
    SchemaError
        It is not a valid schema, or not one of a record.
    """
    document = checked(document)
    named: dict[str, Mapping[str, Any]] = {}
    try:
        root = fastavro.parse_schema(document, named_schemas=named)
        if root["type"] != "record":
            raise SchemaError(f"a packet's schema is one of a record, not of {root['type']!r}")
    except _INVALID as error:
        raise SchemaError(f"not a valid Avro schema: {error!r:.300}") from error
    return WriterSchema(root["name"], root, named)


def parse_json(text: bytes) -> WriterSchema:
    """Parse a schema as a registry, a container or a message key holds it.

    Raises
    ------
    SchemaError
        It is too long, not JSON, or not a valid schema of a record.
    """
    if len(text) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"a schema of {len(text)} bytes; up to {MAX_SCHEMA_BYTES} are parsed")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"a schema that is not JSON: {error}") from error
    return parse_document(document)


def load_folder(folder: Path) -> WriterSchema:
    """Put together the schema of one version from its ``*.avsc`` files, one type a file.

    Parameters
    ----------
    folder : Path
        Such as ``lsst/11/1``; the packet is the type that no other file names (and if there are
        several such, the one that names the most).

    Raises
    ------
    SchemaError
        There are no such files, they do not fit together, or two of them may be the packet.
    """
    documents: dict[str, Any] = {}
    for path in sorted(folder.glob("*.avsc")):
        try:
            document = json.loads(path.read_bytes())
            documents[_full_name(document)] = document
        except (OSError, *_INVALID) as error:
            raise SchemaError(f"{path} is not an Avro schema: {error}") from error
    name = _packet_of(documents, folder)
    try:
        return parse_document(_inlined(documents.pop(name), documents))
    except SchemaError as error:
        raise SchemaError(f"{folder}: {error}") from error


def _full_name(document: Mapping[str, Any]) -> str:
    name, space = document["name"], document.get("namespace", "")
    return str(name) if "." in name or not space else f"{space}.{name}"


def _packet_of(documents: Mapping[str, Any], folder: Path) -> str:
    """The type that no other names; of several such, the one that names the most others."""
    named = {
        name: sum(_mentions(other, document) for other in documents if other != name)
        for name, document in documents.items()
        if not any(_mentions(name, other) for key, other in documents.items() if key != name)
    }
    tops = [name for name, count in named.items() if count == max(named.values())]
    if len(tops) != 1:
        raise SchemaError(
            f"of the *.avsc files in {folder}, one must be the packet, named by no other; "
            f"such are: {', '.join(tops) or 'none'}"
        )
    return tops[0]


def _mentions(name: str, document: object) -> bool:
    """Whether a type is used by its name anywhere within ``type``, ``items`` or ``values``."""
    if isinstance(document, list):
        return any(_mentions(name, part) for part in document)
    if isinstance(document, dict):
        inside = (document.get(key) for key in ("type", "items", "values", "fields"))
        return any(_mentions(name, part) for part in inside)
    return document == name


def _inlined(document: object, others: dict[str, Any]) -> object:
    """Write other types' definitions where they are first named; they leave ``others``."""
    if isinstance(document, list):
        return [_inlined(part, others) for part in document]
    if isinstance(document, dict):
        inside = {
            key: _inlined(document[key], others)
            for key in ("type", "items", "values", "fields")
            if key in document
        }
        return {**document, **inside}
    if isinstance(document, str) and document in others:
        return _inlined(others.pop(document), others)
    return document
