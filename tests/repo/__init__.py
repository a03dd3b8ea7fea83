"""House rules as tests, and the proof that each package stands alone. Reads files; starts no service."""
