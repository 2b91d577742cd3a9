"""Clients on machines of their own, reached over HTTP."""
