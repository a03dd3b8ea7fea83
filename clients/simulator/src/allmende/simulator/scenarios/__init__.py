"""Made-up labs with a seed, each with the sources of its distributions."""

from allmende.simulator.scenarios.catalog import make, names

__all__ = ["make", "names"]
