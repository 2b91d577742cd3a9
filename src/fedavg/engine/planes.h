/* Convolutions of images with contiguous channels: (count, height, width, channels), with any stride and padding.
 *
 * Each is a sum over `taps`, which are kernel rows or positions: the product of a run of numbers at a pixel with a
 * matrix. Images are first copied with zeros around them, so that no tap reads past the edge. The sums of some pixels
 * by all or some of the output channels are registers.
 */
#pragma once
#include "products.h"

/* Pixels of a row handled at a time. */
#define PIXELS 6
/* The cost of adding to a number in memory, in multiplications. */
#define SPREAD 12
/* The most taps: a kernel of 7 x 7. */
#define TAPS 49

typedef struct {
    long images, height, width, channels; /* input */
    long rows, columns, out;              /* output */
    long side, stride, padding;           /* of the kernel: the same for rows and columns */
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

/* The images with their padding: the images themselves if there is none. */
static float *padded_images(const Planes *how, const float *x, float *frame) {
    const long around = how->padding, rows = how->height + 2 * around, columns = how->width + 2 * around;
    if (!around) return (float *)x;
    framed(how->images, how->height, how->width, how->channels, around, around, rows, columns, x, frame);
    return frame;
}

/* Where a run of numbers begins relative to a pixel, and where its weights begin: `run` rows of `padded` numbers. */
typedef struct {
    long from, weights;
} Tap;

typedef struct {
    const Tap *taps;
    int count, run;
    const float *weights;
    long padded; /* a row of weights */
    long step;   /* from one pixel to the next, in the input */
    long move;   /* and in the output */
    int width;   /* channels written */
    const float *start; /* initial sums, by channel, in whole vectors; null: zeros */
} Taps;

INLINE void tap_sums(const int pixels, const int vecs, const Taps *how, const float *x, int channel, float *y, int width) {
    vec sums[PIXELS][WIDE];
    for (int i = 0; i < pixels; i++)
        for (int v = 0; v < vecs; v++) sums[i][v] = how->start ? load(how->start + channel + v * LANES) : (vec){0};
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

#if LANES == 16
/* The same for up to 8 channels, with half vectors, of which a core runs two at a time; for twice as many pixels. */
#define HALF 8
typedef float half __attribute__((vector_size(4 * HALF), aligned(4), may_alias));

INLINE half load_half(const float *from) { return *(const half *)from; }
INLINE void store_half(float *to, half v, int count) {
    _mm256_mask_storeu_ps(to, (__mmask8)((1u << count) - 1), (__m256)v);
}

INLINE void half_sums(const int pixels, const Taps *how, const float *x, float *y) {
    half sums[2 * PIXELS];
    for (int i = 0; i < pixels; i++) sums[i] = how->start ? load_half(how->start) : (half){0};
    for (int t = 0; t < how->count; t++) {
        const float *from = x + how->taps[t].from, *w = how->weights + how->taps[t].weights;
        for (int p = 0; p < how->run; p++, w += how->padded) {
            const half values = load_half(w);
            for (int i = 0; i < pixels; i++) sums[i] += from[i * how->step + p] * values;
        }
    }
    for (int i = 0; i < pixels; i++) store_half(y + i * how->move, sums[i], how->width);
}

#define HALVES(pixels) case pixels: half_sums(pixels, how, from, to); break;
static void tapped_by_halves(const Taps *how, long pixels, const float *x, float *y) {
    for (int i = 0, some; i < pixels; i += some) {
        some = part_of((int)pixels, i, 2 * PIXELS);
        const float *from = x + i * how->step;
        float *to = y + i * how->move;
        switch (some) {
            HALVES(1) HALVES(2) HALVES(3) HALVES(4) HALVES(5) HALVES(6)
            HALVES(7) HALVES(8) HALVES(9) HALVES(10) HALVES(11) HALVES(12)
        }
    }
}
#endif

/* A row of pixels. */
static void tapped(const Taps *how, long pixels, const float *x, float *y) {
#if LANES == 16
    if (how->width <= HALF) {
        tapped_by_halves(how, pixels, x, y);
        return;
    }
#endif
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

/* The number of values in the images with their padding. */
INLINE long framed_size(const Planes *how) {
    return how->images * (how->height + 2 * how->padding) * (how->width + 2 * how->padding) * how->channels;
}

/* Pixels (count, channels) with the channels of each padded with zeros to whole vectors. */
static const float *filled(long count, long channels, const float *from, float *to) {
    const long padded = whole_vectors(channels);
    if (padded == channels) return from;
    for (long i = 0; i < count; i++)
        for (long c = 0; c < padded; c += LANES)
            store(to + i * padded + c, load_some(from + i * channels + c, (int)least(LANES, channels - c)));
    return to;
}

/* Copies a matrix (rows, columns) with dense rows to one with other strides, block by block. */
static void turn(long rows, long columns, const float *from, long row, float *to, long to_row, long to_column) {
    for (long i = 0; i < rows; i += LANES)
        for (long j = 0; j < columns; j += LANES)
            for (long y = j; y < least(j + LANES, columns); y++)
                for (long x = i; x < least(i + LANES, rows); x++) to[x * to_row + y * to_column] = from[x * row + y];
}

/* Kernels (out, channels, side, side) as (side, side, channels, out), padded with zeros. */
static void kernels_by_place(const Planes *how, const float *w, float *to) {
    const long padded = whole_vectors(how->out), places = how->side * how->side;
    if (padded > how->out) memset(to, 0, places * how->channels * padded * sizeof(float));
    for (long p = 0; p < places; p++)
        for (long c = 0; c < how->channels; c++)
            for (long o = 0; o < how->out; o++)
                to[(p * how->channels + c) * padded + o] = w[(o * how->channels + c) * places + p];
}

/* y; `bias` may be null. `frame` has room for the images with their padding, `packed` for the kernels and the bias. */
static void convolve(const Planes *how, const float *x, const float *w, const float *bias, float *y, float *frame,
                     float *packed) {
    const long rows = how->height + 2 * how->padding, columns = how->width + 2 * how->padding;
    const long padded = whole_vectors(how->out), row = columns * how->channels;
    Tap taps[TAPS];
    kernels_by_place(how, w, packed);
    const float *start = bias ? filled(1, how->out, bias, packed + how->side * how->side * how->channels * padded) : NULL;
    for (long t = 0; t < how->side; t++) taps[t] = (Tap){t * row, t * how->side * how->channels * padded};
    const Taps sums = {taps, (int)how->side, (int)(how->side * how->channels), packed, padded,
                       how->stride * how->channels, how->out, (int)how->out, start};
    frame = padded_images(how, x, frame);
    for (long image = 0; image < how->images; image++)
        for (long r = 0; r < how->rows; r++, y += how->columns * how->out)
            tapped(&sums, how->columns, frame + (image * rows + r * how->stride) * row, y);
}

/* Kernels as (side, side, out, channels), padded with zeros. */
static void kernels_turned(const Planes *how, const float *w, float *to) {
    const long padded = whole_vectors(how->channels), places = how->side * how->side;
    if (padded > how->channels) memset(to, 0, places * how->out * padded * sizeof(float));
    for (long p = 0; p < places; p++)
        for (long o = 0; o < how->out; o++)
            for (long c = 0; c < how->channels; c++)
                to[(p * how->out + o) * padded + c] = w[(o * how->channels + c) * places + p];
}

/* Whether dx is faster to scatter from dy: each pixel of dy adds to the pixels under the kernel. To gather it at dx
 * would sum over the zeros around dy, with vectors that the channels do not fill. Depends only on the sizes. */
INLINE int gives_less(const Planes *how) {
    const double looked = (double)how->height * how->width * how->out * whole_vectors(how->channels) / (how->stride * how->stride);
    const double given = (double)how->rows * how->columns * (how->out + SPREAD) * how->channels;
    return given < looked;
}

/* dx by the product of a row of pixels of dy, (columns, out), with all kernels, (out, side * side * channels); each row
 * of the result is then added to its place. `w` is (out, side, side, channels); `given` has room for the product. */
static void give_back(const Planes *how, const float *dy, const float *w, float *dx, float *frame, float *given) {
    const long run = how->side * how->channels, all_places = how->side * run;
    const long rows = how->height + 2 * how->padding, columns = how->width + 2 * how->padding, row = columns * how->channels;
    float *sums = how->padding ? frame : dx;
    memset(sums, 0, how->images * rows * row * sizeof(float));
    for (long image = 0; image < how->images; image++)
        for (long r = 0; r < how->rows; r++) {
            product((int)how->columns, (int)all_places, (int)how->out,
                    (Matrix){dy + (image * how->rows + r) * how->columns * how->out, how->out, 1},
                    (Matrix){w, all_places, 1}, into(given, all_places, 1.0f, 0.0f));
            for (long a = 0; a < how->side; a++) {
                float *to = sums + (image * rows + r * how->stride + a) * row;
                for (long p = 0; p < how->columns; p++, to += how->stride * how->channels) {
                    const float *from = given + p * all_places + a * run;
                    for (long e = 0; e < run; e += LANES) {
                        const int count = (int)least(LANES, run - e);
                        store_some(to + e, load_some(to + e, count) + load_some(from + e, count), count);
                    }
                }
            }
        }
    if (!how->padding) return;
    for (long image = 0; image < how->images; image++)
        for (long r = 0; r < how->height; r++)
            memcpy(dx + (image * how->height + r) * how->width * how->channels,
                   frame + (image * rows + how->padding + r) * row + how->padding * how->channels,
                   how->width * how->channels * sizeof(float));
}

/* Kernels (out, channels, side, side) as (out, side, side, channels). */
static void kernels_by_pixel(const Planes *how, const float *w, float *to) {
    const long places = how->side * how->side;
    for (long o = 0; o < how->out; o++)
        for (long p = 0; p < places; p++)
            for (long c = 0; c < how->channels; c++)
                to[(o * places + p) * how->channels + c] = w[(o * how->channels + c) * places + p];
}

/* dx: its pixel (i, j) uses the kernel positions (a, b) for which (i + padding - a) / stride is an integer, and
 * likewise for j; these depend on the remainders of i and j. `frame` has room for dy with `side` zeros around it. */
static void convolve_back(const Planes *how, const float *dy, const float *w, float *dx, float *frame, float *packed) {
    const long around = how->side, rows = how->rows + 2 * around, columns = how->columns + 2 * around;
    const long padded = whole_vectors(how->channels), row = columns * how->out;
    if (gives_less(how)) {
        kernels_by_pixel(how, w, packed);
        give_back(how, dy, packed, dx, frame, frame + framed_size(how));
        return;
    }
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
                               (int)how->channels, NULL};
            const long pixels = (how->width - across + how->stride - 1) / how->stride;
            for (long image = 0; image < how->images; image++)
                for (long i = first, r = 0; i < how->height; i += how->stride, r++)
                    tapped(&sums, pixels, frame + (image * rows + around + r) * row + around * how->out,
                           dx + ((image * how->height + i) * how->width + across) * how->channels);
        }
}

/* `rows` numbers at each pixel, times some channels of dy, whose pixels are `step` apart, summed over all pixels. */
INLINE void pixel_sums(const int rows, const int vecs, const Planes *how, const float *frame, long frame_rows, long row,
                       const float *dy, float *to, long step) {
    vec sums[TALL][WIDE];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vecs; v++) sums[i][v] = (vec){0};
    const long move = how->stride * how->channels;
    for (long image = 0; image < how->images; image++)
        for (long r = 0; r < how->rows; r++) {
            const float *x = frame + (image * frame_rows + r * how->stride) * row;
            const float *g = dy + (image * how->rows + r) * how->columns * step;
            for (long p = 0; p < how->columns; p++, x += move, g += step) {
                vec values[WIDE];
                for (int v = 0; v < vecs; v++) values[v] = load(g + v * LANES);
                for (int i = 0; i < rows; i++)
                    for (int v = 0; v < vecs; v++) sums[i][v] += x[i] * values[v];
            }
        }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vecs; v++) store(to + i * step + v * LANES, sums[i][v]);
}

#define PIXEL_SUMS(rows, vecs)                                                                                        \
    case rows: pixel_sums(rows, vecs, how, frame, frame_rows, row, dy, to, step); break;
#define BY_WIDTH(vecs)                                                                                                \
    static void pixel_sums_##vecs(const Planes *how, int rows, const float *frame, long frame_rows, long row,         \
                                  const float *dy, float *to, long step) {                                            \
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

#if LANES == 16
/* The same for up to 8 channels, with half vectors, for twice as many numbers. */
INLINE void half_pixel_sums(const int rows, const Planes *how, const float *frame, long frame_rows, long row,
                            const float *dy, float *to, long step) {
    half sums[2 * TALL];
    for (int i = 0; i < rows; i++) sums[i] = (half){0};
    const long move = how->stride * how->channels;
    for (long image = 0; image < how->images; image++)
        for (long r = 0; r < how->rows; r++) {
            const float *x = frame + (image * frame_rows + r * how->stride) * row;
            const float *g = dy + (image * how->rows + r) * how->columns * step;
            for (long p = 0; p < how->columns; p++, x += move, g += step) {
                const half values = load_half(g);
                for (int i = 0; i < rows; i++) sums[i] += x[i] * values;
            }
        }
    for (int i = 0; i < rows; i++) store_half(to + i * step, sums[i], HALF);
}

#define HALF_ROWS(rows) case rows: half_pixel_sums(rows, how, from, frame_rows, row, dy, at, padded); break;
static void pixels_by_halves(const Planes *how, int run, const float *frame, long frame_rows, long row, const float *dy,
                             float *to, long padded) {
    for (int i = 0, some; i < run; i += some) {
        some = part_of(run, i, 2 * TALL);
        const float *from = frame + i;
        float *at = to + i * padded;
        switch (some) {
            HALF_ROWS(1) HALF_ROWS(2) HALF_ROWS(3) HALF_ROWS(4) HALF_ROWS(5) HALF_ROWS(6)
            HALF_ROWS(7) HALF_ROWS(8) HALF_ROWS(9) HALF_ROWS(10) HALF_ROWS(11) HALF_ROWS(12)
        }
    }
}
#endif

/* dw (out, side, side, channels) or (out, channels, side, side), by its strides; `frame` has room for the images with
 * their padding and for dy in whole vectors, `packed` for the sums (side, side, channels, out). */
static void kernel_gradient(const Planes *how, const float *x, const float *dy, float *dw, const long *strides,
                            float *frame, float *packed) {
    const long rows = how->height + 2 * how->padding, columns = how->width + 2 * how->padding;
    const long padded = whole_vectors(how->out), row = columns * how->channels, run = how->side * how->channels;
    dy = filled(how->images * how->rows * how->columns, how->out, dy, frame + framed_size(how));
    frame = padded_images(how, x, frame);
    for (long a = 0; a < how->side; a++) {
#if LANES == 16
        if (how->out <= HALF) {
            pixels_by_halves(how, (int)run, frame + a * row, rows, row, dy, packed + a * run * padded, padded);
            continue;
        }
#endif
        for (int channel = 0; channel < padded; channel += PANEL) {
            const int vecs = smaller(WIDE, (int)(padded - channel) / LANES);
            for (int i = 0, some; i < run; i += some) {
                some = part_of((int)run, i, TALL);
                const float *from = frame + a * row + i, *g = dy + channel;
                float *to = packed + (a * run + i) * padded + channel;
                switch (vecs) {
                case 1: pixel_sums_1(how, some, from, rows, row, g, to, padded); break;
                case 2: pixel_sums_2(how, some, from, rows, row, g, to, padded); break;
#if WIDE > 2
                case 3: pixel_sums_3(how, some, from, rows, row, g, to, padded); break;
                default: pixel_sums_4(how, some, from, rows, row, g, to, padded); break;
#endif
                }
            }
        }
    }
    for (long a = 0; a < how->side; a++)
        for (long b = 0; b < how->side; b++)
            turn(how->channels, how->out, packed + (a * how->side + b) * how->channels * padded, padded,
                 dw + a * strides[2] + b * strides[3], strides[1], strides[0]);
}
