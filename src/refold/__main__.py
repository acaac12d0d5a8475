"""`python -m refold` is the `refold` command."""

from refold.cli.main import main

main()
