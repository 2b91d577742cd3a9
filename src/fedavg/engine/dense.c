/* A fully connected layer with many weights, on few rows: forward, and backward together with its step of SGD.
 *
 * Such products take as long as the weights take to come from memory. Backward they are read once, where two products
 * read them twice: the gradient of the input is made from the old weights while the new ones are written. `rows` of x
 * have `in` numbers, a multiple of LANES, and of y `out`, a multiple of OUTPUTS; w is (out, in). All arrays are dense.
 * Single-threaded.
 */
#include "vectors.h"

/* What fits in the registers: outputs whose weights are held, old and new; outputs by rows whose sums are. */
#if LANES == 8
#define OUTPUTS 4
#define ACROSS 2
#define DOWN 5
#else
#define OUTPUTS 8
#define ACROSS 4
#define DOWN 6
#endif
/* Rows at most, backward. */
#define ROWS 64

INLINE float total(vec v) {
    float parts[LANES];
    store(parts, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

/* ACROSS outputs of `rows` rows. Inlined for each number, so that the sums are registers. */
INLINE void outputs_of(const int rows, int in, int out, const float *x, const float *w, const float *bias, float *y) {
    vec sums[ACROSS][DOWN];
    for (int o = 0; o < ACROSS; o++)
        for (int r = 0; r < rows; r++) sums[o][r] = (vec){0};
    for (int i = 0; i < in; i += LANES) {
        vec weights[ACROSS];
        for (int o = 0; o < ACROSS; o++) weights[o] = load(w + (long)o * in + i);
        for (int r = 0; r < rows; r++) {
            const vec value = load(x + (long)r * in + i);
            for (int o = 0; o < ACROSS; o++) sums[o][r] += weights[o] * value;
        }
    }
    for (int o = 0; o < ACROSS; o++)
        for (int r = 0; r < rows; r++) y[(long)r * out + o] = total(sums[o][r]) + (bias ? bias[o] : 0.0f);
}

int lanes(void) { return LANES; }
int outputs(void) { return OUTPUTS; }

/* y = x w' + bias, which may be null. */
int dense(int rows, int in, int out, const float *x, const float *w, const float *bias, float *y) {
    const int parts = (rows + DOWN - 1) / DOWN;
    for (int o = 0; o < out; o += ACROSS)
        for (int part = 0, row = 0, count; part < parts; part++, row += count) {
            count = (rows - row) / (parts - part); /* all of about the same size */
#define OF(n)                                                                                                         \
    case n:                                                                                                           \
        outputs_of(n, in, out, x + (long)row * in, w + (long)o * in, bias ? bias + o : NULL, y + (long)row * out + o); \
        break;
            switch (count) {
                OF(1) OF(2) OF(3) OF(4) OF(5)
#if DOWN > 5
                OF(6)
#endif
            }
#undef OF
        }
    return 0;
}

/* dx = dy w, and then w += step' x, where `step` is dy times minus the learning rate. */
int dense_step(int rows, int in, int out, const float *dy, const float *step, const float *x, float *w, float *dx) {
    float errors[ROWS][OUTPUTS], steps[ROWS][OUTPUTS];
    memset(dx, 0, (long)rows * in * sizeof(float));
    for (int o = 0; o < out; o += OUTPUTS) {
        for (int r = 0; r < rows; r++) {
            memcpy(errors[r], dy + (long)r * out + o, sizeof errors[r]);
            memcpy(steps[r], step + (long)r * out + o, sizeof steps[r]);
        }
        for (int i = 0; i < in; i += LANES) {
            vec before[OUTPUTS], after[OUTPUTS];
            for (int k = 0; k < OUTPUTS; k++) before[k] = after[k] = load(w + (long)(o + k) * in + i);
            for (int r = 0; r < rows; r++) {
                const vec value = load(x + (long)r * in + i);
                vec even = load(dx + (long)r * in + i), odd = {0}; /* two sums, since one would wait for itself */
                for (int k = 0; k < OUTPUTS; k += 2) {
                    even += errors[r][k] * before[k];
                    odd += errors[r][k + 1] * before[k + 1];
                }
                for (int k = 0; k < OUTPUTS; k++) after[k] += steps[r][k] * value;
                store(dx + (long)r * in + i, even + odd);
            }
            for (int k = 0; k < OUTPUTS; k++) store(w + (long)(o + k) * in + i, after[k]);
        }
    }
    return 0;
}
