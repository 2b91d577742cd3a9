"""How pooling is translated to a program."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from fedavg.engine.plane_rules import by_pixel, made_by_pixel
from fedavg.engine.tape import Op
from fedavg.engine.writer import Spot, TensorView, Unsupported, Writer

aten = torch.ops.aten
MAX_BACK: Final = aten.max_pool2d_with_indices_backward.default


def _both(value: Sequence[int]) -> tuple[int, int]:
    """Vertical and horizontal values; a single number is for both."""
    return (value[0], value[-1])


def _sizes(x: TensorView, y: TensorView, window: Any, moved: Any, around: Any, counts_padding: bool) -> tuple[int, ...]:
    """The sizes in the order of windows.h."""
    if len(x.shape) != 4:
        raise Unsupported("pooling of one image without a batch")
    images, channels, height, width = x.shape
    steps = _both(moved or window)
    return images, height, width, channels, *y.shape[2:], *_both(window), *steps, *_both(around), int(counts_padding)


def _given(options: Sequence[Any], *defaults: Any) -> list[Any]:
    """The window and the other options, with defaults for those not given."""
    return [*options, *defaults[len(options) - 1 :]]


def _max_sizes(x: TensorView, y: TensorView, options: Sequence[Any]) -> tuple[int, ...]:
    window, moved, around, dilation, _ = _given(options, [], [0, 0], [1, 1], False)
    if {*dilation} != {1}:
        raise Unsupported("pooling of a window with gaps")
    return _sizes(x, y, window, moved, around, counts_padding=False)


def _max_pool(w: Writer, op: Op) -> None:
    x, y, place = w.view(op.args[0]), w.made(op), str(op.outputs[1])
    if any(place in reader.refs and reader.func is not MAX_BACK for reader in w.tape.ops):
        raise Unsupported("pooling whose places are asked for")  # the program stores them in another form
    w.add("max_pool", _max_sizes(x, y, op.args[1:]), by_pixel(w, x), made_by_pixel(y), Spot(place, 0))


def _max_pool_back(w: Writer, op: Op) -> None:
    dy, x, *options, place = op.args
    gradient, dx = w.view(dy), w.made(op)
    sizes = _max_sizes(w.view(x), gradient, options)
    w.add("max_pool_back", sizes, by_pixel(w, gradient), Spot(place.name, 0), made_by_pixel(dx))


def _mean_sizes(x: TensorView, y: TensorView, options: Sequence[Any]) -> tuple[int, ...]:
    window, moved, around, _, counts, divisor = _given(options, [], [0, 0], False, True, None)
    if divisor is not None:
        raise Unsupported("a mean with a divisor of its own")
    return _sizes(x, y, window, moved, around, counts)


def _evenly(x: TensorView, y: TensorView, options: Sequence[Any]) -> tuple[int, ...]:
    """Adaptive pooling to a size that divides the image's is ordinary pooling with adjacent windows."""
    parts = [(n, m) for n, m in zip(x.shape[2:], y.shape[2:], strict=True)]
    if any(n % m for n, m in parts):
        raise Unsupported("adaptive pooling to windows of unlike sizes")
    window = [n // m for n, m in parts]
    return _sizes(x, y, window, window, [0, 0], counts_padding=False)


def _mean_pool(
    sizes: Callable[[TensorView, TensorView, Sequence[Any]], tuple[int, ...]],
) -> Callable[[Writer, Op], None]:
    def rule(w: Writer, op: Op) -> None:
        x, y = w.view(op.args[0]), w.made(op)
        w.add("mean_pool", sizes(x, y, op.args[1:]), by_pixel(w, x), made_by_pixel(y))

    return rule


def _mean_pool_back(
    sizes: Callable[[TensorView, TensorView, Sequence[Any]], tuple[int, ...]],
) -> Callable[[Writer, Op], None]:
    def rule(w: Writer, op: Op) -> None:
        dy, x, dx = w.view(op.args[0]), w.view(op.args[1]), w.made(op)
        w.add("mean_pool_back", sizes(x, dy, op.args[2:]), by_pixel(w, dy), made_by_pixel(dx))

    return rule


WINDOWS: Final[dict[Any, Callable[[Writer, Op], None]]] = {
    aten.max_pool2d_with_indices.default: _max_pool,
    MAX_BACK: _max_pool_back,
    aten.avg_pool2d.default: _mean_pool(_mean_sizes),
    aten.avg_pool2d_backward.default: _mean_pool_back(_mean_sizes),
    aten._adaptive_avg_pool2d.default: _mean_pool(_evenly),
    aten._adaptive_avg_pool2d_backward.default: _mean_pool_back(_evenly),
}
