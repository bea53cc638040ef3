"""Fair shares in the workers of other frameworks, `celery` and `dramatiq`; traces with `opentelemetry`."""
