/* Backward through a fully connected layer with many weights, together with its SGD step.
 *
 * Such products are bound by reading the weights from memory. Two products would read them twice; here they are read
 * once: the gradient of the input is made from the old weights while the new ones are written. The `rows` rows of x
 * have `in` numbers, a multiple of LANES, those of y have `out`, a multiple of OUTPUTS; w is (out, in). All arrays are
 * dense.
 */
#pragma once
#include "vectors.h"

/* Outputs whose weights are held in registers, old and new. */
#if LANES == 8
#define OUTPUTS 4
#else
#define OUTPUTS 8
#endif
/* The most rows. */
#define ROWS 64

/* dx = dy w, and then w += step' x, where `step` is dy times minus the learning rate. */
static void step_back(int rows, int in, int out, const float *dy, const float *step, const float *x, float *w, float *dx) {
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
                vec even = load(dx + (long)r * in + i), odd = {0}; /* two sums, to shorten the dependency chain */
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
}
