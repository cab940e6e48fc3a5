"""The steps in the life of a run, one module each. A step is one bounded pass; steps share rows, not calls."""
