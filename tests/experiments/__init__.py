"""Experiments with the policy: `python -m tests.experiments.policy` runs them and writes docs/policy.md. Tests nothing."""
