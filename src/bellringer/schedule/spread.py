"""`H` in a cron expression: a value that a hash of a seed and the field chooses, so that not all jobs fire at once.

It is the same on every machine and in every version: SHA-256, not Python's `hash`.
"""

from __future__ import annotations

import hashlib

from bellringer.schedule.items import FIELDS, Expression, Field, Hashed, Item


def plain(expression: Expression, seed: str) -> str:
    """The text of an expression with the values that the hash chose in place of each `H`."""
    texts = expression.text.split(" ")
    fields = list(zip(FIELDS, expression.fields, strict=True))[-len(texts) :]
    return " ".join(
        ",".join(_text(field, item, part, seed) for item, part in zip(items, text.split(","), strict=True))
        for (field, items), text in zip(fields, texts, strict=True)
    )


def _text(field: Field, item: Item, text: str, seed: str) -> str:
    if not isinstance(item, Hashed):
        return text
    size, step = item.last - item.first + 1, item.step
    first = item.first + _number(seed, field) % (size if step is None else step)
    values = [first] if step is None else range(first, item.last + 1, step)
    if len(values) == 1:
        return str(first)
    return f"{first}-{values[-1]}" + (f"/{step}" if step and step > 1 else "")


def _number(seed: str, field: Field) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\n{field.name}".encode()).digest()[:8])
