/* The convolution of a first layer, whose images have few channels, with pooling, and its gradients.
 *
 * B images of H x W, `in` channels before and `out` after, a multiple of LANES; K x K kernels, P zeros around an image.
 * All arrays are dense: images (B, H, W, channels), kernels (out, in, K, K), bias (out). The output is pooled
 * (pooling.h): only one plane of the values before pooling, or of their gradient, exists at a time. Single-threaded.
 */
#include <stdlib.h>

#include "pooling.h"

/* Adjacent pixels, or taps of a kernel, whose sums fit in the registers. */
#if LANES == 8
#define MOST 10
#else
#define MOST 15
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

/* LANES channels of `pixels` neighbours in a row. Inlined for each number of pixels, so that the sums are registers. */
INLINE void pixels_of(const int pixels, int K, int in, int out, const float *x, long row, const float *w, vec *y) {
    vec sums[MOST];
    for (int p = 0; p < pixels; p++) sums[p] = (vec){0};
    for (int k = 0; k < K; k++)
        for (int t = 0; t < K * in; t++, w += out) {
            const vec weight = load(w);
            for (int p = 0; p < pixels; p++) sums[p] += x[k * row + t + p * in] * weight;
        }
    for (int p = 0; p < pixels; p++) y[p] = sums[p];
}

/* Adds to the gradients of `taps` neighbours in a row of the kernels, for LANES channels of a plane. */
INLINE void taps_of(const int taps, int in, int out, int height, int width, const float *x, long row, const vec *dy,
                    float *dw) {
    vec sums[MOST];
    for (int t = 0; t < taps; t++) sums[t] = load(dw + t * out);
    for (int i = 0; i < height; i++)
        for (int j = 0; j < width; j++)
            for (int t = 0; t < taps; t++) sums[t] += x[i * row + j * in + t] * dy[i * width + j];
    for (int t = 0; t < taps; t++) store(dw + t * out, sums[t]);
}

/* Calls OF(n) for an n that is known only at run time. */
#if MOST == 10
#define EACH OF(1) OF(2) OF(3) OF(4) OF(5) OF(6) OF(7) OF(8) OF(9) OF(10)
#else
#define EACH OF(1) OF(2) OF(3) OF(4) OF(5) OF(6) OF(7) OF(8) OF(9) OF(10) OF(11) OF(12) OF(13) OF(14) OF(15)
#endif

static void plane_of(int K, int in, int out, int height, int width, const float *x, long row, const float *w, vec *y) {
    const int parts = (width + MOST - 1) / MOST;
    for (int i = 0; i < height; i++)
        for (int part = 0, j = 0, count; part < parts; part++, j += count) {
            count = (width - j) / (parts - part); /* parts of about the same size */
#define OF(n)                                                                                                         \
    case n:                                                                                                           \
        pixels_of(n, K, in, out, x + i * row + j * in, row, w, y + i * width + j);                                    \
        break;
            switch (count) { EACH }
#undef OF
        }
}

static void kernels_of(int K, int in, int out, int height, int width, const float *x, long row, const vec *dy,
                       float *dw) {
    const int across = K * in, parts = (across + MOST - 1) / MOST;
    for (int k = 0; k < K; k++)
        for (int part = 0, t = 0, count; part < parts; part++, t += count) {
            count = (across - t) / (parts - part);
#define OF(n)                                                                                                         \
    case n:                                                                                                           \
        taps_of(n, in, out, height, width, x + k * row + t, row, dy, dw + ((long)k * across + t) * out);              \
        break;
            switch (count) { EACH }
#undef OF
        }
}

int lanes(void) { return LANES; }

/* y = convolution of x by w, plus bias (which may be null), pooled. Returns nonzero if out of memory. */
int convolve(int batch, int H, int W, int in, int out, int K, int P, int window, int stride, int tall, int wide,
             int relu, const float *x, const float *w, const float *bias, float *y, unsigned char *from) {
    const Pooling how = {window, stride, tall, wide, relu};
    const int height = H + 2 * P - K + 1, width = W + 2 * P - K + 1;
    const long row = (W + 2L * P) * in, image = (H + 2 * P) * row, area = (long)height * width * LANES;
    float *plane = aligned_alloc(64, (area + image + (long)K * K * in * out + 15) / 16 * 64);
    if (!plane) return 1;
    float *padded = plane + area, *kernels = padded + image;
    turn(w, out, in, K * K, kernels);
    for (int b = 0; b < batch; b++) {
        pad(x + (long)b * H * W * in, H, W, in, P, padded);
        for (int o = 0; o < out; o += LANES) {
            const long at = (long)b * how.height * how.width * out + o;
            plane_of(K, in, out, height, width, padded, row, kernels + o, (vec *)plane);
            pool(&how, (vec *)plane, width, height, width, bias ? load(bias + o) : (vec){0}, out, y + at, from + at);
        }
    }
    free(plane);
    return 0;
}

/* The gradients dw and db from that of the pooled y; w and dx are not used. Returns nonzero if out of memory. */
int convolve_backward(int batch, int H, int W, int in, int out, int K, int P, int window, int stride, int tall,
                      int wide, const float *dy, const unsigned char *from, const float *x, const float *w, float *dx,
                      float *dw, float *db) {
    const Pooling how = {window, stride, tall, wide, 0}; /* `from` records what ReLU did */
    const int height = H + 2 * P - K + 1, width = W + 2 * P - K + 1;
    const long row = (W + 2L * P) * in, image = (H + 2 * P) * row, area = (long)height * width * LANES;
    float *plane = aligned_alloc(64, (area + image + (long)K * K * in * out + 15) / 16 * 64);
    if (!plane) return 1;
    float *padded = plane + area, *kernels = padded + image;
    memset(kernels, 0, (long)K * K * in * out * sizeof(float));
    memset(db, 0, out * sizeof(float));
    for (int b = 0; b < batch; b++) {
        pad(x + (long)b * H * W * in, H, W, in, P, padded);
        for (int o = 0; o < out; o += LANES) {
            const long at = (long)b * how.height * how.width * out + o;
            spread(&how, dy + at, from + at, out, height, width, (vec *)plane);
            for (long pixel = 0; pixel < area; pixel += LANES) store(db + o, load(db + o) + load(plane + pixel));
            kernels_of(K, in, out, height, width, padded, row, (vec *)plane, kernels + o);
        }
    }
    turn_back(kernels, out, in, K * K, dw);
    free(plane);
    return 0;
}
