"""The virtual clock: what happens to attempts, jobs and nodes, whoever decides."""
