"""The parts of ``rollouts.py``."""
