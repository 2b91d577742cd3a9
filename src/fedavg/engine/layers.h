/* Norms, softmax, the loss over classes and embeddings, forward and backward. Arrays are dense unless stated. */
#pragma once
#include <stdint.h>

#include "pointwise.h"

/* The sum of a row, and of products of two rows. */
INLINE float sum_of(long n, const float *x) {
    vec sum = {0};
    for (long i = 0; i < n; i += LANES) sum += load_some(x + i, (int)least(LANES, n - i));
    return total(sum);
}

/* v times numbers of w, unless w is null. */
INLINE vec times(vec v, const float *w, int count) {
    if (w) v *= load_some(w, count);
    return v;
}

/* (rows, n) with mean 0 and variance 1 in each row, times w, plus b; both may be null. */
static void layer_norm(long rows, long n, const float *x, const float *w, const float *b, float eps, float *y,
                       float *mean, float *scale) {
    for (long r = 0; r < rows; r++, x += n, y += n) {
        const float middle = sum_of(n, x) / n;
        vec squares = {0};
        for (long i = 0; i < n; i += LANES) {
            const int count = (int)least(LANES, n - i);
            const vec apart = load_some(x + i, count) - middle;
            squares += first_of(apart * apart, count);
        }
        const float by = 1.0f / __builtin_sqrtf(total(squares) / n + eps);
        for (long i = 0; i < n; i += LANES) {
            const int count = (int)least(LANES, n - i);
            vec value = times((load_some(x + i, count) - middle) * by, w ? w + i : NULL, count);
            if (b) value += load_some(b + i, count);
            store_some(y + i, value, count);
        }
        mean[r] = middle, scale[r] = by;
    }
}

/* dx, and dw and db unless they are null. */
static void layer_norm_back(long rows, long n, const float *dy, const float *x, const float *mean, const float *scale,
                            const float *w, float *dx, float *dw, float *db) {
    if (dw) memset(dw, 0, n * sizeof(float));
    if (db) memset(db, 0, n * sizeof(float));
    for (long r = 0; r < rows; r++, x += n, dy += n, dx += dx ? n : 0) {
        const float middle = mean[r], by = scale[r];
        vec first = {0}, second = {0};
        for (long i = 0; i < n; i += LANES) {
            const int count = (int)least(LANES, n - i);
            const vec g = load_some(dy + i, count), z = (load_some(x + i, count) - middle) * by;
            if (dw) store_some(dw + i, load_some(dw + i, count) + g * z, count);
            if (db) store_some(db + i, load_some(db + i, count) + g, count);
            const vec gw = times(g, w ? w + i : NULL, count);
            first += gw, second += gw * z; /* g is 0 past the end */
        }
        if (!dx) continue;
        const float a = total(first) / n, c = total(second) / n;
        for (long i = 0; i < n; i += LANES) {
            const int count = (int)least(LANES, n - i);
            const vec g = load_some(dy + i, count), z = (load_some(x + i, count) - middle) * by;
            store_some(dx + i, (times(g, w ? w + i : NULL, count) - a - z * c) * by, count);
        }
    }
}

/* Over all pixels, for LANES channels: the sums of x, of (x - middle)^2, or of dy and dy x. Four partial sums shorten
 * the dependency chain. */
#define OVER_PIXELS(first, second)                                                                                    \
    vec sums[4] = {{0}}, others[4] = {{0}};                                                                           \
    for (long p = 0; p < pixels; p++) {                                                                               \
        const vec value = load_some(x + p * channels, count);                                                         \
        sums[p & 3] += first, others[p & 3] += second;                                                                \
    }                                                                                                                 \
    *to = (sums[0] + sums[1]) + (sums[2] + sums[3]), *also = (others[0] + others[1]) + (others[2] + others[3]);

INLINE void pixel_sum(long pixels, long channels, int count, const float *x, vec *to) {
    vec unused, *also = &unused;
    OVER_PIXELS(value, value - value)
}

INLINE void pixel_squares(long pixels, long channels, int count, const float *x, vec middle, vec *to) {
    vec unused, *also = &unused;
    OVER_PIXELS((value - middle) * (value - middle), value - value)
}

INLINE void pixel_products(long pixels, long channels, int count, const float *x, const float *dy, vec *to, vec *also) {
    OVER_PIXELS(load_some(dy + p * channels, count), load_some(dy + p * channels, count) * value)
}

/* Images (count, pixels, channels) with contiguous channels, normalised over the pixels of each group of channels.
 * `a` and `b` are scratch of `channels` numbers each. */
static void group_norm(long images, long pixels, long channels, long groups, const float *x, const float *w,
                       const float *bias, float eps, float *y, float *mean, float *scale, float *a, float *b) {
    const long per = channels / groups;
    for (long image = 0; image < images; image++, x += pixels * channels, y += pixels * channels) {
        for (long c = 0; c < channels; c += LANES) {
            const int count = (int)least(LANES, channels - c);
            vec sum;
            pixel_sum(pixels, channels, count, x + c, &sum);
            store_some(a + c, sum, count);
        }
        for (long g = 0; g < groups; g++) {
            float sum = 0;
            for (long c = g * per; c < (g + 1) * per; c++) sum += a[c];
            for (long c = g * per; c < (g + 1) * per; c++) a[c] = sum / (per * pixels);
        }
        for (long c = 0; c < channels; c += LANES) {
            const int count = (int)least(LANES, channels - c);
            vec sum;
            pixel_squares(pixels, channels, count, x + c, load_some(a + c, count), &sum);
            store_some(b + c, sum, count);
        }
        for (long g = 0; g < groups; g++) {
            float sum = 0;
            for (long c = g * per; c < (g + 1) * per; c++) sum += b[c];
            const float middle = a[g * per], by = 1.0f / __builtin_sqrtf(sum / (per * pixels) + eps);
            mean[image * groups + g] = middle, scale[image * groups + g] = by;
            for (long c = g * per; c < (g + 1) * per; c++) {
                const float factor = w ? w[c] * by : by;
                a[c] = factor, b[c] = (bias ? bias[c] : 0.0f) - middle * factor;
            }
        }
        for (long c = 0; c < channels; c += LANES) {
            const int count = (int)least(LANES, channels - c);
            const vec factor = load_some(a + c, count), added = load_some(b + c, count);
            for (long p = 0; p < pixels; p++)
                store_some(y + p * channels + c, load_some(x + p * channels + c, count) * factor + added, count);
        }
    }
}

/* `s` is scratch of 4 times `channels` numbers. */
static void group_norm_back(long images, long pixels, long channels, long groups, const float *dy, const float *x,
                            const float *mean, const float *scale, const float *w, float *dx, float *dw, float *db,
                            float *s) {
    const long per = channels / groups;
    float *sums = s, *products = s + channels, *by_x = s + 2 * channels, *added = s + 3 * channels;
    if (dw) memset(dw, 0, channels * sizeof(float));
    if (db) memset(db, 0, channels * sizeof(float));
    for (long image = 0; image < images; image++, x += pixels * channels, dy += pixels * channels) {
        for (long c = 0; c < channels; c += LANES) {
            const int count = (int)least(LANES, channels - c);
            vec sum, product;
            pixel_products(pixels, channels, count, x + c, dy + c, &sum, &product);
            store_some(sums + c, sum, count);
            store_some(products + c, product, count);
        }
        for (long g = 0; g < groups; g++) {
            const float middle = mean[image * groups + g], by = scale[image * groups + g];
            float first = 0, second = 0;
            for (long c = g * per; c < (g + 1) * per; c++) {
                const float factor = w ? w[c] : 1.0f, centred = (products[c] - sums[c] * middle) * by;
                if (dw) dw[c] += centred;
                if (db) db[c] += sums[c];
                first += factor * sums[c], second += factor * centred;
            }
            first /= per * pixels, second /= per * pixels;
            for (long c = g * per; c < (g + 1) * per; c++) {
                by_x[c] = -second * by * by;
                added[c] = -by * first - middle * by_x[c];
                sums[c] = (w ? w[c] : 1.0f) * by; /* now the factor of dy */
            }
        }
        if (!dx) continue;
        for (long c = 0; c < channels; c += LANES) {
            const int count = (int)least(LANES, channels - c);
            const vec factor = load_some(sums + c, count), other = load_some(by_x + c, count);
            const vec more = load_some(added + c, count);
            for (long p = c; p < pixels * channels; p += channels)
                store_some(dx + p, load_some(dy + p, count) * factor + load_some(x + p, count) * other + more, count);
        }
        dx += pixels * channels;
    }
}

/* The softmax of n numbers, or its logarithms. */
INLINE void softmax_row(long n, const float *x, int logarithms, float *y) {
    const float most = largest_of(n, x);
    vec sum = {0};
    for (long i = 0; i < n; i += LANES) {
        const int count = (int)least(LANES, n - i);
        const vec value = exponential(load_some(x + i, count) - most);
        store_some(y + i, value, count);
        sum += load_some(y + i, count);
    }
    const float all_of = total(sum);
    const float lower = logarithms ? most + logarithm(all(all_of))[0] : 0, by = 1.0f / all_of;
    for (long i = 0; i < n; i += LANES) {
        const int count = (int)least(LANES, n - i);
        const vec value = logarithms ? load_some(x + i, count) - lower : load_some(y + i, count) * by;
        store_some(y + i, value, count);
    }
}

/* The gradient with respect to x, from that with respect to y. */
INLINE void softmax_row_back(long n, const float *dy, const float *y, int logarithms, float *dx) {
    vec sum = {0};
    for (long i = 0; i < n; i += LANES) {
        const int count = (int)least(LANES, n - i);
        const vec g = load_some(dy + i, count);
        sum += times(g, logarithms ? NULL : y + i, count);
    }
    const float all_of = total(sum);
    for (long i = 0; i < n; i += LANES) {
        const int count = (int)least(LANES, n - i);
        const vec g = load_some(dy + i, count), value = load_some(y + i, count);
        store_some(dx + i, logarithms ? g - exponential(value) * all_of : (g - all_of) * value, count);
    }
}

/* Softmax, or its backward, on the rows of arrays, whose strides are those of (outer, inner, the row itself). */
static void softmax(const long *shape, const float *x, const long *xs, const float *y, const long *ys, int back,
                    int logarithms, float *to, const long *ts, float *scratch) {
    const long n = shape[2];
    for (long i = 0; i < shape[0]; i++)
        for (long j = 0; j < shape[1]; j++) {
            float *first = scratch, *second = scratch + n, *made = ts[2] == 1 ? to + i * ts[0] + j * ts[1] : scratch + 2 * n;
            const float *a = x + i * xs[0] + j * xs[1];
            if (xs[2] != 1) {
                for (long e = 0; e < n; e++) first[e] = a[e * xs[2]];
                a = first;
            }
            if (back) {
                const float *b = y + i * ys[0] + j * ys[1];
                if (ys[2] != 1) {
                    for (long e = 0; e < n; e++) second[e] = b[e * ys[2]];
                    b = second;
                }
                softmax_row_back(n, a, b, logarithms, made);
            } else {
                softmax_row(n, a, logarithms, made);
            }
            if (ts[2] != 1)
                for (long e = 0; e < n; e++) to[i * ts[0] + j * ts[1] + e * ts[2]] = made[e];
        }
}

/* Minus the mean, or the sum, of the targets' logarithms. `x` is (outer, classes, inner), `target` (outer, inner).
 * Returns 1 if a target is not a class. */
static int class_loss(long outer, long classes, long inner, const float *x, const int64_t *target, long ignored, int mean,
                      float *loss, float *weight) {
    double sum = 0;
    long count = 0;
    for (long i = 0; i < outer; i++)
        for (long j = 0; j < inner; j++) {
            const long wanted = target[i * inner + j];
            if (wanted == ignored) continue;
            if (wanted < 0 || wanted >= classes) return 1;
            sum -= x[(i * classes + wanted) * inner + j], count++;
        }
    *weight = (float)count;
    *loss = (float)(mean ? sum / count : sum);
    return 0;
}

static void class_loss_back(long outer, long classes, long inner, const float *dy, const int64_t *target, long ignored,
                            int mean, const float *weight, float *dx) {
    memset(dx, 0, outer * classes * inner * sizeof(float));
    const float value = mean ? -*dy / *weight : -*dy;
    for (long i = 0; i < outer; i++)
        for (long j = 0; j < inner; j++) {
            const long wanted = target[i * inner + j];
            if (wanted != ignored) dx[(i * classes + wanted) * inner + j] = value;
        }
}

/* Rows with a number for each class, and a target class for each row. Strides are those of (outer, inner, classes);
 * `row` is scratch of twice as many numbers as there are classes. */
typedef struct {
    long outer, inner, classes;
    const float *x;
    const long *strides;
    const int64_t *target;
    long ignored;
    int mean;
    float *counted, *noted, *row;
} Rows;

INLINE const float *numbers_of(const Rows *how, long i, long j) {
    const float *x = how->x + i * how->strides[0] + j * how->strides[1];
    if (how->strides[2] == 1) return x;
    for (long c = 0; c < how->classes; c++) how->row[c] = x[c * how->strides[2]];
    return how->row;
}

/* Minus the mean, or the sum, of the targets' log-softmax. Stores the logarithm of each row's normaliser. Returns 1 if
 * a target is not a class. */
static int cross_entropy(const Rows *how, float *loss) {
    double sum = 0;
    long count = 0;
    for (long i = 0; i < how->outer; i++)
        for (long j = 0; j < how->inner; j++) {
            const long row = i * how->inner + j, wanted = how->target[row];
            if (wanted == how->ignored) continue;
            if (wanted < 0 || wanted >= how->classes) return 1;
            const float *x = numbers_of(how, i, j), most = largest_of(how->classes, x);
            vec shares = {0};
            for (long c = 0; c < how->classes; c += LANES) {
                const int some = (int)least(LANES, how->classes - c);
                shares += first_of(exponential(load_some(x + c, some) - most), some);
            }
            how->noted[row] = most + logarithm(all(total(shares)))[0];
            sum -= x[wanted] - how->noted[row], count++;
        }
    *how->counted = (float)count;
    *loss = (float)(how->mean ? sum / count : sum);
    return 0;
}

/* The gradient with respect to x: the softmax, minus 1 for the target; zero in ignored rows. */
static void cross_entropy_back(const Rows *how, const float *dy, float *to, const long *strides) {
    const float by = how->mean ? *dy / *how->counted : *dy;
    for (long i = 0; i < how->outer; i++)
        for (long j = 0; j < how->inner; j++) {
            const long row = i * how->inner + j, wanted = how->target[row];
            float *at = to + i * strides[0] + j * strides[1], *made = strides[2] == 1 ? at : how->row + how->classes;
            if (wanted == how->ignored) {
                memset(made, 0, how->classes * sizeof(float));
            } else {
                const float *x = numbers_of(how, i, j), noted = how->noted[row];
                for (long c = 0; c < how->classes; c += LANES) {
                    const int some = (int)least(LANES, how->classes - c);
                    store_some(made + c, exponential(load_some(x + c, some) - noted) * by, some);
                }
                made[wanted] -= by;
            }
            if (strides[2] != 1)
                for (long c = 0; c < how->classes; c++) at[c * strides[2]] = made[c];
        }
}

/* The rows that `which` names. Returns 1 if there is no such row. */
static int embedding(long count, long rows, long width, const float *table, const int64_t *which, float *to) {
    for (long i = 0; i < count; i++) {
        if (which[i] < 0 || which[i] >= rows) return 1;
        memcpy(to + i * width, table + which[i] * width, width * sizeof(float));
    }
    return 0;
}

static void embedding_back(long count, long rows, long width, const float *dy, const int64_t *which, long left_out,
                           float *to) {
    memset(to, 0, rows * width * sizeof(float));
    for (long i = 0; i < count; i++)
        if (which[i] != left_out)
            for (long e = 0; e < width; e++) to[which[i] * width + e] += dy[i * width + e];
}
