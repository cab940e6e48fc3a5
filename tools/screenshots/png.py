"""Makes screenshots small: a palette of at most 256 colors, and the best compression of zlib."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
MAX_COLORS: Final = 256


def shrink(png: bytes) -> bytes:
    """Returns the picture with a palette, which the rarest colors share with their nearest neighbour."""
    width, height, pixels, size = _decode(png)
    colors = [pixels[at : at + 3] for at in range(0, len(pixels), size)]
    palette = _palette(Counter(colors))
    indices = bytes(map(palette.__getitem__, colors))
    table = [color for color, index in sorted(palette.items(), key=lambda one: one[1]) if index >= 0]
    by_index: dict[int, bytes] = {}
    for color in table:
        by_index.setdefault(palette[color], color)
    rows = b"".join(b"\0" + indices[row * width : (row + 1) * width] for row in range(height))
    return SIGNATURE + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", b"".join(by_index[index] for index in range(len(by_index)))),
            _chunk(b"IDAT", zlib.compress(rows, 9)),
            _chunk(b"IEND", b""),
        )
    )


def size_of(png: bytes) -> tuple[int, int]:
    """Returns width and height."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def _palette(counts: Counter[bytes]) -> dict[bytes, int]:
    """Returns the index of each color. The most frequent colors keep theirs; the others get the nearest of these."""
    kept = [color for color, _ in counts.most_common(MAX_COLORS)]
    found = {color: index for index, color in enumerate(kept)}
    for color in counts:
        if color not in found:
            red, green, blue = color
            found[color] = min(
                range(len(kept)),
                key=lambda index: (
                    (kept[index][0] - red) ** 2 + (kept[index][1] - green) ** 2 + (kept[index][2] - blue) ** 2
                ),
            )
    return found


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _decode(png: bytes) -> tuple[int, int, bytes, int]:
    """Returns width, height, pixels and bytes per pixel of a picture of Chromium: 8 bits, RGB or RGBA."""
    width, height = size_of(png)
    depth, kind, _, _, interlaced = png[24:29]
    assert (depth, interlaced) == (8, 0), "not a screenshot of Chromium"
    size = {2: 3, 6: 4}[kind]
    data = zlib.decompress(b"".join(body for name, body in _chunks(png) if name == b"IDAT"))
    stride = width * size
    rows: list[bytes] = []
    previous = bytearray(stride)
    for number in range(height):
        at = number * (stride + 1)
        previous = _unfilter(data[at], bytearray(data[at + 1 : at + 1 + stride]), previous, size)
        rows.append(bytes(previous))
    return width, height, b"".join(rows), size


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += 12 + length


def _unfilter(kind: int, row: bytearray, above: bytearray, size: int) -> bytearray:
    """Takes back the filter of a row (PNG, section 9)."""
    if kind == 1:
        for place in range(size, len(row)):
            row[place] = (row[place] + row[place - size]) & 255
    elif kind == 2:
        for place in range(len(row)):
            row[place] = (row[place] + above[place]) & 255
    elif kind == 3:
        for place in range(len(row)):
            left = row[place - size] if place >= size else 0
            row[place] = (row[place] + (left + above[place]) // 2) & 255
    elif kind == 4:
        for place in range(len(row)):
            left, corner = (row[place - size], above[place - size]) if place >= size else (0, 0)
            row[place] = (row[place] + _paeth(left, above[place], corner)) & 255
    return row


def _paeth(left: int, above: int, corner: int) -> int:
    guess = left + above - corner
    by_left, by_above, by_corner = abs(guess - left), abs(guess - above), abs(guess - corner)
    if by_left <= by_above and by_left <= by_corner:
        return left
    return above if by_above <= by_corner else corner
