"""Hierarchical latent class regression on agents, entities and events."""
