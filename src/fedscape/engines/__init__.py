"""Engines for remote clients, each behind its own optional dependency.

| engine                    | where the clients live      | extra              |
| ------------------------- | --------------------------- | ------------------ |
| `fedscape.engines.flower` | devices and silos           | `fedscape[flower]` |
| `fedscape.engines.ray`    | the machines of a cluster   | `fedscape[ray]`    |
"""
