"""Engines for clients that live elsewhere, each behind an optional dependency of its own.

| engine                    | where the clients live      | extra              |
| ------------------------- | --------------------------- | ------------------ |
| `fedscape.engines.flower` | devices and silos           | `fedscape[flower]` |
| `fedscape.engines.ray`    | the machines of a cluster   | `fedscape[ray]`    |
"""
