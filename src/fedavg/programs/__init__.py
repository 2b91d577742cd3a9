"""The programs of a fleet over the network: `fedavg serve` and `fedavg join`."""
