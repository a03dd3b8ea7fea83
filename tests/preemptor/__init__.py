"""The preemptor's tests: its rules first, then the service over a real bus and a real database."""
