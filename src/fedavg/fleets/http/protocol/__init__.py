"""What travels between a server and its devices, and how it is signed and secured (docs/protocol.md)."""
