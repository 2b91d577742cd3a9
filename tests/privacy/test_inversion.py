"""The example attack: the image is there without protection, and gone with it."""

import json
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/privacy/inversion.py"


def test_the_leak_and_its_end(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    picture, record = tmp_path / "inversion.png", tmp_path / "inversion.json"
    words = [str(EXAMPLE), "--out", str(picture), "--json", str(record), "--cohort", "50"]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    found = json.loads(record.read_text())["correlation"]
    assert found["no protection"] > 0.999
    assert found["clipped only"] > 0.999, "clipping alone hides nothing: it only scales"
    assert found["clipped, local noise (epsilon 8)"] < 0.25
    assert found["sum of the cohort"] < 0.8
    assert found["sum of the cohort, clipped and noised (z = 1)"] < 0.25
    assert picture.stat().st_size > 5000
    assert "no protection" in capsys.readouterr().out
