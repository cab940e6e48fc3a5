"""A small drawing surface for diagrams in one style, with colors for light and dark screens in the file itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Final

Point = tuple[float, float]

LINE_HEIGHT: Final = 18
STYLE: Final = """\
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #16191d; }
.title { font-weight: 600; font-size: 14px; }
.small { font-size: 12px; fill: #5b6470; }
.number { font-weight: 600; font-size: 12px; fill: #ffffff; }
.code { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 12px; }
.ground { fill: #ffffff; }
.panel { fill: #f6f7f9; stroke: #d9dde3; }
.box { fill: #ffffff; stroke: #5b6470; }
.accent { fill: #e0f2f1; stroke: #00796b; }
.good { fill: #e3f4ea; stroke: #0a6b3d; }
.bad { fill: #fce8e6; stroke: #b3261e; }
.calm { fill: #eceff3; stroke: #5b6470; }
.mark { fill: #00796b; }
.line { fill: none; stroke: #5b6470; stroke-width: 1.5; }
.strong { fill: none; stroke: #00796b; stroke-width: 2; }
.failed { fill: none; stroke: #b3261e; stroke-width: 2; }
.dashed { stroke-dasharray: 5 4; }
.head { fill: #5b6470; }
.strong-head { fill: #00796b; }
.failed-head { fill: #b3261e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e8ebef; }
  .small { fill: #9aa5b1; }
  .number { fill: #0b1f1d; }
  .ground { fill: #16191f; }
  .panel { fill: #1d232b; stroke: #343c46; }
  .box { fill: #16191f; stroke: #9aa5b1; }
  .accent { fill: #12312e; stroke: #4db6ac; }
  .good { fill: #12301f; stroke: #6fd39c; }
  .bad { fill: #44191a; stroke: #ff8f86; }
  .calm { fill: #262d36; stroke: #9aa5b1; }
  .mark, .strong-head { fill: #4db6ac; }
  .line { stroke: #9aa5b1; }
  .strong { stroke: #4db6ac; }
  .failed { stroke: #ff8f86; }
  .head { fill: #9aa5b1; }
  .failed-head { fill: #ff8f86; }
}"""
HEADS: Final = {"line": "head", "strong": "strong-head", "failed": "failed-head"}


class Drawing:
    """Collects shapes. Coordinates are pixels from the top left corner."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self.width, self.height = width, height
        self.title, self.description = title, description
        self._shapes: list[str] = []

    def render(self) -> str:
        """Returns the file. The ground is part of it, so it is legible on a page of either theme."""
        markers = "".join(
            f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"'
            f' orient="auto-start-reverse"><path class="{name}" d="M0 0 10 5 0 10z"/></marker>\n'
            for name in HEADS.values()
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}"'
            f' height="{self.height}" role="img" aria-labelledby="title description">\n'
            f'<title id="title">{escape(self.title)}</title>\n'
            f'<desc id="description">{escape(self.description)}</desc>\n'
            f"<style>\n{STYLE}\n</style>\n<defs>\n{markers}</defs>\n"
            f'<rect class="ground" width="{self.width}" height="{self.height}" rx="10"/>\n'
            + "\n".join(self._shapes)
            + "\n</svg>\n"
        )

    @contextmanager
    def group(self, title: str) -> Iterator[None]:
        """Shapes inside get a title, which readers and browsers show."""
        self._shapes.append(f"<g><title>{escape(title)}</title>")
        yield
        self._shapes.append("</g>")

    def box(
        self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "box", first: str = "title"
    ) -> None:
        """Draws a rectangle with centered lines; the first has another class."""
        self._rectangle(x, y, width, height, kind)
        top = y + height / 2 - (len(lines) - 1) * LINE_HEIGHT / 2
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + number * LINE_HEIGHT, line, kind=first if number == 0 else "small")

    def panel(self, x: float, y: float, width: float, height: float, title: str, *, kind: str = "panel") -> None:
        """Draws a large rectangle with its title in the top left corner."""
        self._rectangle(x, y, width, height, kind)
        self.text(x + 14, y + 20, title, kind="title", anchor="start")

    def text(self, x: float, y: float, text: str, *, kind: str = "", anchor: str = "middle") -> None:
        """Draws one line around a vertical middle."""
        named = f' class="{kind}"' if kind else ""
        self._shapes.append(
            f'<text{named} x="{x:g}" y="{y + 4.5:g}" text-anchor="{anchor}">{escape(text, quote=False)}</text>'
        )

    def lines(self, x: float, y: float, *lines: str, kind: str = "", anchor: str = "start") -> None:
        for number, line in enumerate(lines):
            self.text(x, y + number * LINE_HEIGHT, line, kind=kind, anchor=anchor)

    def arrow(self, *points: Point, kind: str = "line", dashed: bool = False, both: bool = False) -> None:
        """Draws a line through the points, with a head at its end."""
        start = f' marker-start="url(#{HEADS[kind]})"' if both else ""
        self._path(_through(points), kind, dashed, f'{start} marker-end="url(#{HEADS[kind]})"')

    def curve(self, start: Point, bend: Point, other_bend: Point, end: Point, *, kind: str = "line") -> None:
        """Draws a Bézier curve with a head at its end."""
        curve = " ".join(f"{x:g} {y:g}" for x, y in (bend, other_bend, end))
        self._path(
            f"M{start[0]:g} {start[1]:g}C{curve}", kind, dashed=False, markers=f' marker-end="url(#{HEADS[kind]})"'
        )

    def line(self, *points: Point, kind: str = "line", dashed: bool = False) -> None:
        self._path(_through(points), kind, dashed, "")

    def dot(self, x: float, y: float, radius: float = 4) -> None:
        self._shapes.append(f'<circle class="mark" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')

    def number(self, x: float, y: float, number: int) -> None:
        """Draws the number of a step in a disc."""
        self.dot(x, y, 10)
        self.text(x, y, str(number), kind="number")

    def _rectangle(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self._shapes.append(f'<rect class="{kind}" {size} rx="8" stroke-width="1.5"/>')

    def _path(self, path: str, kind: str, dashed: bool, markers: str) -> None:
        self._shapes.append(f'<path class="{kind}{" dashed" if dashed else ""}" d="{path}"{markers}/>')


def _through(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
