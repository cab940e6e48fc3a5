"""The path of a run: one file a step, one bounded pass a call; steps meet in rows, never in calls."""
