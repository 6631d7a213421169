"""A worker's part in a request: the Celery tasks, and the engine's event loop behind them."""

# Celery's strategy for tasks that are one call of the runner. By name: nothing in app imports workers.
DIRECT = "workers.engine.task_strategy:direct"
