/* The operations on an update that is added to a sum, each in one pass. Single-threaded.
 *
 * `add` adds numbers to a sum in fixed point: each is scaled, rounded once to the nearest integer, ties to even, and
 * added as an integer. The same bits as NumPy's multiply, rint and add.
 *
 * `look` finds the largest magnitude, the sum of squares, and the sums over columns of numbers times signs;
 * `look_and_add` does both in one pass.
 */
#include <stdint.h>
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

static int64_t rounded(double value) {
#if defined(__AVX__)
    return _mm_cvtsd_si64(_mm_set_sd(value));
#else
    return __builtin_llrint(value);
#endif
}

static inline void add_to(long count, const float *x, double scale, int64_t *ring) {
    long i = 0;
#if defined(__AVX512DQ__)
    const __m512d all = _mm512_set1_pd(scale);
    for (; i + 8 <= count; i += 8) {
        const __m512i value = _mm512_cvtpd_epi64(_mm512_mul_pd(_mm512_cvtps_pd(_mm256_loadu_ps(x + i)), all));
        _mm512_storeu_si512(ring + i, _mm512_add_epi64(_mm512_loadu_si512(ring + i), value));
    }
#endif
    for (; i < count; i++) ring[i] = (int64_t)((uint64_t)ring[i] + (uint64_t)rounded((double)x[i] * scale));
}

int add(long count, const float *x, const double *scale, int64_t *ring) {
    add_to(count, x, *scale, ring);
    return 0;
}

#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8
#endif
typedef float floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
/* Partial sums, to shorten the dependency chain. */
#define SUMS 4
/* Numbers that are looked at together. */
#define BLOCK (LANES * SUMS)
/* Between these, a sum of squares in float32 has lost nothing that matters. */
#define LEAST 1e-25f
#define MOST 1e37f

/* Numbers, negated where `signs` is negative. */
static inline floats signed_by(const signed char *signs, floats values) {
#if defined(__AVX512F__)
    const ints wide = (ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)signs));
#elif defined(__AVX2__)
    const ints wide = (ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)signs));
#else
    ints wide;
    for (int i = 0; i < LANES; i++) wide[i] = signs[i];
#endif
    return (floats)((ints)values ^ (wide & INT32_MIN));
}

/* The larger of |x| as bits: these are ordered like the numbers, and infinity and NaN come last. */
static inline ints larger(ints most, floats values) {
    const ints bits = (ints)values & INT32_MAX;
#if defined(__AVX512F__)
    return (ints)_mm512_max_epi32((__m512i)most, (__m512i)bits);
#elif defined(__AVX2__)
    return (ints)_mm256_max_epi32((__m256i)most, (__m256i)bits);
#else
    const ints more = bits > most;
    return (more & bits) | (~more & most);
#endif
}

static double squares_of(long count, const float *x) {
    double sum = 0;
    int any = 0;
    for (long i = 0; i < count; i++) any |= x[i] != 0;
    if (!any) return 0; /* the usual case here: rows for which nothing was learned */
    for (long i = 0; i < count; i++) sum += (double)x[i] * x[i];
    return sum;
}

static inline int is_zero(ints bits) {
#if defined(__AVX512F__)
    return !_mm512_test_epi32_mask((__m512i)bits, (__m512i)bits);
#elif defined(__AVX2__)
    return _mm256_testz_si256((__m256i)bits, (__m256i)bits);
#else
    for (int i = 0; i < LANES; i++)
        if (bits[i]) return 0;
    return 1;
#endif
}

static float as_float(int32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int32_t largest_of(ints bits) {
    int32_t most = 0;
    for (int i = 0; i < LANES; i++) most = bits[i] > most ? bits[i] : most;
    return most;
}

/* A sum that numbers are added to as they are looked at. The first block with a number that is above `most`, or is not
 * finite, ends that: `ring` is then null. */
typedef struct {
    int64_t *ring;
    double scale;
    int32_t most; /* as bits */
    long added;
} Adding;

/* The bits of the largest float32 that is at most `most` when scaled. */
static int32_t limit_of(double scale, double most) {
    const double least = most / scale;
    int32_t bits = 0x7f7fffff; /* the largest of all */
    if (least < as_float(bits)) {
        const float near = (float)least;
        memcpy(&bits, &near, sizeof bits);
        if (near * scale > most) bits--;
    }
    return bits;
}

static inline void add_block(Adding *to, long at, long count, const float *x, ints most) {
    if (!to->ring) return;
    if (!is_zero(most > to->most)) {
        to->ring = 0, to->added = at;
        return;
    }
    add_to(count, x, to->scale, to->ring + at);
}

/* Looks at `count` numbers, row by row, and adds each block at once, while it is in registers. Most blocks of a small
 * client's update may be zero: they are passed over. `folded` has `width` columns; `told` gets the largest magnitude
 * (infinite or NaN if a number is) and the sum of squares. */
static void look_through(long count, const float *x, const signed char *signs, long width, float *folded, double *told,
                         Adding *to) {
    ints most[SUMS] = {{0}};
    double all = 0;
    memset(folded, 0, width * sizeof(float));
    for (long start = 0; start < count; start += width) {
        const long columns = count - start < width ? count - start : width, whole = columns - columns % BLOCK;
        const float *row = x + start;
        const signed char *sign = signs + start;
        floats squares[SUMS] = {{0}};
        for (long j = 0; j < whole; j += BLOCK) {
            floats values[SUMS];
            ints any = {0}, largest = {0};
            for (int s = 0; s < SUMS; s++) {
                values[s] = *(const floats *)(row + j + s * LANES);
                any |= (ints)values[s];
            }
            if (is_zero(any)) continue;
            for (int s = 0; s < SUMS; s++) {
                *(floats *)(folded + j + s * LANES) += signed_by(sign + j + s * LANES, values[s]);
                squares[s] += values[s] * values[s];
                most[s] = larger(most[s], values[s]);
                largest = larger(largest, values[s]);
            }
            add_block(to, start + j, BLOCK, row + j, largest);
        }
        ints largest = {0};
        for (long j = whole; j < columns; j++) {
            folded[j] += sign[j] < 0 ? -row[j] : row[j];
            largest = larger(largest, (floats){row[j]});
        }
        most[0] = larger(most[0], (floats)largest);
        add_block(to, start + whole, columns - whole, row + whole, largest);
        const floats joined = (squares[0] + squares[1]) + (squares[2] + squares[3]);
        float sum = 0;
        for (int i = 0; i < LANES; i++) sum += joined[i];
        const int kept = sum > LEAST && sum < MOST;
        all += kept ? sum + squares_of(columns - whole, row + whole) : squares_of(columns, row);
    }
    for (int s = 1; s < SUMS; s++) most[0] = larger(most[0], (floats)most[s]);
    told[0] = as_float(largest_of(most[0])), told[1] = all;
}

int look(long count, const float *x, const signed char *signs, long width, float *folded, double *told) {
    Adding nothing = {0, 0, 0, 0};
    look_through(count, x, signs, width, folded, told, &nothing);
    return 0;
}

/* The same in the pass that adds. `limits`: what numbers are scaled by, and how large one may be then; its third number
 * gets how many were added: fewer than `count` if there was one too large. */
int look_and_add(long count, const float *x, const signed char *signs, long width, float *folded, double *told,
                 double *limits, int64_t *ring) {
    Adding to = {ring, limits[0], limit_of(limits[0], limits[1]), count};
    look_through(count, x, signs, width, folded, told, &to);
    limits[2] = (double)to.added;
    return 0;
}
