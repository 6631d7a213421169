"""OpenTelemetry traces of requests, off unless OTLP's standard variables are set.

Why they are made so: `ops/decisions/0057-spans-at-the-end.md`.
Only `otel.py` imports OpenTelemetry, and it is imported only if traces are on.
"""
