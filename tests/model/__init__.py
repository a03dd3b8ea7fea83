"""The protocol of claims, evictions and grants, explored: every order of messages, and each fault at each place (decision 0044)."""
