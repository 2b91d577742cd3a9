/* Pooling of images with contiguous channels: the maximum or the mean of a window that slides over them.
 *
 * A window may extend past the edge, where there is padding or nothing. For a maximum, `place` says which pixel it was,
 * row by row in the window, as a float: the first if several are equal, as in PyTorch; NaN wins.
 */
#pragma once
#include "pointwise.h"

typedef struct {
    long images, height, width, channels; /* input */
    long rows, columns;                   /* output */
    long down, across;                    /* the window */
    long move_down, move_across, above, left;
    long counts_padding;
} Windows;

/* The pixels of one window that exist: rows from `top` to `bottom`, columns from `first` to `last`, in an image; where
 * the whole window begins; and the divisor of a mean. */
typedef struct {
    long top, bottom, first, last, start_row, start_column;
    float share;
} Window;

INLINE Window window_at(const Windows *how, long i, long j) {
    const long row = i * how->move_down - how->above, column = j * how->move_across - how->left;
    const long bottom = least(row + how->down, how->height), last = least(column + how->across, how->width);
    const long top = row > 0 ? row : 0, first = column > 0 ? column : 0;
    const long rows = how->counts_padding ? least(row + how->down, how->height + how->above) - row : bottom - top;
    const long columns = how->counts_padding ? least(column + how->across, how->width + how->left) - column : last - first;
    return (Window){top, bottom, first, last, row, column, 1.0f / (float)(rows * columns)};
}

/* All windows of all images. `body` can use `how`, `w`, `count` channels at `c`, and the current `x`, `y` and
 * `place`. */
#define EACH_WINDOW(body)                                                                                             \
    const long image_size = how->height * how->width * how->channels;                                                 \
    for (long image = 0; image < how->images; image++)                                                                \
        for (long i = 0; i < how->rows; i++)                                                                          \
            for (long j = 0; j < how->columns; j++) {                                                                 \
                const Window w = window_at(how, i, j);                                                                \
                const long at = ((image * how->rows + i) * how->columns + j) * how->channels;                         \
                for (long c = 0; c < how->channels; c += LANES) {                                                     \
                    const int count = (int)least(LANES, how->channels - c);                                           \
                    const long from = image * image_size + c;                                                         \
                    body                                                                                              \
                }                                                                                                     \
            }

/* All pixels of a window: `pixel` is the offset of each from `from`, `tap` its number. */
#define EACH_PIXEL(body)                                                                                              \
    for (long r = w.top; r < w.bottom; r++)                                                                           \
        for (long q = w.first; q < w.last; q++) {                                                                     \
            const long pixel = (r * how->width + q) * how->channels;                                                  \
            const float tap = (float)((r - w.start_row) * how->across + q - w.start_column);                          \
            (void)tap;                                                                                                \
            body                                                                                                      \
        }

static void max_pool(const Windows *how, const float *x, float *y, float *place) {
    EACH_WINDOW({
        const float first = (float)((w.top - w.start_row) * how->across + w.first - w.start_column);
        vec best = all(-__builtin_inff());
        vec which = all(first);
        EACH_PIXEL({
            const vec value = load_some(x + from + pixel, count);
            const ints more = (value > best) | (value != value);
            best = chosen(more, value, best);
            which = chosen(more, all(tap), which);
        })
        store_some(y + at + c, best, count);
        store_some(place + at + c, which, count);
    })
}

static void max_pool_back(const Windows *how, const float *dy, const float *place, float *dx) {
    memset(dx, 0, how->images * how->height * how->width * how->channels * sizeof(float));
    EACH_WINDOW({
        const vec g = load_some(dy + at + c, count);
        const vec which = load_some(place + at + c, count);
        EACH_PIXEL({
            float *to = dx + from + pixel;
            store_some(to, load_some(to, count) + chosen(which == tap, g, all(0.0f)), count);
        })
    })
}

static void mean_pool(const Windows *how, const float *x, float *y) {
    EACH_WINDOW({
        vec sum = {0};
        EACH_PIXEL({ sum += load_some(x + from + pixel, count); })
        store_some(y + at + c, sum * w.share, count);
    })
}

static void mean_pool_back(const Windows *how, const float *dy, float *dx) {
    memset(dx, 0, how->images * how->height * how->width * how->channels * sizeof(float));
    EACH_WINDOW({
        const vec g = load_some(dy + at + c, count) * w.share;
        EACH_PIXEL({
            float *to = dx + from + pixel;
            store_some(to, load_some(to, count) + g, count);
        })
    })
}
