import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# A busy machine must not fail a test of a law.
settings.register_profile("fedavg", deadline=None)
settings.load_profile("fedavg")
