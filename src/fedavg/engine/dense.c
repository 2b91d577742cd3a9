/* A fully connected layer with many weights, on few rows: forward, and backward together with its step (dense.h).
 * Single-threaded.
 */
#include "dense.h"

/* The outputs and rows whose sums are held in registers. */
#if LANES == 8
#define ACROSS 2
#define DOWN 5
#else
#define ACROSS 4
#define DOWN 6
#endif
/* ACROSS outputs of `rows` rows. Inlined for each number of rows, so that the sums are registers. */
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

/* y = x w' + bias, which may be null. */
int dense(int rows, int in, int out, const float *x, const float *w, const float *bias, float *y) {
    const int parts = (rows + DOWN - 1) / DOWN;
    for (int o = 0; o < out; o += ACROSS)
        for (int part = 0, row = 0, count; part < parts; part++, row += count) {
            count = (rows - row) / (parts - part); /* parts of about the same size */
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

int lanes(void) { return LANES; }
int outputs(void) { return OUTPUTS; }

int dense_step(int rows, int in, int out, const float *dy, const float *step, const float *x, float *w, float *dx) {
    step_back(rows, in, out, dy, step, x, w, dx);
    return 0;
}
