/* What the convolutions share: vectors as wide as the machine's, over channels, and pooling.
 *
 * A pooled image has the largest of each 2 x 2 pixels, by channel, after ReLU if asked; an odd row or column at the end
 * is left out. `from` says which of the four it was (0 to 3, row by row), the first if several are the same, and
 * NOWHERE if ReLU made it 0: that is all that the gradient needs.
 */
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#elif defined(__aarch64__)
#define LANES 4
#else
#error "nothing is gained here without wide vectors"
#endif
#define NOWHERE 4

#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int ints __attribute__((vector_size(4 * LANES)));
typedef unsigned char bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec v) { *(vec *)to = v; }
INLINE int smaller(int a, int b) { return a < b ? a : b; }
INLINE ints choose(ints which, ints yes, ints no) { return (which & yes) | (~which & no); }

/* As PyTorch pools: what is not a number wins. */
INLINE void pool(const vec four[4], int relu, float *y, unsigned char *from) {
    vec best = four[0];
    ints place = {0};
    for (int p = 1; p < 4; p++) {
        const ints larger = (four[p] > best) | (four[p] != four[p]);
        best = (vec)choose(larger, (ints)four[p], (ints)best);
        place = choose(larger, (ints){0} + p, place);
    }
    if (relu) {
        const ints off = best <= 0.0f;
        best = (vec)(~off & (ints)best);
        place = choose(off, (ints){0} + NOWHERE, place);
    }
    store(y, best);
    *(bytes *)from = __builtin_convertvector(place, bytes);
}

/* The gradient by the four pixels, from that of the pooled one. */
INLINE void spread(const float *dy, const unsigned char *from, vec four[4]) {
    const vec gradient = load(dy);
    const ints place = __builtin_convertvector(*(const bytes *)from, ints);
    for (int p = 0; p < 4; p++) four[p] = (vec)((place == p) & (ints)gradient);
}
