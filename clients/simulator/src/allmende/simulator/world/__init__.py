"""The virtual clock and what happens on it: jobs, nodes and how they end."""
