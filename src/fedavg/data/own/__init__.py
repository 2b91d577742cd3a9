"""Bring your own data: arrays, lists, PyTorch and Hugging Face datasets, folders and tables become `FederatedData`.

Numbers stay what they are, except float64, which becomes float32, and integers other than uint8, which become int64.
Labels that are words are numbered by the `classes` that are given, or in alphabetical order. Where no test set is
given, the last examples of each client are held out for it, as the paper does with Shakespeare (§3).
"""

from fedavg.data.own.arrays import as_examples, from_arrays, from_clients, from_dataset
from fedavg.data.own.columns import from_huggingface, from_table
from fedavg.data.own.folders import file_stamp, from_folder, read_examples

__all__ = [
    "as_examples",
    "file_stamp",
    "from_arrays",
    "from_clients",
    "from_dataset",
    "from_folder",
    "from_huggingface",
    "from_table",
    "read_examples",
]
