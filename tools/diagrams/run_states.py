"""The states of a run and all transitions between them, from the table in the code."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from bellringer.core.runs import FINAL_STATES, TRANSITIONS, State
from tools.diagrams.svg import Drawing

WIDTH, HEIGHT, GAP = 120, 44, 112
LEFT, TOP = 200, 30
OPEN: Final = (State.BLOCKED, State.QUEUED, State.RUNNING, State.RETRYING)  # from top to bottom
FINAL: Final = (State.SUCCEEDED, State.DEAD, State.CANCELLED, State.SKIPPED)  # from left to right
KINDS: Final = {
    State.SUCCEEDED: "good",
    State.DEAD: "bad",
    State.RUNNING: "accent",
    State.SKIPPED: "calm",
    State.CANCELLED: "calm",
}
FINAL_TOP: Final = TOP + GAP * len(OPEN) - 6


def draw_run_states() -> Drawing:
    """Draws states with work left in a column, and final states below a grid of the transitions into them."""
    about = "; ".join(f"{source} to {target}: {label}" for (source, target), label in transition_labels().items())
    drawing = Drawing(930, FINAL_TOP + HEIGHT + 48, "States of a run", about)
    assert set(OPEN) | set(FINAL) == set(State), "a state has no place in the diagram"
    assert set(FINAL) == FINAL_STATES
    loops = 0
    for (source, target), label in transition_labels().items():
        with drawing.group(f"{source} → {target}: {label}"):
            if target in FINAL:
                _end(drawing, source, target, label)
            elif source in FINAL:
                _revive(drawing, source, target, label)
            elif abs(OPEN.index(source) - OPEN.index(target)) == 1:
                _neighbour(drawing, source, target, label)
            else:
                loops += 1
                _arc(drawing, source, target, label, 110 + 30 * loops)
    for state in OPEN:
        drawing.box(LEFT, _top(state), WIDTH, HEIGHT, state.value, kind=KINDS.get(state, "box"))
    for state in FINAL:
        drawing.box(_column(state) - WIDTH / 2, FINAL_TOP, WIDTH, HEIGHT, state.value, kind=KINDS[state])
    return drawing


def transition_labels() -> dict[tuple[State, State], str]:
    """Returns the events of each pair of states that a transition connects."""
    events: defaultdict[tuple[State, State], list[str]] = defaultdict(list)
    for (source, event), target in TRANSITIONS.items():
        events[source, target].append(event.value)
    return {pair: ", ".join(names) for pair, names in events.items()}


def _top(state: State) -> float:
    return TOP + GAP * OPEN.index(state)


def _column(state: State) -> float:
    return LEFT + WIDTH + 115 + 135 * FINAL.index(state)


def _end(drawing: Drawing, source: State, target: State, label: str) -> None:
    """Draws the transition to a final state: to its column, then down."""
    x, y = _column(target), _top(source) + HEIGHT / 2
    drawing.line((LEFT + WIDTH, y), (x, y))
    drawing.arrow((x, y), (x, FINAL_TOP - 2))
    drawing.dot(x, y)
    drawing.text(x - 8, y - 11, label, kind="small", anchor="end")


def _revive(drawing: Drawing, source: State, target: State, label: str) -> None:
    """Draws the transition from a final state, along the bottom."""
    x, bottom = _column(source), FINAL_TOP + HEIGHT
    middle = LEFT + WIDTH / 2
    drawing.arrow((x, bottom), (x, bottom + 18), (middle, bottom + 18), (middle, _top(target) + HEIGHT + 2))
    drawing.text((x + middle) / 2, bottom + 30, label, kind="small")


def _neighbour(drawing: Drawing, source: State, target: State, label: str) -> None:
    """Draws a vertical arrow; the two directions lie side by side."""
    down = OPEN.index(target) > OPEN.index(source)
    x = LEFT + WIDTH / 2 + (22 if down else -22)
    start, end = (_top(source) + HEIGHT, _top(target) - 2) if down else (_top(source), _top(target) + HEIGHT + 2)
    drawing.arrow((x, start), (x, end))
    drawing.text(x + (8 if down else -8), (start + end) / 2, label, kind="small", anchor="start" if down else "end")


def _arc(drawing: Drawing, source: State, target: State, label: str, reach: float) -> None:
    """Draws an arc on the left; from a state to itself, a loop."""
    start, end = _top(source) + HEIGHT / 2, _top(target) + HEIGHT / 2
    if source is target:
        start, end = start - 12, end + 12
        reach = 60
    drawing.curve((LEFT, start), (LEFT - reach, start), (LEFT - reach, end), (LEFT - 2, end))
    drawing.text(LEFT - reach * 0.75 - 6, (start + end) / 2, label, kind="small", anchor="end")
