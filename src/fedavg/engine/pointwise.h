/* Pointwise operations, with broadcasting by strides of zero; sums over some of the dimensions. */
#pragma once
#include "vectors.h"

#define DIMENSIONS 6
/* Numbers gathered at a time where they are not contiguous. */
#define CHUNK 256

INLINE vec chosen(ints which, vec yes, vec no) { return (vec)choose(which, (ints)yes, (ints)no); }
INLINE vec all(float value) { return (vec){0} + value; }
/* The larger one; b if either is NaN. */
INLINE vec larger_of(vec a, vec b) {
#if LANES == 16
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return chosen(a > b, a, b);
#endif
}

/* x, or the nearest number from low to high; NaN stays. */
INLINE vec held(vec x, float low, float high) {
#if LANES == 16
    return (vec)_mm512_max_ps(_mm512_set1_ps(low), _mm512_min_ps(_mm512_set1_ps(high), (__m512)x));
#elif LANES == 8
    return (vec)_mm256_max_ps(_mm256_set1_ps(low), _mm256_min_ps(_mm256_set1_ps(high), (__m256)x));
#else
    return chosen(x > high, all(high), chosen(x < low, all(low), x));
#endif
}

/* p 2^n for integer n: infinity if that is too large. */
INLINE vec scaled(vec p, vec n) {
#if LANES == 16
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    const ints half = __builtin_convertvector(n * 0.5f, ints), rest = __builtin_convertvector(n, ints) - half;
    return p * (vec)((half + 127) << 23) * (vec)((rest + 127) << 23); /* in two steps: 2^n alone may be too small */
#endif
}

/* e^x within 2 units in the last place; overflows to infinity, NaN stays. */
INLINE vec exponential(vec x) {
    const vec within = held(x, -104.0f, 89.0f); /* outside, the result is 0 or infinity anyway */
    const vec magic = all(12582912.0f); /* 1.5 * 2^23: adding it rounds to integers */
    const vec whole = (within * 1.44269504f + magic) - magic;
    const vec rest = (within - whole * 0.693359375f) + whole * 2.12194440e-4f;
    vec power = all(1.9875691500e-4f);
    power = power * rest + 1.3981999507e-3f;
    power = power * rest + 8.3334519073e-3f;
    power = power * rest + 4.1665795894e-2f;
    power = power * rest + 1.6666665459e-1f;
    power = power * rest + 5.0000001201e-1f;
    power = power * (rest * rest) + rest + 1.0f;
    return scaled(power, whole);
}

/* The natural logarithm of positive numbers (Cephes), within 2 units in the last place. */
INLINE vec logarithm(vec x) {
    const ints bits = (ints)x, exponent = ((bits >> 23) & 255) - 126;
    vec m = (vec)((bits & 0x007fffff) | 0x3f000000); /* from 0.5 to 1 */
    const ints low = m < 0.707106781f;
    const vec e = __builtin_convertvector(exponent, vec) + __builtin_convertvector(low, vec); /* true is -1 */
    m = (vec)((low & (ints)m)) + m - 1.0f;
    const vec z = m * m;
    vec y = all(7.0376836292e-2f);
    y = y * m - 1.1514610310e-1f;
    y = y * m + 1.1676998740e-1f;
    y = y * m - 1.2420140846e-1f;
    y = y * m + 1.4249322787e-1f;
    y = y * m - 1.6668057665e-1f;
    y = y * m + 2.0000714765e-1f;
    y = y * m - 2.4999993993e-1f;
    y = y * m + 3.3333331174e-1f;
    y = y * m * z + e * -2.12194440e-4f - 0.5f * z;
    return m + y + e * 0.693359375f;
}

/* The largest of some numbers, ignoring NaN. */
INLINE float largest_of(long n, const float *x) {
    float most = -__builtin_inff();
    long i = 0;
#if LANES == 16
    __m512 largest = _mm512_set1_ps(most);
    for (; i < n; i += LANES) {
        const __mmask16 some = n - i >= LANES ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        largest = _mm512_mask_max_ps(largest, some, _mm512_maskz_loadu_ps(some, x + i), largest);
    }
    return _mm512_reduce_max_ps(largest);
#endif
    vec best = all(most);
    for (; i + LANES <= n; i += LANES) best = larger_of(load(x + i), best);
    for (int lane = 0; lane < LANES; lane++) most = best[lane] > most ? best[lane] : most;
    for (; i < n; i++) most = x[i] > most ? x[i] : most;
    return most;
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

INLINE vec hyperbolic_tangent(vec x) {
    const vec positive = chosen(x < 0.0f, -x, x), e = exponential(-2.0f * positive);
    const vec square = x * x; /* near 0 the quotient would lose digits */
    const vec series = x + x * square * (-0.33333333f + square * (0.13333333f + square * -0.053968254f));
    const vec far = (1.0f - e) / (1.0f + e);
    return chosen(positive < 0.1f, series, chosen(x < 0.0f, -far, far));
}

/* erf by a rational function of x^2 on [-4, 4] (as in Eigen), within 2e-7. */
INLINE vec error_function(vec x) {
    const vec near = held(x, -4.0f, 4.0f), s = near * near;
    vec top = all(-2.72614225801306e-10f);
    top = top * s + 2.77068142495902e-08f;
    top = top * s + -2.10102402082508e-06f;
    top = top * s + -5.69250639462346e-05f;
    top = top * s + -7.34990630326855e-04f;
    top = top * s + -2.95459980854025e-03f;
    top = top * s + -1.60960333262415e-02f;
    vec low = all(-1.45660718464996e-05f);
    low = low * s + -2.13374055278905e-04f;
    low = low * s + -1.68282697438203e-03f;
    low = low * s + -7.37332916720468e-03f;
    low = low * s + -1.42647390514189e-02f;
    return near * top / low;
}

INLINE vec gelu(vec x) { return 0.5f * x * (1.0f + error_function(x * 0.70710678f)); }
INLINE vec gelu_slope(vec x) {
    return 0.5f * (1.0f + error_function(x * 0.70710678f)) + x * 0.39894228f * exponential(-0.5f * x * x);
}
INLINE vec bend(vec x) { return hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x)); }
INLINE vec bend_slope(vec x) {
    const vec t = bend(x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
}
INLINE vec root(vec x) {
    float parts[LANES];
    store(parts, x);
    for (int i = 0; i < LANES; i++) parts[i] = __builtin_sqrtf(parts[i]);
    return load(parts);
}

/* In the order of `POINTWISE` in writer.py: a name, and the value for a, b and the number s. */
#define EACH                                                                                                          \
    DO(copy, a) DO(add, a + s * b) DO(multiply, a *b) DO(divide, a / b) DO(scale, a *s) DO(shift, a + s)              \
    DO(relu, chosen(a <= 0.0f, all(0.0f), a)) DO(threshold_back, chosen(b <= s, all(0.0f), a))                        \
    DO(gelu, gelu(a)) DO(gelu_back, a *gelu_slope(b))                                                                 \
    DO(gelu_tanh, 0.5f * a * (1.0f + bend(a))) DO(gelu_tanh_back, a *bend_slope(b))                                   \
    DO(tanh, hyperbolic_tangent(a)) DO(tanh_back, a *(1.0f - b * b))                                                  \
    DO(sigmoid, sigmoid(a)) DO(sigmoid_back, a *b *(1.0f - b))                                                        \
    DO(silu, a *sigmoid(a)) DO(silu_back, a *sigmoid(b) * (1.0f + b * (1.0f - sigmoid(b))))                           \
    DO(exponential, exponential(a)) DO(root, root(a)) DO(scaled_add, s *a + b) DO(lerp, a + s * (b - a))              \
    DO(fill, all(s))

#define DO(name, value)                                                                                               \
    static void each_##name(long n, const float *x, const float *y, float s, float *to) {                             \
        for (long i = 0; i < n; i += LANES) {                                                                         \
            const int count = (int)least(LANES, n - i);                                                               \
            const vec a = load_some(x + i, count), b = load_some(y + i, count);                                       \
            (void)a, (void)b, (void)s;                                                                                \
            store_some(to + i, value, count);                                                                         \
        }                                                                                                             \
    }
EACH
#undef DO
typedef void (*Each)(long n, const float *x, const float *y, float s, float *to);
#define DO(name, value) each_##name,
static const Each each[] = {EACH};
#undef DO

/* The numbers of a row in place if contiguous, otherwise gathered to `buffer`. */
INLINE const float *gathered(const float *from, long stride, int count, float *buffer) {
    if (stride == 1) return from;
    if (stride == 0)
        for (int i = 0; i < count; i++) buffer[i] = *from;
    else
        for (int i = 0; i < count; i++) buffer[i] = from[i * stride];
    return buffer;
}

static void row_of(Each what, long n, const float *x, long xs, const float *y, long ys, float s, float *to, long ts) {
    if (xs == 1 && ys == 1 && ts == 1) {
        what(n, x, y, s, to);
        return;
    }
    float xb[CHUNK], yb[CHUNK], tb[CHUNK];
    for (long i = 0; i < n; i += CHUNK) {
        const int count = (int)least(CHUNK, n - i);
        float *made = ts == 1 ? to + i : tb;
        what(count, gathered(x + i * xs, xs, count, xb), gathered(y + i * ys, ys, count, yb), s, made);
        if (ts != 1)
            for (int j = 0; j < count; j++) to[(i + j) * ts] = tb[j];
    }
}

/* `shape` and, for the target and both sources, strides: DIMENSIONS of each, of which the last is the innermost. */
static void pointwise(Each what, const long *shape, const long *ts, const long *xs, const long *ys, const float *x,
                      const float *y, float s, float *to) {
    long place[DIMENSIONS] = {0};
    const int last = DIMENSIONS - 1;
    for (;;) {
        row_of(what, shape[last], x, xs[last], y, ys[last], s, to, ts[last]);
        int d = last - 1;
        for (; d >= 0; d--) {
            x += xs[d], y += ys[d], to += ts[d];
            if (++place[d] < shape[d]) break;
            x -= xs[d] * shape[d], y -= ys[d] * shape[d], to -= ts[d] * shape[d], place[d] = 0;
        }
        if (d < 0) return;
    }
}

/* to = alpha sum(x) + beta to, over three dimensions; three more are kept, of which the last may be contiguous or not.
 * Every 64 numbers are summed separately, so that a long sum loses no digits. */
static void sum_over(const long *kept, const long *ts, const long *ks, const long *gone, const long *gs, const float *x,
                     float alpha, float beta, float *to) {
    for (long i = 0; i < kept[0]; i++)
        for (long j = 0; j < kept[1]; j++)
            for (long c = 0; c < kept[2]; c += CHUNK) {
                const int count = (int)least(CHUNK, kept[2] - c);
                float sums[CHUNK] = {0}, part[CHUNK] = {0}, buffer[CHUNK];
                const float *from = x + i * ks[0] + j * ks[1] + c * ks[2];
                int added = 0;
                for (long p = 0; p < gone[0]; p++)
                    for (long q = 0; q < gone[1]; q++) {
                        const float *row = from + p * gs[0] + q * gs[1];
                        if (ks[2] != 1 && count == 1 && gs[2] == 1) { /* along the row */
                            vec along = {0};
                            for (long r = 0; r < gone[2]; r += LANES)
                                along += load_some(row + r, (int)least(LANES, gone[2] - r));
                            sums[0] += total(along);
                            continue;
                        }
                        for (long r = 0; r < gone[2]; r++) {
                            const float *values = gathered(row + r * gs[2], ks[2], count, buffer);
                            for (int e = 0; e < count; e++) part[e] += values[e];
                            if (++added == 64) {
                                for (int e = 0; e < count; e++) sums[e] += part[e], part[e] = 0;
                                added = 0;
                            }
                        }
                    }
                float *at = to + i * ts[0] + j * ts[1] + c * ts[2];
                for (int e = 0; e < count; e++) {
                    const float value = alpha * (sums[e] + part[e]);
                    at[e * ts[2]] = beta == 0.0f ? value : value + beta * at[e * ts[2]];
                }
            }
}
