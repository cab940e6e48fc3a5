"""`python -m bellringer` is the command line."""

from bellringer.cli import main

main()
