r"""Avro types as regular expressions, so that the regular-expression engine walks over the bytes.

Most types can be written as an expression: a double is any eight bytes, ``["null", "float"]`` is
``\x00|\x02.{4}``, a record is its fields one behind the other. To match a record of a hundred
fields against it takes as long as ten steps of Python, and groups in it pick out what is wanted. No
expression is needed for what cannot be written as one (arrays, maps, a type within itself) or would
be long (texts of more than 127 bytes): where an expression does not match, that means nothing, and
`broker_filter.decode.avro.skip` has to find out.

Every choice in these expressions is made by its first byte, or is atomic, so that a failing match
never tries the same bytes in many ways.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from broker_filter.decode.avro.primitives import write_long
from broker_filter.decode.avro.schema import AvroType, WriterSchema
from broker_filter.decode.avro.skip import ItemSizes

__all__ = ["MAX_COMPILED_BYTES", "MAX_PATTERN_BYTES", "Patterns", "branch_tag", "joined"]

MAX_PATTERN_BYTES: Final = 1 << 16
"""Longest expression that is made; a diaSource of LSST takes 3 kB."""

MAX_COMPILED_BYTES: Final = 1 << 17
"""Most bytes of expressions that are compiled for one schema; LSST's take 16 kB. Compiling takes
some microseconds a byte, and a schema may come with every message."""

_MAX_NAMED_BYTES: Final = 1 << 20
_MAX_DOTS: Final = 1 << 15
_MAX_BRANCHES: Final = 64
_MAX_TEXT: Final = 127


def _dots(size: int) -> bytes:
    return (b"", b".")[size] if size < 2 else b".{%d}+" % size


_LONG: Final = rb"[\x80-\xff]{0,8}+[\x00-\x7f]"
"""Integers of up to 63 bits; the few longer ones are left to the careful way."""

_TEXT: Final = (
    b"(?:" + b"|".join(re.escape(write_long(n)) + _dots(n) for n in range(_MAX_TEXT + 1)) + b")"
)


class Patterns:
    """Makes the expression of each type of one schema.

    Parameters
    ----------
    schema : WriterSchema
    sizes : ItemSizes
        Of the same schema.
    """

    def __init__(self, schema: WriterSchema, sizes: ItemSizes) -> None:
        self._schema, self._sizes = schema, sizes
        self._named: dict[str, bytes | None] = {}
        self._left, self._named_left = MAX_COMPILED_BYTES, _MAX_NAMED_BYTES

    def of(self, avro_type: AvroType) -> bytes | None:
        """Expression that matches values of a type; None where there is none, or it is long."""
        kind, definition = self._schema.resolve(avro_type)
        if not isinstance(definition, Mapping) or "name" not in definition:
            return self._made(kind, definition)
        name = definition["name"]
        if name not in self._named:
            self._named[name] = None  # what a type within itself finds
            made = self._made(kind, definition)
            self._named_left -= len(made or b"")
            self._named[name] = made if self._named_left >= 0 else None
        return self._named[name]

    def to_compile(self, pattern: bytes | None) -> bytes | None:
        """The same expression, or None once those of this schema are too long together."""
        if pattern is None or len(pattern) > self._left:
            return None
        self._left -= len(pattern)
        return pattern

    def sequence(self, types: Sequence[AvroType]) -> bytes | None:
        """Expression that matches values of several types, one behind the other."""
        return joined([self._repeated(kind, len(list(run))) for kind, run in groupby(types)])

    def _repeated(self, avro_type: AvroType, n: int) -> bytes | None:
        """Expression of n values of one type.

        Neighbours that may be null are, mostly, all null or all there: to try that first is faster.
        """
        one = self.of(avro_type)
        if one is None or n * len(one) > MAX_PATTERN_BYTES:
            return None
        _, definition = self._schema.resolve(avro_type)
        if n == 1 or not isinstance(definition, list) or len(definition) != 2:
            return one * n
        alike = (way * n for way in self._ways(definition) if way is not None)
        return b"(?>" + b"|".join([*alike, one * n]) + b")"

    def _made(self, kind: str, definition: Any) -> bytes | None:  # noqa: ANN401  as the kind has it
        size = self._sizes.of(definition)
        if size is not None:
            return _dots(size) if size <= _MAX_DOTS else None
        if kind == "record":
            return self.sequence([field["type"] for field in definition["fields"]])
        if kind == "union":
            return self._union(definition)
        return {"int": _LONG, "long": _LONG, "enum": _LONG, "string": _TEXT}.get(kind)

    def _union(self, branches: Sequence[AvroType]) -> bytes | None:
        if len(branches) > _MAX_BRANCHES:
            return None
        whole = joined(self._ways(branches), b"|")
        return None if whole is None else b"(?:" + whole + b")"

    def _ways(self, branches: Sequence[AvroType]) -> list[bytes | None]:
        ways = [self.of(branch) for branch in branches]
        return [None if way is None else branch_tag(i) + way for i, way in enumerate(ways)]


def branch_tag(index: int) -> bytes:
    """Expression of the number of a union's branch."""
    return re.escape(write_long(index))


def joined(parts: Sequence[bytes | None], between: bytes = b"") -> bytes | None:
    """Join parts, unless one is missing or the whole is too long."""
    known = [part for part in parts if part is not None]
    whole = between.join(known)
    return whole if len(known) == len(parts) and len(whole) <= MAX_PATTERN_BYTES else None
