"""Claims, drains and expiries become eviction plans and freed GPUs."""
