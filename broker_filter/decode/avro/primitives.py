"""The two building bricks of Avro bytes: integers of variable length, and bytes behind a length.

Where bytes end too early these raise IndexError, where they cannot be Avro, ValueError; whoever
reads whole records turns both into one `PoisonMessage`.
"""

from __future__ import annotations

__all__ = ["forward", "read_bytes", "read_long", "write_long"]


def read_long(value: bytes, at: int) -> tuple[int, int]:
    """Read a zig-zag integer: seven bits a byte, lowest first.

    Returns
    -------
    int, int
        The integer, and the byte at which what follows begins.
    """
    raw = shift = 0
    while (byte := value[at]) > 0x7F:
        raw |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise ValueError(f"integer of more than 64 bits at byte {at}")
    raw |= byte << shift
    if raw >> 64:
        raise ValueError(f"integer of more than 64 bits at byte {at}")
    return (raw >> 1) ^ -(raw & 1), at + 1


def write_long(number: int) -> bytes:
    """Write a zig-zag integer of up to 64 bits, in as few bytes as it takes."""
    raw, written = (number << 1) ^ (number >> 63), bytearray()
    while raw > 0x7F:
        written.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*written, raw])


def read_bytes(value: bytes, at: int) -> tuple[bytes, int]:
    """Read what follows its own length, and where it ends."""
    length = value[at]
    if length > 0x7F or length & 1:
        length, at = read_long(value, at)
    else:  # the common case: 0 to 63 bytes
        length, at = length >> 1, at + 1
    end = forward(value, at, length)
    return value[at:end], end


def forward(value: bytes, at: int, size: int) -> int:
    """The byte that lies ``size`` bytes further on."""
    if size < 0:
        raise ValueError(f"length {size} before byte {at}")
    if at + size > len(value):
        raise IndexError
    return at + size
