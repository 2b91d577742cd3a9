"""What an installed package has besides its modules."""

from pathlib import Path

import fedavg

HERE = Path(fedavg.__file__).parent


def test_a_users_type_checker_sees_its_types() -> None:
    assert (HERE / "py.typed").is_file()


def test_kernels_find_what_they_include() -> None:
    sources = [*HERE.rglob("*.c")]
    included = [
        (source, line.split('"')[1])
        for source in sources
        for line in source.read_text().splitlines()
        if line.startswith('#include "')
    ]
    assert included
    assert all((source.parent / name).is_file() for source, name in included)
