"""A real Ray cluster of several nodes on this machine, without its dashboard and with small object stores."""

import os
import sys
from contextlib import contextmanager

STORE_BYTES = 80 << 20


@contextmanager
def ray_cluster(*cpus, **head):
    """A cluster whose nodes have so many cores each, as Ray believes."""
    from ray.cluster_utils import Cluster

    changes = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    nodes = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], **nodes, **head})
    cluster.more = lambda count: cluster.add_node(num_cpus=count, object_store_memory=STORE_BYTES)
    try:
        for count in cpus[1:]:
            cluster.more(count)
        yield cluster
    finally:
        cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def fleet_of(cluster, **settings):
    from fedavg import RayFleet

    host, port = cluster.address.rsplit(":", 1)
    return RayFleet(host, int(port), **settings)
