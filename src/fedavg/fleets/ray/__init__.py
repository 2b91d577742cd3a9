"""Simulations on a Ray cluster. `fleet.py` is what a user sees; Ray itself is imported when a run starts.

| file | what it is |
|---|---|
| `cluster.py` | the Ray that a fleet runs on, and its nodes |
| `crew.py` | the actors: hired, introduced, lost and hired again |
| `actor.py`, `station.py` | one actor; what it holds and does, without Ray |
| `handout.py` | who does which job: pure logic |
| `dispatch.py` | one list of jobs, from handing out to the sum |
| `gather.py`, `rings.py`, `pieces.py` | sums over nodes; memory shared on a node; bytes that must not spill |
"""
