/* Convolutions of images whose channels lie side by side: (count, height, width, channels), with any stride and padding.
 *
 * Each is a sum over `taps`, kernel rows or places: of a run of numbers beside a pixel with a matrix. Images are first
 * copied to where zeros stand around them, so that no tap looks over the edge. The sums of some pixels by all or some of
 * the channels that come out are registers.
 */
#pragma once
#include "products.h"

/* Pixels of a row handled at a time. */
#define PIXELS 6
/* Taps at most: a kernel of 7 x 7. */
#define TAPS 49

typedef struct {
    long images, height, width, channels; /* what comes in */
    long rows, columns, out;              /* what comes out */
    long side, stride, padding;           /* of the kernel: square, or rows and columns alike */
} Planes;

/* The images with `top` rows and `left` columns of zeros before them, in `rows` x `columns`. */
static void framed(long images, long height, long width, long channels, long top, long left, long rows, long columns,
                   const float *from, float *to) {
    const long row = columns * channels;
    for (long image = 0; image < images; image++, from += height * width * channels, to += rows * row) {
        memset(to, 0, top * row * sizeof(float));
        for (long r = 0; r < height; r++) {
            float *at = to + (top + r) * row;
            memset(at, 0, left * channels * sizeof(float));
            memcpy(at + left * channels, from + r * width * channels, width * channels * sizeof(float));
            memset(at + (left + width) * channels, 0, (columns - left - width) * channels * sizeof(float));
        }
        memset(to + (top + height) * row, 0, (rows - top - height) * row * sizeof(float));
    }
}

/* The images with their padding: themselves, if there is none. */
static float *padded_images(const Planes *how, const float *x, float *frame) {
    const long around = how->padding, rows = how->height + 2 * around, columns = how->width + 2 * around;
    if (!around) return (float *)x;
    framed(how->images, how->height, how->width, how->channels, around, around, rows, columns, x, frame);
    return frame;
}

/* A place beside a pixel where a run of numbers begins, and where their weights do: `run` rows of `padded` numbers. */
typedef struct {
    long from, weights;
} Tap;

typedef struct {
    const Tap *taps;
    int count, run;
    const float *weights;
    long padded; /* a row of weights */
    long step;   /* from a pixel to the next one, where it is read */
    long move;   /* and where it is written */
    int width;   /* channels written */
} Taps;

INLINE void tap_sums(const int pixels, const int vecs, const Taps *how, const float *x, int channel, float *y, int width) {
    vec sums[PIXELS][WIDE];
    for (int i = 0; i < pixels; i++)
        for (int v = 0; v < vecs; v++) sums[i][v] = (vec){0};
    for (int t = 0; t < how->count; t++) {
        const float *from = x + how->taps[t].from, *w = how->weights + how->taps[t].weights + channel;
        for (int p = 0; p < how->run; p++, w += how->padded) {
            vec values[WIDE];
            for (int v = 0; v < vecs; v++) values[v] = load(w + v * LANES);
            for (int i = 0; i < pixels; i++) {
                const float factor = from[i * how->step + p];
                for (int v = 0; v < vecs; v++) sums[i][v] += factor * values[v];
            }
        }
    }
    for (int i = 0; i < pixels; i++)
        for (int v = 0; v < vecs; v++)
            store_some(y + i * how->move + channel + v * LANES, sums[i][v], smaller(LANES, width - v * LANES));
}

#define SUMS(pixels, vecs) case pixels: tap_sums(pixels, vecs, how, x, channel, y, width); break;
#define OF_WIDTH(vecs)                                                                                                \
    static void tap_sums_##vecs(const Taps *how, int pixels, const float *x, int channel, float *y, int width) {      \
        switch (pixels) {                                                                                             \
            SUMS(1, vecs) SUMS(2, vecs) SUMS(3, vecs) SUMS(4, vecs) SUMS(5, vecs) SUMS(6, vecs)                       \
        }                                                                                                             \
    }
OF_WIDTH(1)
OF_WIDTH(2)
#if WIDE > 2
OF_WIDTH(3)
OF_WIDTH(4)
#endif

/* A row of pixels. */
static void tapped(const Taps *how, long pixels, const float *x, float *y) {
    for (int channel = 0; channel < how->width; channel += PANEL) {
        const int width = smaller(PANEL, how->width - channel), vecs = (width + LANES - 1) / LANES;
        for (int i = 0, some; i < pixels; i += some) {
            some = part_of((int)pixels, i, PIXELS);
            const float *from = x + i * how->step;
            float *to = y + i * how->move;
            switch (vecs) {
            case 1: tap_sums_1(how, some, from, channel, to, width); break;
            case 2: tap_sums_2(how, some, from, channel, to, width); break;
#if WIDE > 2
            case 3: tap_sums_3(how, some, from, channel, to, width); break;
            default: tap_sums_4(how, some, from, channel, to, width); break;
#endif
            }
        }
    }
}

INLINE long whole_vectors(long n) { return (n + LANES - 1) / LANES * LANES; }

/* A matrix (rows, columns) of dense rows to where it lies with other strides, block by block. */
static void turn(long rows, long columns, const float *from, long row, float *to, long to_row, long to_column) {
    for (long i = 0; i < rows; i += LANES)
        for (long j = 0; j < columns; j += LANES)
            for (long y = j; y < least(j + LANES, columns); y++)
                for (long x = i; x < least(i + LANES, rows); x++) to[x * to_row + y * to_column] = from[x * row + y];
}

/* Kernels (out, channels, side, side) as (side, side, channels, out), with zeros behind. */
static void kernels_by_place(const Planes *how, const float *w, float *to) {
    const long padded = whole_vectors(how->out), places = how->side * how->side;
    if (padded > how->out) memset(to, 0, places * how->channels * padded * sizeof(float));
    for (long p = 0; p < places; p++)
        for (long c = 0; c < how->channels; c++)
            for (long o = 0; o < how->out; o++)
                to[(p * how->channels + c) * padded + o] = w[(o * how->channels + c) * places + p];
}

/* y; `frame` has room for the images with their padding, `packed` for the kernels. */
static void convolve(const Planes *how, const float *x, const float *w, float *y, float *frame, float *packed) {
    const long rows = how->height + 2 * how->padding, columns = how->width + 2 * how->padding;
    const long padded = whole_vectors(how->out), row = columns * how->channels;
    Tap taps[TAPS];
    kernels_by_place(how, w, packed);
    for (long t = 0; t < how->side; t++) taps[t] = (Tap){t * row, t * how->side * how->channels * padded};
    const Taps sums = {taps, (int)how->side, (int)(how->side * how->channels), packed, padded,
                       how->stride * how->channels, how->out, (int)how->out};
    frame = padded_images(how, x, frame);
    for (long image = 0; image < how->images; image++)
        for (long r = 0; r < how->rows; r++, y += how->columns * how->out)
            tapped(&sums, how->columns, frame + (image * rows + r * how->stride) * row, y);
}

/* Kernels as (side, side, out, channels), with zeros behind. */
static void kernels_turned(const Planes *how, const float *w, float *to) {
    const long padded = whole_vectors(how->channels), places = how->side * how->side;
    if (padded > how->channels) memset(to, 0, places * how->out * padded * sizeof(float));
    for (long p = 0; p < places; p++)
        for (long o = 0; o < how->out; o++)
            for (long c = 0; c < how->channels; c++)
                to[(p * how->out + o) * padded + c] = w[(o * how->channels + c) * places + p];
}

/* dx: each pixel (i, j) of it is met by the places (a, b) of the kernel for which (i + padding - a) / stride is whole;
 * which they are depends on the rests of i and j. `frame` has room for dy with `side` zeros around it. */
static void convolve_back(const Planes *how, const float *dy, const float *w, float *dx, float *frame, float *packed) {
    const long around = how->side, rows = how->rows + 2 * around, columns = how->columns + 2 * around;
    const long padded = whole_vectors(how->channels), row = columns * how->out;
    kernels_turned(how, w, packed);
    framed(how->images, how->rows, how->columns, how->out, around, around, rows, columns, dy, frame);
    for (long first = 0; first < how->stride; first++)
        for (long across = 0; across < how->stride; across++) {
            Tap taps[TAPS];
            int count = 0;
            for (long a = (first + how->padding) % how->stride; a < how->side; a += how->stride)
                for (long b = (across + how->padding) % how->stride; b < how->side; b += how->stride) {
                    const long up = (first + how->padding - a) / how->stride, left = (across + how->padding - b) / how->stride;
                    taps[count++] = (Tap){up * row + left * how->out, (a * how->side + b) * how->out * padded};
                }
            const Taps sums = {taps, count, (int)how->out, packed, padded, how->out, how->stride * how->channels,
                               (int)how->channels};
            const long pixels = (how->width - across + how->stride - 1) / how->stride;
            for (long image = 0; image < how->images; image++)
                for (long i = first, r = 0; i < how->height; i += how->stride, r++)
                    tapped(&sums, pixels, frame + (image * rows + around + r) * row + around * how->out,
                           dx + ((image * how->height + i) * how->width + across) * how->channels);
        }
}

/* `rows` numbers beside each pixel, times all channels of dy, summed over all pixels. */
INLINE void pixel_sums(const int rows, const int vecs, const Planes *how, const float *frame, long frame_rows, long row,
                       const float *dy, int width, float *to, long step) {
    vec sums[TALL][WIDE];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vecs; v++) sums[i][v] = (vec){0};
    const long move = how->stride * how->channels;
    for (long image = 0; image < how->images; image++)
        for (long r = 0; r < how->rows; r++) {
            const float *x = frame + (image * frame_rows + r * how->stride) * row;
            const float *g = dy + (image * how->rows + r) * how->columns * how->out;
            for (long p = 0; p < how->columns; p++, x += move, g += how->out) {
                vec values[WIDE];
                for (int v = 0; v < vecs; v++) values[v] = load_some(g + v * LANES, width - v * LANES);
                for (int i = 0; i < rows; i++)
                    for (int v = 0; v < vecs; v++) sums[i][v] += x[i] * values[v];
            }
        }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vecs; v++) store(to + i * step + v * LANES, sums[i][v]);
}

#define PIXEL_SUMS(rows, vecs)                                                                                        \
    case rows:                                                                                                        \
        if (width == vecs * LANES) pixel_sums(rows, vecs, how, frame, frame_rows, row, dy, vecs * LANES, to, step);   \
        else pixel_sums(rows, vecs, how, frame, frame_rows, row, dy, width, to, step);                                \
        break;
#define BY_WIDTH(vecs)                                                                                                \
    static void pixel_sums_##vecs(const Planes *how, int rows, const float *frame, long frame_rows, long row,         \
                                  const float *dy, int width, float *to, long step) {                                 \
        switch (rows) {                                                                                               \
            PIXEL_SUMS(1, vecs) PIXEL_SUMS(2, vecs) PIXEL_SUMS(3, vecs) PIXEL_SUMS(4, vecs) PIXEL_SUMS(5, vecs)       \
            PIXEL_SUMS(6, vecs)                                                                                       \
        }                                                                                                             \
    }
BY_WIDTH(1)
BY_WIDTH(2)
#if WIDE > 2
BY_WIDTH(3)
BY_WIDTH(4)
#endif

/* dw (out, side, side, channels) or (out, channels, side, side), by its strides; `frame` has the images with their padding,
 * `packed` room for the sums (side, side, channels, out). */
static void kernel_gradient(const Planes *how, const float *x, const float *dy, float *dw, const long *strides,
                            float *frame, float *packed) {
    const long rows = how->height + 2 * how->padding, columns = how->width + 2 * how->padding;
    const long padded = whole_vectors(how->out), row = columns * how->channels, run = how->side * how->channels;
    frame = padded_images(how, x, frame);
    for (long a = 0; a < how->side; a++)
        for (int channel = 0; channel < how->out; channel += PANEL) {
            const int width = smaller(PANEL, (int)how->out - channel), vecs = (width + LANES - 1) / LANES;
            for (int i = 0, some; i < run; i += some) {
                some = part_of((int)run, i, TALL);
                const float *from = frame + a * row + i, *g = dy + channel;
                float *to = packed + (a * run + i) * padded + channel;
                switch (vecs) {
                case 1: pixel_sums_1(how, some, from, rows, row, g, width, to, padded); break;
                case 2: pixel_sums_2(how, some, from, rows, row, g, width, to, padded); break;
#if WIDE > 2
                case 3: pixel_sums_3(how, some, from, rows, row, g, width, to, padded); break;
                default: pixel_sums_4(how, some, from, rows, row, g, width, to, padded); break;
#endif
                }
            }
        }
    for (long a = 0; a < how->side; a++)
        for (long b = 0; b < how->side; b++)
            turn(how->channels, how->out, packed + (a * how->side + b) * how->channels * padded, padded,
                 dw + a * strides[2] + b * strides[3], strides[1], strides[0]);
}
