"""Parts of your own. A plan names them by their import names; nothing of fedavg is edited.

fedavg run examples/own_package/plan.toml
"""
