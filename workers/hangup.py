"""SIGHUP ends a worker as SIGTERM does: it drains.

Celery by itself would start its own command again in the process's place, which can't import what it needs.
"""

import signal

# Looked at before Celery has a handler of its own: `nohup` has the signal ignored, and so it stays.
_IGNORED = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def end_on_hangup() -> None:
    """Makes SIGHUP end the worker as SIGTERM does. To be called when Celery has its handlers, on the main thread."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN if _IGNORED else signal.getsignal(signal.SIGTERM))
