from collections.abc import Iterator

import pytest

from fedavg import native
from fedavg.native import kernels


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(native.VARIABLE, "0")
    native.library.cache_clear()
    yield
    native.library.cache_clear()


@pytest.fixture
def avx2(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels for AVX2, though the processor may do more."""
    if "avx2" not in kernels.features():
        pytest.skip("no AVX2 here")
    monkeypatch.setenv(native.VARIABLE, "avx2")
    native.library.cache_clear()
    yield
    native.library.cache_clear()
