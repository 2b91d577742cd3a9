"""The three forms of a part: an object, a name with settings, an import name with settings."""

import sys
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedavg.algorithms import ALGORITHMS, Algorithm
from fedavg.algorithms.fedprox import FedProx
from fedavg.codecs import Codec
from fedavg.codecs.entropy import Entropy
from fedavg.codecs.quantise import Quantise
from fedavg.codecs.stc import STC
from fedavg.errors import PlanError
from fedavg.specs import Pluggable, bound, checked, importing_only, make, parse_spec, text_of, usage
from fedavg.stages import Clip, Noise, Stage
from fedavg.tasks import TASKS, Task
from toys import TOY


@dataclass(frozen=True)
class Tea:
    grams: float
    minutes: int = 3
    milk: bool = False


KINDS = {"tea": Tea}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tea:2.5", Tea(2.5)),
        ("tea:2.5:4", Tea(2.5, 4)),
        ("tea:grams=1:milk=true", Tea(1.0, 3, True)),
        ("tea:1:milk=false", Tea(1.0)),
    ],
)
def test_settings_by_place_and_by_name(text, expected):
    assert parse_spec(text, KINDS, "drink") == expected


@pytest.mark.parametrize(
    "text",
    ["tea", "tea:", "tea:hot", "tea:1:1.5", "tea:1:3:true:9", "tea:1:sugar=2", "tea:1:grams=2", "tea:1:milk=yes"],
)
def test_what_does_not_fit_is_refused_with_the_way_it_is_written(text):
    with pytest.raises(PlanError, match=r"drink: got '.*'; expected 'tea:GRAMS:\[minutes=3\]:\[milk=False\]'"):
        parse_spec(text, KINDS, "drink")


def test_an_unknown_name_lists_the_known():
    with pytest.raises(PlanError, match=r"drink: got 'mud'; expected one of tea:GRAMS"):
        parse_spec("mud", KINDS, "drink")
    assert usage(KINDS) == ["tea:GRAMS:[minutes=3]:[milk=False]"]


class Cake(Pluggable, ABC):
    kind = "cake"

    @classmethod
    def registry(cls):
        return {"sponge": Sponge, "layered": Layered, "plain": PLAIN}


@dataclass(frozen=True)
class Sponge(Cake):
    eggs: int = 3
    sugar: float = 0.2
    icing: str = "none of it"
    warm: bool = False
    nuts: float | None = None
    shape: Literal["round", "square"] = "round"
    baked: tuple[int, ...] = bound(())


@dataclass(frozen=True)
class Layered(Cake):
    inner: Cake
    layers: int = 2


@dataclass(frozen=True)
class Homemade(Cake):
    grams: float
    raisins: bool = True


@dataclass(frozen=True)
class ByFeel(Cake):
    taste: Callable[[float], float]


@dataclass
class Crumbling(Cake):
    grams: float = 1.0


@dataclass(frozen=True)
class Secretive(Cake):
    grams: float = 1.0
    secret: int = field(default=0, compare=False)


class Unlisted(Cake):
    """Not a dataclass: what it was made with is not known."""

    def __init__(self, grams: float = 1.0) -> None:
        self.weight = 2 * grams


def birthday(candles: int, name: str = "you") -> Cake:
    return Sponge(eggs=candles, icing=name)


def undeclared():
    return Sponge()


PLAIN = Sponge(1)
NOT_A_CAKE = 3
HERE = __name__


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (Sponge(), "sponge"),
        (Sponge(4), "sponge:4"),
        (Sponge(4, 0.5), "sponge:4:0.5"),
        (Sponge(warm=True), "sponge:warm=true"),
        (Sponge(4, icing="white"), "sponge:4:icing=white"),
        (Sponge(nuts=1.5, shape="square"), "sponge:nuts=1.5:shape=square"),
        (Sponge(baked=(1, 2)), "sponge"),
        (PLAIN, "plain"),
        (Layered(Sponge(4)), "layered:sponge:4"),
        (Layered(Layered(Sponge())), "layered:layered:sponge"),
        (Layered(Homemade(2.0)), f"layered:{HERE}:Homemade:2.0"),
        (Homemade(300.0), f"{HERE}:Homemade:300.0"),
        (Homemade(300.0, False), f"{HERE}:Homemade:300.0:false"),
        (FedProx(0.1), "fedprox:0.1"),
        (STC(0.02), "stc:0.02"),
        (Entropy(Quantise(4, rotate=False)), "entropy:quantise:4:false"),
        (Clip(1.0, quantile=0.5), "clip:1.0:quantile=0.5"),
        (Noise(1.1), "noise:1.1"),
        (TASKS["mnist-2nn"], "mnist-2nn"),
    ],
)
def test_the_text_of_a_part(part, text):
    assert str(part) == text_of(part) == text


@pytest.mark.parametrize(
    "part",
    [
        ByFeel(lambda grams: grams), Sponge(icing="a:b"), Sponge(icing=" "), Layered(ByFeel(abs)), Layered(Sponge(), 3),
        Crumbling(2.0), Secretive(), Unlisted(), TOY, Homemade(float("nan")),
    ],
)  # fmt: skip
def test_a_part_whose_text_would_lose_something_has_none(part):
    assert text_of(part) is None
    assert str(part) == repr(part)


def test_a_class_of_a_script_or_of_a_function_has_no_text(monkeypatch):
    @dataclass(frozen=True)
    class Local(Cake):
        pass

    assert text_of(Local()) is None
    Local.__qualname__ = "Local"
    monkeypatch.setattr(sys.modules[HERE], "Local", Local, raising=False)
    assert text_of(Local()) == f"{HERE}:Local", "as if it stood at the top of its module"
    Local.__module__ = "__main__"
    monkeypatch.setattr(sys.modules["__main__"], "Local", Local, raising=False)
    assert text_of(Local()) is None


@given(st.builds(Sponge, st.integers(), st.floats(allow_nan=False), st.text("abc.-", min_size=1), st.booleans(),
                 st.none() | st.floats(allow_nan=False), st.sampled_from(["round", "square"])))  # fmt: skip
def test_a_text_reads_back_to_an_equal_part(part):
    assert make(str(part), Cake) == part


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_reads_back(name):
    part = make(f"{name}:600" if name == "adaptive" else name, Algorithm)
    assert make(str(part), Algorithm) == part


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{HERE}:Homemade:250", Homemade(250.0)),
        (f"{HERE}:Homemade:grams=250:raisins=false", Homemade(250.0, False)),
        (f"{HERE}:PLAIN", PLAIN),
        (f"{HERE}:birthday:7", Sponge(7, icing="you")),
        (f"{HERE}:birthday:candles=7:name=me", Sponge(7, icing="me")),
        (" sponge:2 ", Sponge(2)),
    ],
)
def test_installed_code_by_its_import_name(text, expected):
    assert make(text, Cake) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("mud", r"cake: got 'mud'; expected one of sponge:\[eggs=3\].*, plain, or 'module:Name' of installed code"),
        ("no.such:Cake", "cake: cannot import 'no.such:Cake': No module named 'no'; expected one of sponge"),
        (f"{HERE}:Absent", f"cake: cannot import '{HERE}:Absent': module '{HERE}' has no attribute 'Absent'"),
        (f"{HERE}:NOT_A_CAKE", "is int; expected a fedavg.Cake: an object, a class .* or a function"),
        (f"{HERE}:undeclared", "is function; expected a fedavg.Cake"),
        (f"{HERE}:Homemade", f"got '{HERE}:Homemade'; expected '{HERE}:Homemade:GRAMS:\\[raisins=True\\]'"),
        (f"{HERE}:PLAIN:4", "has no settings"),
        ("sponge:shape=long", "got 'sponge:shape=long'; expected 'sponge:"),
        ("object:mine", r"stands for an object from Python.*fedavg.resume\(run_dir, cake=...\)"),
        (Sponge, r"cake: got the class Sponge; expected an object: Sponge\(...\)"),
        (Clip(1.0), "cake: got Clip.* of type Clip; expected a fedavg.Cake, or text: sponge"),
        (7, "cake: got 7 of type int; expected a fedavg.Cake"),
        (None, "cake: got None of type NoneType"),
    ],
)
def test_what_is_no_part_is_refused(value, message):
    with pytest.raises(PlanError, match=message):
        make(value, Cake)


def test_a_module_that_fails_is_named(tmp_path, monkeypatch):
    (tmp_path / "burnt_cake.py").write_text("raise RuntimeError('too hot')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PlanError, match="cannot import 'burnt_cake:Cake': RuntimeError: too hot"):
        make("burnt_cake:Cake", Cake)


def test_nothing_but_a_part_is_ever_called(tmp_path, monkeypatch):
    """Else a text could call whatever a module has imported: `module:system:command`."""
    (tmp_path / "kitchen.py").write_text("from os import mkdir\nfrom pathlib import Path\nimport os\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mkdir", "Path"):
        with pytest.raises(PlanError, match="expected a fedavg.Cake"):
            make(f"kitchen:{name}:{tmp_path / 'made'}", Cake)
    with pytest.raises(PlanError, match="expected one of"):
        make(f"kitchen:os.mkdir:{tmp_path / 'made'}", Cake)
    assert not (tmp_path / "made").exists()


def test_a_device_imports_only_what_its_owner_named(tmp_path, monkeypatch):
    (tmp_path / "trusted").mkdir()
    (tmp_path / "trusted/__init__.py").write_text("")
    for module in ("trusted/more.py", "trustedx.py"):
        (tmp_path / module).write_text(
            f"from pathlib import Path\nPath({str(tmp_path)!r}, 'ran').touch()\nfrom {HERE} import PLAIN\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    with importing_only(["trusted"]):
        assert make("trusted.more:PLAIN", Cake) == PLAIN
        (tmp_path / "ran").unlink()
        for text in ("trustedx:PLAIN", "layered:trustedx:PLAIN", f"{HERE}:PLAIN", "os:system:true"):
            with pytest.raises(PlanError, match="which this device does not allow; .* fedavg join --allow"):
                make(text, Cake)
        assert make("sponge", Cake) == Sponge()
    assert not (tmp_path / "ran").exists()
    assert make("trustedx:PLAIN", Cake) == PLAIN


def test_what_a_plan_keeps_of_a_part():
    assert checked(Sponge(4), Cake) == "sponge:4"
    assert checked("sponge:eggs=4", Cake) == "sponge:eggs=4", "as it was written: digests of old plans depend on it"
    assert checked("not.installed:Cake:1", Cake) == "not.installed:Cake:1", "imported when the run is set up"
    own = ByFeel(abs)
    assert checked(own, Cake) is own
    with pytest.raises(PlanError, match="cake: got"):
        checked("sponge:many", Cake)


def test_a_part_of_another_kind_is_refused():
    with pytest.raises(PlanError, match="stages: got .* of type FedProx; expected a fedavg.Stage"):
        make(FedProx(), Stage)
    with pytest.raises(PlanError, match="codec: got .* of type Clip"):
        make(Clip(1.0), Codec)
    with pytest.raises(PlanError, match="task: got 5 of type int; expected a fedavg.Task, or text: mnist-2nn"):
        make(5, Task)
