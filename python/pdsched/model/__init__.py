"""The model side of a worker: paged KV pool, attention over it, the runner that executes steps, sampling, loading.

Importing this package imports neither torch nor transformers; its modules `runner`, `attention` and `load` import them
when they are used.
"""
