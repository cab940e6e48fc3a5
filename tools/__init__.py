"""Programs for the development of Bellringer. They are not part of the wheel."""
