from collections.abc import Iterator

import pytest

from fedavg import native


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(native.VARIABLE, "0")
    native.library.cache_clear()
    yield
    native.library.cache_clear()
