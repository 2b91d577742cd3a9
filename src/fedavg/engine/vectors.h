/* What the kernels share: vectors as wide as the machine's. */
#pragma once
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#elif defined(__aarch64__)
#define LANES 4
#else
#error "nothing is gained here without wide vectors"
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int ints __attribute__((vector_size(4 * LANES)));
typedef unsigned char bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec v) { *(vec *)to = v; }
INLINE int smaller(int a, int b) { return a < b ? a : b; }
INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE ints choose(ints which, ints yes, ints no) { return (which & yes) | (~which & no); }

/* The first `count` numbers of a vector, then zeros; nothing past them is read. */
INLINE vec load_some(const float *from, int count) {
    if (count >= LANES) return load(from);
#if LANES == 16
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#elif LANES == 8
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (vec)_mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes));
#else
    float parts[LANES] = {0};
    memcpy(parts, from, count * sizeof(float));
    return load(parts);
#endif
}

INLINE void store_some(float *to, vec v, int count) {
    if (count >= LANES) {
        store(to, v);
        return;
    }
#if LANES == 16
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)v);
#elif LANES == 8
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(to, _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes), (__m256)v);
#else
    float parts[LANES];
    store(parts, v);
    memcpy(to, parts, count * sizeof(float));
#endif
}

/* The first `count` numbers of v, then zeros. */
INLINE vec first_of(vec v, int count) {
    if (count >= LANES) return v;
#if LANES == 16
    return (vec)_mm512_maskz_mov_ps((__mmask16)((1u << count) - 1), (__m512)v);
#endif
    float parts[LANES];
    store(parts, v);
    return load_some(parts, count);
}

INLINE float total(vec v) {
#if LANES == 16
    return _mm512_reduce_add_ps((__m512)v);
#else
    float parts[LANES];
    store(parts, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
#endif
}
