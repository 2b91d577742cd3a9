"""A Flower client that trains in plain PyTorch. A module of its own: Ray's actors import it once, and keep the data."""

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import torch_models
from work import read

app = ClientApp()
given = cache(read)


@app.train()
def train(message: Message, context: Context) -> Message:
    work = given(message.content["config"]["path"])
    module = torch_models.build(work.model)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
    x, y = map(torch.from_numpy, work.clients[context.node_config["partition-id"]])
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(trained.values(), work.lr, work.momentum)
    losses = []
    for _ in range(work.epochs):
        for chosen in torch.randperm(len(y)).split(work.batch):
            optimizer.zero_grad(set_to_none=True)
            loss = torch_models.loss(module, x[chosen], y[chosen])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    metrics = MetricRecord({"train_loss": float(torch.stack(losses).mean()), "num-examples": len(y)})
    arrays = ArrayRecord({name: p.detach() for name, p in trained.items()})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
