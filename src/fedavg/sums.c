/* The operations on an update that is added to a sum, each in one pass. Single-threaded.
 *
 * `add` adds numbers to a sum in fixed point: each is scaled, rounded once to the nearest integer, ties to even, and
 * added as an integer. The same bits as NumPy's multiply, rint and add.
 *
 * `look` finds the largest magnitude, the sum of squares, and the sums over columns of numbers times signs.
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

int add(long count, const float *x, const double *scale, int64_t *ring) {
    const double by = *scale;
    long i = 0;
#if defined(__AVX512DQ__)
    const __m512d all = _mm512_set1_pd(by);
    for (; i + 8 <= count; i += 8) {
        const __m512i value = _mm512_cvtpd_epi64(_mm512_mul_pd(_mm512_cvtps_pd(_mm256_loadu_ps(x + i)), all));
        _mm512_storeu_si512(ring + i, _mm512_add_epi64(_mm512_loadu_si512(ring + i), value));
    }
#endif
    for (; i < count; i++) ring[i] += rounded((double)x[i] * by);
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

/* `folded` has `width` columns; `told` gets the largest magnitude (infinite or NaN if a number is) and the sum of
 * squares. */
int look(long count, const float *x, const signed char *signs, long width, float *folded, double *told) {
    ints most[SUMS] = {{0}};
    double all = 0;
    memset(folded, 0, width * sizeof(float));
    for (long start = 0; start < count; start += width) {
        const long columns = count - start < width ? count - start : width, whole = columns - columns % (LANES * SUMS);
        const float *row = x + start;
        const signed char *sign = signs + start;
        floats squares[SUMS] = {{0}};
        for (long j = 0; j < whole; j += LANES * SUMS)
            for (int s = 0; s < SUMS; s++) {
                const long at = j + s * LANES;
                const floats values = *(const floats *)(row + at);
                *(floats *)(folded + at) += signed_by(sign + at, values);
                squares[s] += values * values;
                most[s] = larger(most[s], values);
            }
        for (long j = whole; j < columns; j++) {
            folded[j] += sign[j] < 0 ? -row[j] : row[j];
            most[0] = larger(most[0], (floats){row[j]});
        }
        const floats joined = (squares[0] + squares[1]) + (squares[2] + squares[3]);
        float sum = 0;
        for (int i = 0; i < LANES; i++) sum += joined[i];
        const int kept = sum > LEAST && sum < MOST;
        all += kept ? sum + squares_of(columns - whole, row + whole) : squares_of(columns, row);
    }
    int32_t bits = 0;
    for (int s = 0; s < SUMS; s++)
        for (int i = 0; i < LANES; i++) bits = most[s][i] > bits ? most[s][i] : bits;
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    told[0] = largest, told[1] = all;
    return 0;
}
