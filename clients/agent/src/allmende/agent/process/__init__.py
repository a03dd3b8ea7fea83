"""The process agent: one machine with GPUs becomes a cluster that runs real commands."""
