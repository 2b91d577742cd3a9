"""What a server and its devices send to each other, and how it is signed and secured (docs/protocol.md)."""
