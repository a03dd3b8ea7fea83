"""Tests of clients/agent: SDK, synthetic cluster, workload, audit."""
