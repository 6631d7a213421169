"""vLLM-Omni's engine, loaded."""

import asyncio
from functools import partial

from app.engines.omni.stages import OmniArgs  # sets what vLLM reads when it is imported

# isort: split
from vllm_omni import AsyncOmni

from app.engines.pool_args import set_environment
from app.errors import EngineFailed, SettingsError


async def load(args: OmniArgs) -> AsyncOmni:
    """Raises: SettingsError, EngineFailed."""
    set_environment(args.environment)
    try:
        return await asyncio.to_thread(partial(AsyncOmni, **args.fields))
    except (ValueError, TypeError) as exc:
        raise SettingsError(f"vLLM-Omni refuses these engine arguments: {exc}") from exc
    except Exception as exc:
        raise EngineFailed(f"vLLM-Omni did not start: {exc!r}") from exc
