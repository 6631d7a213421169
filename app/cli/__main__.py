"""`python -m app.cli`: the command, where its script isn't on the PATH."""

from app.cli.main import main

main()
