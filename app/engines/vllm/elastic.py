"""Changing the number of a loaded vLLM's data-parallel ranks: elastic expert parallelism, on Ray."""

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerManager

from app.engines.vllm.convert import translate
from app.engines.vllm.stats import StatLogger
from app.errors import RequestError


async def scale(engine: AsyncLLM, ranks: int, stats: StatLogger) -> None:
    """Raises: RequestError, EngineFailed."""
    parallel = engine.vllm_config.parallel_config
    if not parallel.enable_elastic_ep or parallel.data_parallel_backend != "ray":
        raise RequestError(
            "vLLM can't change its ranks without args.enable_elastic_ep and args.data_parallel_backend: ray."
        )
    try:
        await engine.scale_elastic_ep(new_data_parallel_size=ranks)
    except ValueError as exc:  # more or fewer than its experts and its arguments allow
        raise RequestError(str(exc), param="data_parallel_size") from exc
    except Exception as exc:
        raise translate(exc) from exc
    # With more ranks vLLM makes loggers of its own in place of ours.
    engine.logger_manager = StatLoggerManager(
        engine.vllm_config, list(range(ranks)), custom_stat_loggers=[stats.make], enable_default_loggers=False
    )
    engine._logger_ref[0] = engine.logger_manager  # noqa: SLF001 (what its own output handler reads)
