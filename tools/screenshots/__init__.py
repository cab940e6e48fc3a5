"""Takes the pictures of the console for the documentation: `python -m tools.screenshots`."""
