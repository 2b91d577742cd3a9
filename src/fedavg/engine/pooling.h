/* Pooling, over channels.
 *
 * A pooled plane has the maximum of each window that slides over the plane, after ReLU if asked; a window that extends
 * past the end has fewer pixels. `from` says which pixel of the window it was (row by row), the first if several are
 * equal, and NOWHERE if ReLU made it 0: the gradient needs nothing else.
 */
#pragma once
#include "vectors.h"

#define NOWHERE 255

/* The side of a square window and its `stride`; the size of the output; whether to apply ReLU. */
typedef struct {
    int window, stride, height, width, relu;
} Pooling;

/* The largest of (rows, columns) pixels, and its place in a window. As in PyTorch's pooling, NaN wins. */
INLINE void largest(const int window, const int rows, const int columns, const vec *plane, int row, vec added,
                    vec *best, ints *place) {
    *best = *plane + added, *place = (ints){0};
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            const vec value = plane[r * row + c] + added;
            const ints larger = (value > *best) | (value != value);
            *best = (vec)choose(larger, (ints)value, (ints)*best);
            *place = choose(larger, (ints){0} + (r * window + c), *place);
        }
}

/* LANES channels of planes (rows, columns), `row` vectors from one row to the next, plus `added`, to pooled ones whose
 * pixels are `step` apart. */
INLINE void pool_by(const int window, const Pooling *how, const vec *plane, int row, int rows, int columns, vec added,
                    long step, float *y, unsigned char *from) {
    for (int i = 0; i < how->height; i++)
        for (int j = 0; j < how->width; j++, y += step, from += step) {
            const int top = i * how->stride, left = j * how->stride;
            const int down = smaller(window, rows - top), across = smaller(window, columns - left);
            const vec *at = plane + top * row + left;
            vec best;
            ints place;
            if (down == window && across == window) largest(window, window, window, at, row, added, &best, &place);
            else largest(window, down, across, at, row, added, &best, &place);
            if (how->relu) {
                const ints off = best <= 0.0f;
                best = (vec)(~off & (ints)best);
                place = choose(off, (ints){0} + NOWHERE, place);
            }
            store(y, best);
            *(bytes *)from = __builtin_convertvector(place, bytes);
        }
}

static void pool(const Pooling *how, const vec *plane, int row, int rows, int columns, vec added, long step, float *y,
                 unsigned char *from) {
    if (how->window == 2) pool_by(2, how, plane, row, rows, columns, added, step, y, from); /* faster for usual sizes */
    else if (how->window == 3) pool_by(3, how, plane, row, rows, columns, added, step, y, from);
    else pool_by(how->window, how, plane, row, rows, columns, added, step, y, from);
}

/* The gradient of the dense planes (rows, columns), from that of the pooled ones. */
static void spread(const Pooling *how, const float *dy, const unsigned char *from, long step, int rows, int columns,
                   vec *plane) {
    memset(plane, 0, (long)rows * columns * sizeof(vec));
    for (int i = 0; i < how->height; i++)
        for (int j = 0; j < how->width; j++, dy += step, from += step) {
            const int top = i * how->stride, left = j * how->stride;
            const int down = smaller(how->window, rows - top), across = smaller(how->window, columns - left);
            const vec gradient = load(dy);
            const ints place = __builtin_convertvector(*(const bytes *)from, ints);
            for (int r = 0; r < down; r++)
                for (int c = 0; c < across; c++)
                    plane[(top + r) * columns + left + c] += (vec)((place == r * how->window + c) & (ints)gradient);
        }
}
