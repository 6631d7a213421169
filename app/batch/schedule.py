"""The schedule file (YAML): batches that begin at set times, for `celery -A app beat`."""

from pathlib import Path
from typing import Annotated, Any

import yaml
from celery.schedules import ParseException, crontab
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from app.batch.input_line import ENDPOINTS
from app.batch.window import read_window
from app.errors import RequestError, SettingsError
from app.ids import BATCH_QUEUE
from app.pools.yaml_loader import read_yaml
from app.settings import explain


def _cron(text: str) -> str:
    try:
        crontab.from_string(text)
    except (ParseException, ValueError, TypeError) as exc:
        raise ValueError(f"'{text}' is no cron expression such as '0 2 * * *': {exc}") from exc
    return text


def _endpoint(text: str) -> str:
    if text not in ENDPOINTS:
        raise ValueError(f"'{text}' is none of {', '.join(ENDPOINTS)}")
    return text


def _window(text: str) -> str:
    try:
        read_window(text)
    except RequestError as exc:
        raise ValueError(exc.message) from exc
    return text


class Entry(BaseModel):
    """One scheduled batch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cron: Annotated[str, AfterValidator(_cron)]  # minute, hour, day of month, month, day of week; in UTC
    file: Annotated[str, Field(min_length=1)]  # in the storage (XYLEM_FILES), read anew each time
    endpoint: Annotated[str, AfterValidator(_endpoint)]
    completion_window: Annotated[str, AfterValidator(_window)] = "24h"
    metadata: dict[str, str] | None = None


_FILE = TypeAdapter(dict[str, Entry])


def beat_schedule(path: Path | None) -> dict[str, Any]:
    """Celery's setting `beat_schedule`. Raises: SettingsError naming the file, the key and the value."""
    if path is None:
        return {}
    try:
        entries = _FILE.validate_python(read_yaml(path.read_text()) or {})
    except OSError as exc:
        raise SettingsError(f"XYLEM_SCHEDULE_FILE={path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{path}: not YAML: {exc}") from exc
    except ValidationError as exc:
        raise SettingsError(f"{path}: {explain(exc, '.'.join)}") from exc
    return {
        name: {
            "task": "app.tasks.batch.submit",
            "schedule": crontab.from_string(entry.cron),
            "args": [entry.file, entry.endpoint, entry.completion_window, entry.metadata],
            "options": {"queue": BATCH_QUEUE},
        }
        for name, entry in entries.items()
    }
