"""Run the command line with `python -m tunemark`."""

from tunemark.cli import main

main()
