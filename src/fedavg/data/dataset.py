"""What a data set is to the registry: a name, its files, how clients may be made, and one function that loads it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedavg.data.partition import Partition
from fedavg.specs import choices, usage
from fedavg.types import FederatedData


@dataclass(frozen=True)
class StoredFile:
    """A file in the data directory: its path there and the SHA-256 that it must have."""

    path: str
    sha256: str
    bytes: int


def as_it_comes(content: bytes) -> bytes:
    return content


@dataclass(frozen=True)
class RemoteFile:
    """A file that a data set is made of.

    `forms` are those it may have in the data directory (packed, unpacked); any one will do, and the first is what a
    download leaves there. `urls` are mirrors, tried in order. `convert` makes the first form of what is downloaded.
    """

    forms: tuple[StoredFile, ...]
    urls: tuple[str, ...] = ()
    convert: Callable[[bytes], bytes] = as_it_comes


@dataclass(frozen=True)
class NoSettings:
    """For a data set of which there is one kind only."""


@dataclass(frozen=True)
class Request:
    """What a plan requires of a data set."""

    partition: Partition
    clients: int | None
    seed: int
    data_dir: Path
    #: The data set's settings: an object of its settings class.
    settings: Any = NoSettings()


def no_facts(_: FederatedData) -> Mapping[str, int]:
    return {}


@dataclass(frozen=True)
class Dataset:
    """One data set. `clients` is the default number of them; None where the data itself says how many there are."""

    name: str
    summary: str
    licence: str
    clients: int | None
    #: Kinds of partition that make sense here; the first is the default.
    partitions: tuple[str, ...]
    files: tuple[RemoteFile, ...]
    load: Callable[[Request], FederatedData]
    #: The paper's own numbers for this data (§3), shown beside what was loaded.
    paper: str = ""
    #: Counts that `fedavg data info` shows beside the paper's.
    facts: Callable[[FederatedData], Mapping[str, int]] = no_facts
    #: What may be set after the name, as in mnist:pixels=centred: the fields of a frozen dataclass.
    settings: type = NoSettings
    #: What the loader takes out of `files`; where all of it is in the data directory, `files` are not needed.
    contents: tuple[RemoteFile, ...] = ()
    #: True where one of the files is enough: they are editions of the same thing, best first.
    one_is_enough: bool = False
    #: True where the package holds or makes the data, so that no file is needed.
    built_in: bool = False

    @property
    def default_partition(self) -> str:
        return self.partitions[0]

    @property
    def usage(self) -> str:
        """How its name is written, with its settings: mnist:[pixels=unit|centred]."""
        return usage({self.name: self.settings})[0]

    @property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """The values that each setting may have, the default first."""
        return choices(self.settings)
