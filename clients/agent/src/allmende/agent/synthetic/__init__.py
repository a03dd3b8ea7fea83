"""A synthetic cluster: nodes and jobs that behave like real ones, on a scaled clock, with a truthful log of their own."""
