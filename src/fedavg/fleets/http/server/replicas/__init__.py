"""Several processes that form one server: what each of them does for the others (docs/replicas.md)."""
