"""What a worker does with a request: the Celery tasks, and the engine's event loop behind them."""
