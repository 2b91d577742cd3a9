"""What can be learned. A new task is one file and one line here."""

from fedavg.tasks.cifar import CIFAR_CNN
from fedavg.tasks.mnist import MNIST_2NN, MNIST_CNN
from fedavg.tasks.posts import POSTS_LSTM
from fedavg.tasks.shakespeare import SHAKESPEARE_LSTM
from fedavg.tasks.task import Task

TASKS: dict[str, Task] = {task.name: task for task in (MNIST_2NN, MNIST_CNN, SHAKESPEARE_LSTM, CIFAR_CNN, POSTS_LSTM)}

__all__ = ["TASKS", "Task"]
