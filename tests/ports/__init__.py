"""One suite a port, run against the fake and against the real thing."""
