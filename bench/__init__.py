"""Benchmarks, experiments and the pages made from them; run as modules from the root of the repository."""
