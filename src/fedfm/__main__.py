"""Run the command line: `python -m fedfm`."""

from fedfm.cli import main

main()
