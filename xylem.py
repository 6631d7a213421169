"""The Celery app under a name that is Xylem's alone: `celery -A xylem worker -Q POOL`, in any folder.

Celery looks for the app's modules in the working folder first, which may have an `app` or `workers` of its own.
"""

import sys
from pathlib import Path

_INSTALLED = str(Path(__file__).parent)
sys.path.insert(0, _INSTALLED)
try:
    import workers  # noqa: F401 (what Celery imports of it later comes from here, too)
    from app.celery import app  # noqa: F401 (what Celery looks for)
finally:
    sys.path.remove(_INSTALLED)
