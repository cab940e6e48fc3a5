"""A hook of MkDocs: removes files of the theme that the built site does not use."""

from __future__ import annotations

import shutil
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig


def on_post_build(config: MkDocsConfig) -> None:
    """Removes source maps, and the dictionaries of languages other than English."""
    site = Path(config.site_dir)
    for unused in site.rglob("*.map"):
        unused.unlink()
    for script in (site / "assets").rglob("*.min.*"):
        lines = [line for line in script.read_text().splitlines() if "sourceMappingURL=" not in line]
        script.write_text("\n".join(lines) + "\n")
    shutil.rmtree(site / "assets" / "javascripts" / "lunr", ignore_errors=True)
    (site / "sitemap.xml.gz").unlink(missing_ok=True)
