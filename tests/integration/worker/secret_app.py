"""Tasks in all lanes that misuse their secrets: they print, log, return, report and raise them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Any

from bellringer import App, Context
from bellringer.errors import BellringerError

app = App()


def leak(ctx: Context, key: str, mode: str) -> Any:
    """Reports the key in every way that a handler has, then fails or returns it."""
    print(f"printed {key}", flush=True)
    sys.stderr.write(f"half a line {key[:6]}")
    sys.stderr.write(f"{key[6:]}\n")
    logging.getLogger("leaky").warning("logged %s", key)
    told = f"told {key}"
    ctx.log.info(told, field=key, nested={"deep": [key]})
    ctx.progress(1, 2, note=f"noted {key}", details={"cursor": key})
    if mode == "raise":
        raise ValueError(f"refused {key}")
    if mode == "environment":
        return sorted(name for name in os.environ if "SECRET" in name)
    return {"echo": key, "list": [f"x{key}y"], key: "as a name", "length": len(key)}


@app.task(name="loop", retry=1)
async def in_loop(ctx: Context, key: str, mode: str = "return") -> Any:
    return leak(ctx, key, mode)


@app.task(name="thread", retry=1)
def in_thread(ctx: Context, key: str, mode: str = "return") -> Any:
    return leak(ctx, key, mode)


@app.task(name="process", isolation="process", retry=1)
def in_process(ctx: Context, key: str, mode: str = "return") -> Any:
    subprocess.run(["/bin/echo", f"echoed {key}"], check=True)
    return leak(ctx, key, mode)


@app.task(name="length", retry=1)
async def length(value: str) -> int:
    return len(value)


@app.task(name="same", retry=1)
async def same(value: Any) -> Any:
    return value


@app.task(name="pay", retry=1, redact=["card.number", "items[].token", "args[0]"])
async def pay(ctx: Context, who: str, card: dict[str, Any], items: list[dict[str, Any]]) -> Any:
    print(f"paying with {card['number']} and {items[0]['token']} for {who}")
    ctx.progress(1, details={"card": card, "seen": 1})
    if card.get("broken"):
        raise BellringerError(f"card {card['number']} refused for {who}")
    return {"card": card, "items": items, "amount": 5}
