"""User-level differential privacy: accounting, the ledger of a run, exact noise, and which parts work together."""
