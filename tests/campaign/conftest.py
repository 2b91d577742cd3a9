import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "paper"))  # a cell that is measured in seconds
