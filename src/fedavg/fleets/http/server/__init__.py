"""The server of a fleet: rounds, requests, storage. It never sees a client's examples."""
