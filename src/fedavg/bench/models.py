"""The tasks of the workloads that are not the paper's."""

from fedavg.bench.modules import AdaptedTransformer, Encoder, resnet
from fedavg.tasks.task import Task

ENCODER = Task("encoder", Encoder)
RESNET = Task("resnet", resnet)
ADAPTED = Task("adapted", AdaptedTransformer)
