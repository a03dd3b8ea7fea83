"""docs/policy.md as a function of the table of experiments and the kept results: same results, same bytes. Never runs anything."""
