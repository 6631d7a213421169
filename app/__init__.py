"""Xylem: distributed LLM inference on FastAPI, Celery, Redis and Flower.

Importing this package loads nothing; `celery -A app` falls through to `app/celery.py`.
"""
