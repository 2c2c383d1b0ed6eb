"""What corral costs, measured beside what else does the same work. Run with ``python -m benchmarks``."""
