/* The convolution of a first layer, whose images have few channels, with pooling, and its gradients.
 *
 * B images of H x W, `in` channels before and `out` after, a multiple of LANES; K x K kernels, P zeros around an image.
 * All arrays are dense: images (B, H, W, channels), kernels (out, in, K, K), bias (out). What comes out is pooled
 * (vectors.h), so that the large planes before pooling, and their gradients, never leave the registers. Single-threaded.
 */
#include <stdlib.h>

#include "vectors.h"

/* Pooled pixels side by side, and taps of a kernel, whose sums fit in the registers. */
#if LANES == 8
#define CELLS 2
#define TAPS 8
#else
#define CELLS 5
#define TAPS 15
#endif

/* An image with zeros around it. */
static void pad(const float *image, int H, int W, int in, int P, float *padded) {
    const long row = (W + 2L * P) * in;
    memset(padded, 0, (H + 2 * P) * row * sizeof(float));
    for (int i = 0; i < H; i++)
        memcpy(padded + (i + P) * row + P * in, image + (long)i * W * in, W * in * sizeof(float));
}

/* Kernels (out, in, taps) as (taps, in, out), or back. */
static void turn(const float *kernels, int out, int in, int taps, float *turned) {
    for (int o = 0; o < out; o++)
        for (int c = 0; c < in; c++)
            for (int t = 0; t < taps; t++)
                turned[((long)t * in + c) * out + o] = kernels[((long)o * in + c) * taps + t];
}

static void turn_back(const float *turned, int out, int in, int taps, float *kernels) {
    for (int o = 0; o < out; o++)
        for (int c = 0; c < in; c++)
            for (int t = 0; t < taps; t++)
                kernels[((long)o * in + c) * taps + t] = turned[((long)t * in + c) * out + o];
}

/* LANES channels of `cells` pooled pixels. Inlined for each number, so that the sums are registers. */
INLINE void cells_of(const int cells, int K, int in, int out, const float *x, long row, const float *w, vec bias,
                     int relu, float *y, unsigned char *from) {
    vec sums[CELLS][4];
    for (int cell = 0; cell < cells; cell++)
        for (int p = 0; p < 4; p++) sums[cell][p] = bias;
    for (int k = 0; k < K; k++)
        for (int t = 0; t < K * in; t++, w += out) {
            const vec weight = load(w);
            const float *at = x + k * row + t;
            for (int cell = 0; cell < cells; cell++)
                for (int p = 0; p < 4; p++) sums[cell][p] += at[p / 2 * row + (2 * cell + p % 2) * in] * weight;
        }
    for (int cell = 0; cell < cells; cell++) pool(sums[cell], relu, y + cell * out, from + cell * out);
}

/* Adds to the gradients of `taps` neighbours in a row of the kernels, for LANES channels and a whole image. */
INLINE void taps_of(const int taps, int in, int out, int height, int width, const float *x, long row, const float *dy,
                    const unsigned char *from, float *dw) {
    vec sums[TAPS], four[4];
    for (int t = 0; t < taps; t++) sums[t] = load(dw + t * out);
    for (int i = 0; i < height; i++)
        for (int j = 0; j < width; j++, dy += out, from += out) {
            spread(dy, from, four);
            for (int p = 0; p < 4; p++) {
                const float *at = x + (2 * i + p / 2) * row + (2 * j + p % 2) * in;
                for (int t = 0; t < taps; t++) sums[t] += at[t] * four[p];
            }
        }
    for (int t = 0; t < taps; t++) store(dw + t * out, sums[t]);
}

int lanes(void) { return LANES; }

/* y = convolution of x by w, plus bias (which may be null), pooled. Not zero if there is no memory. */
int convolve(int batch, int H, int W, int in, int out, int K, int P, int relu, const float *x, const float *w,
             const float *bias, float *y, unsigned char *from) {
    const int height = (H + 2 * P - K + 1) / 2, width = (W + 2 * P - K + 1) / 2;
    const int parts = (width + CELLS - 1) / CELLS;
    const long row = (W + 2L * P) * in, image = (H + 2 * P) * row;
    float *padded = malloc((image + (long)K * K * in * out) * sizeof(float)), *kernels = padded + image;
    if (!padded) return 1;
    turn(w, out, in, K * K, kernels);
    for (int b = 0; b < batch; b++) {
        pad(x + (long)b * H * W * in, H, W, in, P, padded);
        for (int i = 0; i < height; i++)
            for (int part = 0, j = 0, count; part < parts; part++, j += count, y += count * out, from += count * out) {
                count = (width - j) / (parts - part);
                for (int o = 0; o < out; o += LANES)
#define OF(n)                                                                                                         \
    case n:                                                                                                           \
        cells_of(n, K, in, out, padded + 2 * i * row + 2 * j * in, row, kernels + o, bias ? load(bias + o) : (vec){0}, \
                 relu, y + o, from + o);                                                                              \
        break;
                    switch (count) {
                        OF(1) OF(2)
#if CELLS > 2
                        OF(3) OF(4) OF(5)
#endif
                    }
#undef OF
            }
    }
    free(padded);
    return 0;
}

/* The gradients dw and db from that of the pooled y; w and dx are not used. Not zero if there is no memory. */
int convolve_backward(int batch, int H, int W, int in, int out, int K, int P, const float *dy,
                      const unsigned char *from, const float *x, const float *w, float *dx, float *dw, float *db) {
    const int height = (H + 2 * P - K + 1) / 2, width = (W + 2 * P - K + 1) / 2;
    const int across = K * in, parts = (across + TAPS - 1) / TAPS;
    const long row = (W + 2L * P) * in, image = (H + 2 * P) * row, pooled = (long)height * width * out;
    float *padded = malloc((image + (long)K * across * out) * sizeof(float)), *kernels = padded + image;
    if (!padded) return 1;
    memset(kernels, 0, (long)K * across * out * sizeof(float));
    memset(db, 0, out * sizeof(float));
    for (int b = 0; b < batch; b++, dy += pooled, from += pooled) {
        pad(x + (long)b * H * W * in, H, W, in, P, padded);
        for (int o = 0; o < out; o += LANES) {
            vec sum = load(db + o), four[4];
            for (long at = o; at < pooled; at += out) {
                spread(dy + at, from + at, four);
                sum += (four[0] + four[1]) + (four[2] + four[3]);
            }
            store(db + o, sum);
            for (int k = 0; k < K; k++)
                for (int part = 0, t = 0, count; part < parts; part++, t += count) {
                    count = (across - t) / (parts - part);
#define OF(n)                                                                                                         \
    case n:                                                                                                           \
        taps_of(n, in, out, height, width, padded + k * row + t, row, dy + o, from + o,                               \
                kernels + ((long)k * across + t) * out + o);                                                          \
        break;
                    switch (count) {
                        OF(1) OF(2) OF(3) OF(4) OF(5) OF(6) OF(7) OF(8)
#if TAPS > 8
                        OF(9) OF(10) OF(11) OF(12) OF(13) OF(14) OF(15)
#endif
                    }
#undef OF
                }
        }
    }
    turn_back(kernels, out, in, K * K, dw);
    free(padded);
    return 0;
}
