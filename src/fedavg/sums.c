/* Adds numbers to a sum in fixed point: each is scaled, rounded once, to the nearest whole number and of two to the even one,
 * and added as an integer. The same bits as NumPy's multiply, rint and add, in one pass. Single-threaded.
 */
#include <stdint.h>
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
