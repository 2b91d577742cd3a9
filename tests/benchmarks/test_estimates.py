"""The table of predictions says what the record says."""

from estimates import refreshed


def test_rows_get_the_ratios_of_the_record_and_others_stay():
    text = "| W1 | 0.94 | 1.01 |\n| W10 | 0.93 | 0.77 |\n| W1 | other | table |\n"
    new = refreshed(text, {"W1": {"ratio_on_cores": 1.2, "ratio_mb": 0.9}})
    assert new.splitlines() == ["| W1 | 1.20 | 0.90 |", "| W10 | 0.93 | 0.77 |", "| W1 | other | table |"]
