"""Sums that nobody sees apart: the protocol, its parameters, and its primitives.

The room lies below `core` and imports only `errors`: the protocol can be read, and tested, without the rest.
"""
