"""Benches: `./dev bench` runs each `bench_NAME.py` here. A bench measures and reports; to judge is for a test."""
