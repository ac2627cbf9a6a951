"""The model side: pool, attention, runner, sampling, loading and fetching."""
