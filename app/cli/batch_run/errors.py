"""The errors of a run, which end the command with one line."""


class RunError(Exception):
    """Something in the input, the options or the state file is wrong."""


class RunStopped(Exception):
    """The server can't go on with the run; the same command may, later."""
