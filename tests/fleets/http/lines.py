"""A line y = w x + b, importable by the names in a served plan: a model that can be trained by hand."""

from torch import nn

from fedavg import ArrayData, Task

LINE = Task("line", lambda: nn.Linear(1, 1), loss=nn.functional.mse_loss)
#: Two clients of two examples each.
POINTS = ArrayData("points", [[1.0], [2.0], [0.5], [-1.0]], [[2.0], [3.0], [1.0], [0.0]], [[0, 1], [2, 3]], None)
#: The first of them alone, and an example to judge on.
ALONE = ArrayData("alone", [[1.0], [2.0]], [[2.0], [3.0]], [[0, 1]], ([[0.5]], [[1.5]]))
