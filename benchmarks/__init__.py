"""Benchmarks against peers; each is one `make` verb, and its table is in docs/benchmarks.md."""
