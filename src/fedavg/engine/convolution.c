/* A convolution of small planes and its gradients by Fourier transforms; convolution.py says which ones fit.
 *
 * Planes of at most N x N are transformed, multiplied channel by channel at each frequency, and transformed back: an
 * eighth of the products that a 5 x 5 kernel on 14 x 14 planes takes directly. B images of H x W (h x w after), `in`
 * and `out` channels, each a multiple of LANES, K x K kernels, P zeros around an image with P < K and
 * max(H, W) + P <= N, so that what wraps around in a plane of N x N falls outside what is read. All arrays are dense:
 * images (B, H, W, channels), kernels (out, in, K, K), bias (out). Single-threaded. The output may be pooled: see
 * pooling.h.
 *
 * A spectrum of `rows` vectors of `width` channels is stored as [frequency][row][width / LANES][real,
 * imaginary][LANES]. Spectra are ten times as large as their planes, so they are made for few images and LANES channels
 * at a time, used and made again: that is cheaper than fetching them from beyond the cache.
 */
#include <stdlib.h>

#include "pooling.h"

/* Rows of a product whose complex sums fit in the registers, and a divisor of LANES that fits. */
#if LANES == 16
#define ROWS 12
#define DIVISOR 8
#elif LANES == 8
#define ROWS 5
#define DIVISOR 4
#else
#define ROWS 12
#define DIVISOR 4
#endif
#define PAIR (2 * LANES)

#define N 16
/* The spectrum of a real plane has N / 2 + 1 distinct columns, and in the first and last of them as many distinct
 * rows. */
#define HALF (N / 2 + 1)
#define FREQUENCIES ((HALF - 2) * N + 2 * HALF)
/* Images that are transformed at a time: the spectra of a few stay in the cache. */
#define CHUNK 64
/* Spectra of real planes come out doubled, and a transform and its inverse multiply by N x N. */
#define SCALE (1.0f / (4 * N * N))

static inline int rows_of(int column) { return column == 0 || column == HALF - 1 ? HALF : N; }

/* ---- transforms: LANES planes at a time ---- */

INLINE void transform_4(vec re[4], vec im[4]) {
    const vec even_re = re[0] + re[2], even_im = im[0] + im[2], differ_re = re[0] - re[2], differ_im = im[0] - im[2];
    const vec odd_re = re[1] + re[3], odd_im = im[1] + im[3], turned_re = im[1] - im[3], turned_im = re[3] - re[1];
    re[0] = even_re + odd_re, im[0] = even_im + odd_im;
    re[1] = differ_re + turned_re, im[1] = differ_im + turned_im;
    re[2] = even_re - odd_re, im[2] = even_im - odd_im;
    re[3] = differ_re - turned_re, im[3] = differ_im - turned_im;
}

/* Times e^(-2 pi i turn / 16). */
INLINE void rotate(vec *re, vec *im, const int turn) {
    static const float cosine[10] = {1, 0.92387953f, 0.70710678f, 0.38268343f, 0, 0, -0.70710678f, 0, 0, -0.92387953f};
    static const float sine[10] = {0, 0.38268343f, 0.70710678f, 0.92387953f, 1, 0, 0.70710678f, 0, 0, -0.38268343f};
    const vec a = *re, b = *im;
    if (turn == 4) *re = b, *im = -a;
    else if (turn) *re = a * cosine[turn] + b * sine[turn], *im = b * cosine[turn] - a * sine[turn];
}

/* In place, as four by four; with re and im swapped, the inverse times N. */
static void transform(vec re[N], vec im[N]) {
    vec part_re[4][4], part_im[4][4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        vec a[4] = {re[j], re[j + 4], re[j + 8], re[j + 12]}, b[4] = {im[j], im[j + 4], im[j + 8], im[j + 12]};
        transform_4(a, b);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            rotate(&a[k], &b[k], j * k);
            part_re[k][j] = a[k], part_im[k][j] = b[k];
        }
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        transform_4(part_re[k], part_im[k]);
#pragma GCC unroll 4
        for (int m = 0; m < 4; m++) re[k + 4 * m] = part_re[k][m], im[k + 4 * m] = part_im[k][m];
    }
}

/* Twice the spectrum of real planes (height, width) of vectors `step` floats apart, put at (shift, shift) in N x N.
 * Two rows are transformed as the real and imaginary part of one. */
static void to_spectrum(const float *plane, long step, int height, int width, int shift, float *out, long stride) {
    vec re[HALF][N], im[HALF][N];
    for (int row = 0; row < N; row += 2) {
        vec two[2][N];
        memset(two, 0, sizeof two);
        for (int which = 0; which < 2; which++) {
            const int from = row + which - shift;
            if (from < 0 || from >= height) continue;
            for (int column = 0; column < width; column++)
                two[which][column + shift] = load(plane + (from * width + column) * step);
        }
        if (row + 1 >= shift && row < shift + height) transform(two[0], two[1]);
        for (int k = 0; k < HALF; k++) {
            const int back = (N - k) % N;
            re[k][row] = two[0][k] + two[0][back], im[k][row] = two[1][k] - two[1][back];
            re[k][row + 1] = two[1][k] + two[1][back], im[k][row + 1] = two[0][back] - two[0][k];
        }
    }
    for (int k = 0; k < HALF; k++) {
        transform(re[k], im[k]);
        for (int row = 0; row < rows_of(k); row++, out += stride) {
            store(out, re[k][row]);
            store(out + LANES, im[k][row]);
        }
    }
}

/* The inverse, N x N times too large: the rows [first, first + height) of N columns each. */
static void from_spectrum(const float *in, long stride, int first, int height, vec plane[][N]) {
    vec re[HALF][N], im[HALF][N];
    for (int k = 0; k < HALF; k++) {
        for (int row = 0; row < rows_of(k); row++, in += stride) re[k][row] = load(in), im[k][row] = load(in + LANES);
        for (int row = rows_of(k); row < N; row++) re[k][row] = re[k][N - row], im[k][row] = -im[k][N - row];
        transform(im[k], re[k]);
    }
    for (int i = 0; i < height; i += 2) {
        const int a = first + i, b = smaller(a + 1, N - 1);
        vec one[N], other[N];
        for (int k = 0; k < HALF; k++) one[k] = re[k][a] - im[k][b], other[k] = im[k][a] + re[k][b];
        for (int k = HALF; k < N; k++)
            one[k] = re[N - k][a] + im[N - k][b], other[k] = re[N - k][b] - im[N - k][a];
        transform(other, one);
        memcpy(plane[i], one, sizeof one);
        if (i + 1 < height) memcpy(plane[i + 1], other, sizeof other);
    }
}

/* ---- products of complex matrices, one for each frequency ---- */

/* out (rows, LANES) = or += sum over k of left[k][row] right[k], with the conjugate of either if asked. Inlined for
 * each number of rows, so that the sums are registers. `left` is walked in `blocks` of `length`. */
INLINE void block(const int rows, const int conjugate_left, const int conjugate_right, const int add, int blocks,
                  int length, long step, const float *left, long row_step, const float *right, long right_step,
                  float *out, long out_step) {
    vec re[ROWS], im[ROWS];
    for (int r = 0; r < rows; r++) {
        re[r] = add ? load(out + r * out_step) : (vec){0};
        im[r] = add ? load(out + r * out_step + LANES) : (vec){0};
    }
    for (int i = 0; i < blocks; i++)
        for (int k = 0; k < length; k++, right += right_step) {
            const float *a = left + i * PAIR + k * step;
            const vec b_re = load(right), b_im = load(right + LANES);
            for (int r = 0; r < rows; r++) {
                const float a_re = a[r * row_step], a_im = a[r * row_step + LANES];
                re[r] += a_re * b_re;
                if (conjugate_left || conjugate_right) re[r] += a_im * b_im;
                else re[r] -= a_im * b_im;
                if (conjugate_right) im[r] -= a_re * b_im;
                else im[r] += a_re * b_im;
                if (conjugate_left) im[r] -= a_im * b_re;
                else im[r] += a_im * b_re;
            }
        }
    for (int r = 0; r < rows; r++) {
        store(out + r * out_step, re[r]);
        store(out + r * out_step + LANES, im[r]);
    }
}

/* out (rows, LANES) = left (rows, depth) right (depth, LANES), or += the same with the conjugate of right. The steps
 * are the distances between rows, in floats. */
INLINE void product(const int conjugate, const int add, int rows, int depth, const float *left, long left_step,
                    const float *right, long right_step, float *out, long out_step) {
    const int parts = (rows + ROWS - 1) / ROWS;
    for (int part = 0, row = 0, count; part < parts; part++, row += count) {
        count = (rows - row) / (parts - part); /* parts of about the same size: few rows leave units idle */
#define OF(n)                                                                                                         \
    case n:                                                                                                           \
        block(n, 0, conjugate, add, depth / LANES, LANES, 1, left + row * left_step, left_step, right, right_step,    \
              out + row * out_step, out_step);                                                                        \
        break;
        switch (count) {
            OF(1) OF(2) OF(3) OF(4) OF(5)
#if ROWS > 5
            OF(6) OF(7) OF(8) OF(9) OF(10) OF(11) OF(12)
#endif
        }
#undef OF
    }
}

/* out (in, LANES) = conjugate of left (rows, in), transposed, times right (rows, LANES). */
static void transposed_product(int rows, int in, const float *left, const float *right, float *out) {
    for (int i = 0; i < in; i += DIVISOR)
        block(DIVISOR, 1, 0, 0, 1, rows, 2L * in, left + i / LANES * PAIR + i % LANES, 1, right, PAIR, out + i * PAIR,
              PAIR);
}

/* ---- the convolution ---- */

/* From one frequency to the next; a little more than dense, since strides of a power of two share few cache sets. */
static long stride_of(int rows, int width) { return (long)rows * 2 * width + PAIR; }

/* Memory that is kept for the next call of this thread: a new allocation costs as much as the products. */
static float *scratch(long floats) {
    static _Thread_local float *kept;
    static _Thread_local long size;
    if (floats > size) {
        free(kept);
        kept = aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64);
        size = kept ? floats : 0;
    }
    return kept;
}

/* For `some` of the `channels`. */
static void images_to_spectrum(const float *images, int count, int height, int width, int channels, int some, int shift,
                               float *out) {
    for (int b = 0; b < count; b++)
        for (int c = 0; c < some; c += LANES)
            to_spectrum(images + (long)b * height * width * channels + c, channels, height, width, shift,
                        out + 2L * (b * some + c), stride_of(count, some));
}

/* The gradients of pooled images, for LANES of the `channels`, spread over the pixels that were pooled. */
static void pooled_to_spectrum(const Pooling *how, const float *pooled, const unsigned char *from, int count, int height,
                               int width, int channels, int shift, float *out) {
    vec plane[N * N];
    const long size = (long)how->height * how->width * channels;
    for (int b = 0; b < count; b++) {
        spread(how, pooled + b * size, from + b * size, channels, height, width, plane);
        to_spectrum((const float *)plane, LANES, height, width, shift, out + b * PAIR, stride_of(count, LANES));
    }
}

/* `bias` may be null. */
static void images_from_spectrum(const float *in, int count, int height, int width, int channels, int some, int shift,
                                 const float *bias, float *images) {
    vec plane[N][N];
    for (int b = 0; b < count; b++)
        for (int c = 0; c < some; c += LANES) {
            float *image = images + (long)b * height * width * channels + c;
            from_spectrum(in + 2L * (b * some + c), stride_of(count, some), shift, height, plane);
            const vec added = bias ? load(bias + c) : (vec){0};
            for (int i = 0; i < height; i++)
                for (int j = 0; j < width; j++)
                    store(image + (i * width + j) * channels, plane[i][j + shift] + added);
        }
}

/* The same for LANES of the channels, pooled. */
static void pooled_from_spectrum(const Pooling *how, const float *in, int count, int height, int width, int channels,
                                 int shift, const float *bias, float *pooled, unsigned char *from) {
    vec plane[N][N];
    const vec added = bias ? load(bias) : (vec){0};
    const long size = (long)how->height * how->width * channels;
    for (int b = 0; b < count; b++) {
        from_spectrum(in + b * PAIR, stride_of(count, LANES), shift, height, plane);
        pool(how, plane[0] + shift, N, height, width, added, channels, pooled + b * size, from + b * size);
    }
}

/* [rows][width] of flipped kernels; the skips are the number of kernels to the next row or column of channels. */
static void kernels_to_spectrum(const float *kernels, int K, int rows, long row_skip, int width, long column_skip,
                                float *out) {
    float taps[N * N * LANES];
    const int area = K * K;
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < width; column += LANES) {
            for (int lane = 0; lane < LANES; lane++) {
                const float *kernel = kernels + (row * row_skip + (column + lane) * column_skip) * area;
                for (int t = 0; t < area; t++) taps[t * LANES + lane] = kernel[area - 1 - t] * SCALE;
            }
            to_spectrum(taps, LANES, K, K, 0, out + 2L * (row * width + column), stride_of(rows, width));
        }
}

/* Adds the spectrum [in][LANES] to the kernels (LANES, in, K, K). */
static void add_to_kernels(const float *spectrum, int K, int in, float *kernels) {
    vec plane[N][N];
    const int area = K * K;
    for (int i = 0; i < in; i++) {
        from_spectrum(spectrum + i * PAIR, stride_of(in, LANES), 0, K, plane);
        for (int lane = 0; lane < LANES; lane++) {
            float *kernel = kernels + ((long)lane * in + i) * area;
            for (int t = 0; t < area; t++) kernel[area - 1 - t] += plane[t / K][t % K][lane] * SCALE;
        }
    }
}

int lanes(void) { return LANES; }

/* y = convolution of x by w, plus bias; pooled unless `from` is null. Returns nonzero if out of memory. */
int convolve(int batch, int H, int W, int in, int out, int K, int P, int window, int stride, int tall, int wide,
             int relu, const float *x, const float *w, const float *bias, float *y, unsigned char *from) {
    const Pooling how = {window, stride, tall, wide, relu};
    const int h = H + 2 * P - K + 1, width = W + 2 * P - K + 1, shift = K - 1 - P;
    const long of_x = FREQUENCIES * stride_of(CHUNK, in), of_w = FREQUENCIES * stride_of(in, LANES);
    float *images = scratch(of_x + of_w + FREQUENCIES * stride_of(CHUNK, LANES));
    if (!images) return 1;
    float *kernels = images + of_x, *results = kernels + of_w;
    for (int first = 0; first < batch; first += CHUNK) {
        const int count = smaller(CHUNK, batch - first);
        images_to_spectrum(x + (long)first * H * W * in, count, H, W, in, in, 0, images);
        for (int o = 0; o < out; o += LANES) {
            kernels_to_spectrum(w + (long)o * in * K * K, K, in, 1, LANES, in, kernels);
            for (int f = 0; f < FREQUENCIES; f++)
                product(0, 0, count, in, images + f * stride_of(count, in), 2L * in,
                        kernels + f * stride_of(in, LANES), PAIR, results + f * stride_of(count, LANES), PAIR);
            const float *added = bias ? bias + o : NULL;
            if (from) {
                const long at = (long)first * how.height * how.width * out + o;
                pooled_from_spectrum(&how, results, count, h, width, out, shift, added, y + at, from + at);
            } else
                images_from_spectrum(results, count, h, width, out, LANES, shift, added,
                                     y + (long)first * h * width * out + o);
        }
    }
    return 0;
}

/* The gradients dw and db, and dx unless it is null, from that of y, which was pooled unless `from` is null. Returns
 * nonzero if out of memory. */
int convolve_backward(int batch, int H, int W, int in, int out, int K, int P, int window, int stride, int tall,
                      int wide, const float *dy, const unsigned char *from, const float *x, const float *w, float *dx,
                      float *dw, float *db) {
    const Pooling how = {window, stride, tall, wide, 0}; /* `from` records what ReLU did */
    const int h = H + 2 * P - K + 1, width = W + 2 * P - K + 1, shift = K - 1 - P;
    const long of_x = FREQUENCIES * stride_of(CHUNK, in), of_w = FREQUENCIES * stride_of(in, LANES);
    float *images = scratch(2 * of_x + of_w + FREQUENCIES * stride_of(CHUNK, LANES));
    if (!images) return 1;
    float *back = images + of_x, *kernels = back + of_x, *errors = kernels + of_w;
    memset(dw, 0, (long)out * in * K * K * sizeof(float));
    memset(db, 0, out * sizeof(float));
    for (int first = 0; first < batch; first += CHUNK) {
        const int count = smaller(CHUNK, batch - first);
        images_to_spectrum(x + (long)first * H * W * in, count, H, W, in, in, 0, images);
        if (dx) memset(back, 0, FREQUENCIES * stride_of(count, in) * sizeof(float));
        for (int o = 0; o < out; o += LANES) {
            if (from) {
                const long at = (long)first * how.height * how.width * out + o;
                pooled_to_spectrum(&how, dy + at, from + at, count, h, width, out, shift, errors);
            } else
                images_to_spectrum(dy + (long)first * h * width * out + o, count, h, width, out, LANES, shift, errors);
            /* The first frequency is the sum over the plane, doubled. */
            for (int b = 0; b < count; b++) store(db + o, load(db + o) + 0.5f * load(errors + b * PAIR));
            for (int f = 0; f < FREQUENCIES; f++)
                transposed_product(count, in, images + f * stride_of(count, in), errors + f * stride_of(count, LANES),
                                   kernels + f * stride_of(in, LANES));
            add_to_kernels(kernels, K, in, dw + (long)o * in * K * K);
            if (!dx) continue;
            kernels_to_spectrum(w + (long)o * in * K * K, K, LANES, in, in, 1, kernels);
            for (int f = 0; f < FREQUENCIES; f++)
                for (int i = 0; i < in; i += LANES)
                    product(1, 1, count, LANES, errors + f * stride_of(count, LANES), PAIR,
                            kernels + f * stride_of(LANES, in) + 2 * i, 2L * in, back + f * stride_of(count, in) + 2 * i,
                            2L * in);
        }
        if (dx) images_from_spectrum(back, count, H, W, in, in, 0, NULL, dx + (long)first * H * W * in);
    }
    return 0;
}
