"""Deployments over Flower: write one, check it, and administer its nodes."""
