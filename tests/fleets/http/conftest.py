import sys
from pathlib import Path

# The processes that the tests start import their task and data from here.
sys.path.insert(0, str(Path(__file__).parent))
