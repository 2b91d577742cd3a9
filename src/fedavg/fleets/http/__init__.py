"""Clients that are elsewhere: they poll a server over HTTPS, fetch a model, train and upload (docs/protocol.md)."""
