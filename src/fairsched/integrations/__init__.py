"""Fair shares in the workers of other frameworks: modules `celery` and `dramatiq`."""
