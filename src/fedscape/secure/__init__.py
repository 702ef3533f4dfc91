"""Secure aggregation: the protocol, its parameters, and its primitives.

The package is below `core` and imports only `errors` and `types`: the protocol can be read and tested on its own.
"""
