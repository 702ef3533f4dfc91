"""Faster ways to train many clients at once; the reference is the loop."""
