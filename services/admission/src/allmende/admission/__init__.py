"""The queue: grants, claims, reservations and explanations."""
