"""How fast is it, against the floor of the hardware? Used by `fedavg bench` and by benchmarks/."""
