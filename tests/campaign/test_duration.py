import pytest

from fedavg.campaign.duration import duration, seconds
from fedavg.errors import FedAvgError


def test_times():
    assert [seconds(text) for text in ("90s", "30m", "2h", "1.5d")] == [90, 1800, 7200, 129600]
    assert [duration(s) for s in (40, 720, 12600)] == ["40 s", "12 min", "3.5 h"]
    for text in ("", "2", "h", "2 weeks", "-1h", "nanh", "0s"):
        with pytest.raises(FedAvgError, match="--budget: got '.*'; expected a time such as 30m, 2h or 1d"):
            seconds(text)
