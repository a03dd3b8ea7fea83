"""Made-up labs with a seed, each with the sources of its distributions."""
