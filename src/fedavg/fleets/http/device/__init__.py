"""A device's side: its link to the server, its files, its part in secure aggregation."""
