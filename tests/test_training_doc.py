"""What docs/training.md shows works as it stands there."""

import re
from pathlib import Path

import fedavg
from toys import toy_plan

PAGE = (Path(__file__).parents[1] / "docs/training.md").read_text()


def test_the_python_examples():
    names: dict = {"__name__": "training_doc"}
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(example, names)
    signs, entropy = names["SignSGD"](0.5), names["Entropy"](0.1)
    for changes in ({"optimizer": signs, "lr": 0.01}, {"algorithm": entropy, "lr": 0.1}):
        assert fedavg.run(toy_plan(rounds=15, C=1, **changes)).accuracy[-1] > 0.8


def test_the_rates_of_the_table():
    texts = re.findall(r"^\| `([^`]+)` \|", PAGE.partition("## Rates by round")[2].partition("##")[0], re.MULTILINE)
    assert len(texts) == 6 + 1
    for text in texts[1:]:
        assert fedavg.Plan(lr=text, rounds=200).work(150).lr > 0
