"""The plans that have a name."""

#: What `fedavg run NAME` starts from; every option can still be changed.
PRESETS: dict[str, dict[str, object]] = {
    "mnist-2nn": {"task": "mnist-2nn", "data": "mnist"},
    "mnist-cnn": {"task": "mnist-cnn", "data": "mnist"},
    "shakespeare-lstm": {"task": "shakespeare-lstm", "data": "shakespeare", "E": 5, "lr": 1.47},
    "cifar-cnn": {"task": "cifar-cnn", "data": "cifar10", "E": 5, "B": 50, "lr": 0.1, "lr_decay": 0.99},
    "posts-lstm": {"task": "posts-lstm", "data": "posts", "C": 0.003, "B": 8, "lr": 9.0},
}
