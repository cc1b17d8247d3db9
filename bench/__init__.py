"""Benchmarks: clients on the same servers, in turns, as medians and ratios; no absolute figure is a claim."""
