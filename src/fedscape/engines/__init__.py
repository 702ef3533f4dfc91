"""Engines for clients that live elsewhere, each behind an optional dependency of its own.

| engine                    | where the clients live      | extra            |
| ------------------------- | --------------------------- | ---------------- |
| `fedscape.engines.ray`    | the machines of a cluster   | `fedscape[ray]`  |
"""
