"""`python -m fedavg` is the same as `fedavg`."""

from fedavg.cli import main

main()
