/* The recurrence of a peephole LSTM and its gradient; lstm.py states the equations and the layouts.
 *
 * T steps, B rows, H units (a multiple of STRIP), G = 4H gates in the order i, f, g, o. All arrays are dense and
 * row-major: gates and dz (T, B, G), h, c and tanh_c (T, B, H), w_hh (G, H), peephole (3, H), keep (T, B), which is 0
 * where a sequence starts and otherwise 1. Single-threaded.
 *
 * Two things make it fast: the product of the few rows of a batch with the recurrent weights keeps its results in
 * registers while it streams the weights once, packed in the order in which they are read; and the rest of a time step
 * is one pass over the gates while they are in the cache.
 */
#pragma once
#include "packing.h"
#include "pointwise.h"

/* Columns of weights that are packed together, and rows of a batch whose sums fit in registers with them. */
#define STRIP (2 * LANES)
#if LANES == 8
#define STRIP_ROWS 6
#else
#define STRIP_ROWS 12
#endif

/* tanh. Near 0 it loses digits, which do not matter for a gate. */
INLINE vec bounded(vec x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

/* w (K, N), strip by strip. */
static void pack_strips(int K, int N, Matrix w, float *to) {
    for (int n = 0; n < N; n += STRIP)
        pack(K, STRIP, STRIP, (Matrix){w.at + n * w.column, w.row, w.column}, to + (long)n * K);
}

/* out (rows, STRIP) = x (rows, K) strip (K, STRIP). Inlined for each number of rows, so that the sums are registers. */
INLINE void strip_rows(const int rows, int K, const float *x, const float *strip, float *out, int width) {
    vec left[STRIP_ROWS], right[STRIP_ROWS];
    for (int r = 0; r < rows; r++) left[r] = right[r] = all(0);
    for (int k = 0; k < K; k++) {
        const vec a = load(strip + k * STRIP), b = load(strip + k * STRIP + LANES);
        for (int r = 0; r < rows; r++) {
            left[r] += x[r * K + k] * a;
            right[r] += x[r * K + k] * b;
        }
    }
    for (int r = 0; r < rows; r++) {
        store(out + r * width, left[r]);
        store(out + r * width + LANES, right[r]);
    }
}

static void strip_of(int rows, int K, const float *x, const float *strip, float *out, int width) {
#define OF_ROWS(count) case count: strip_rows(count, K, x, strip, out, width); break;
    switch (rows) {
        OF_ROWS(1) OF_ROWS(2) OF_ROWS(3) OF_ROWS(4) OF_ROWS(5) OF_ROWS(6)
#if STRIP_ROWS == 12
        OF_ROWS(7) OF_ROWS(8) OF_ROWS(9) OF_ROWS(10) OF_ROWS(11) OF_ROWS(12)
#endif
    }
#undef OF_ROWS
}

/* out (B, N) = x (B, K) w (K, N), with w packed; rows in blocks of about the same size. */
static void by_strips(int B, int K, int N, const float *x, const float *packed, float *out) {
    for (int n = 0; n < N; n += STRIP)
        for (int row = 0, rows; row < B; row += rows) {
            rows = part_of(B, row, STRIP_ROWS);
            strip_of(rows, K, x + (long)row * K, packed + (long)n * K, out + (long)row * N + n, N);
        }
}

/* `packed` is scratch of G times H numbers. */
static void peephole_scan(int T, int B, int H, const float *gates_x, const float *w_hh, const float *peephole,
                          const float *keep, float *h, float *c, float *tanh_c, float *gates, float *packed) {
    const int G = 4 * H;
    const float *w_i = peephole, *w_f = w_i + H, *w_o = w_f + H;
    pack_strips(H, G, (Matrix){w_hh, 1, H}, packed);
    for (long t = 0; t < T; t++) {
        if (t) by_strips(B, H, G, h + (t - 1) * B * H, packed, gates + t * B * G);
        else memset(gates, 0, sizeof(float) * B * G);
        for (long row = t * B; row < (t + 1) * B; row++)
            for (int u = 0; u < H; u += LANES) {
                float *z = gates + row * G + u;
                const float *x = gates_x + row * G + u;
                const vec kept = all(keep[row]);
                const vec c_before = (t ? load(c + (row - B) * H + u) : all(0)) * kept;
                const vec i = sigmoid(load(z) * kept + load(x) + load(w_i + u) * c_before);
                const vec f = sigmoid(load(z + H) * kept + load(x + H) + load(w_f + u) * c_before);
                const vec g = bounded(load(z + 2 * H) * kept + load(x + 2 * H));
                const vec cell = f * c_before + i * g;
                const vec o = sigmoid(load(z + 3 * H) * kept + load(x + 3 * H) + load(w_o + u) * cell);
                const vec tanh_cell = bounded(cell);
                store(z, i);
                store(z + H, f);
                store(z + 2 * H, g);
                store(z + 3 * H, o);
                store(c + row * H + u, cell);
                store(tanh_c + row * H + u, tanh_cell);
                store(h + row * H + u, o * tanh_cell);
            }
    }
}

/* `packed` is scratch of G times H numbers, `running` of twice B times H. */
static void peephole_scan_back(int T, int B, int H, const float *dh_out, const float *w_hh, const float *peephole,
                               const float *keep, const float *c, const float *tanh_c, const float *gates, float *dz,
                               float *d_peephole, float *packed, float *running) {
    const int G = 4 * H;
    float *dh = running, *dc = dh + B * H;
    const float *w_i = peephole, *w_f = w_i + H, *w_o = w_f + H;
    float *d_i = d_peephole, *d_f = d_i + H, *d_o = d_f + H;
    pack_strips(G, H, (Matrix){w_hh, H, 1}, packed);
    memset(running, 0, sizeof(float) * 2 * B * H);
    memset(d_peephole, 0, sizeof(float) * 3 * H);
    for (long t = T - 1; t >= 0; t--) {
        if (t < T - 1) by_strips(B, G, H, dz + (t + 1) * B * G, packed, dh);
        for (int b = 0; b < B; b++)
            for (int u = 0; u < H; u += LANES) {
                const long row = t * B + b, at = row * H + u;
                const float *z = gates + row * G + u;
                float *d = dz + row * G + u, *carried = dc + b * H + u;
                const vec i = load(z), f = load(z + H), g = load(z + 2 * H), o = load(z + 3 * H);
                const vec cell = load(c + at), tanh_cell = load(tanh_c + at);
                const vec kept = all(keep[row]);
                const vec c_before = (t ? load(c + at - B * H) : all(0)) * kept;
                const vec from_h = load(dh + b * H + u) * all(t < T - 1 ? keep[row + B] : 0) + load(dh_out + at);
                const vec z_o = from_h * tanh_cell * o * (1.0f - o);
                const vec from_c = load(carried) + from_h * o * (1.0f - tanh_cell * tanh_cell) + z_o * load(w_o + u);
                const vec z_i = from_c * g * i * (1.0f - i);
                const vec z_f = from_c * c_before * f * (1.0f - f);
                store(d, z_i);
                store(d + H, z_f);
                store(d + 2 * H, from_c * i * (1.0f - g * g));
                store(d + 3 * H, z_o);
                store(carried, (from_c * f + z_i * load(w_i + u) + z_f * load(w_f + u)) * kept);
                store(d_i + u, load(d_i + u) + z_i * c_before);
                store(d_f + u, load(d_f + u) + z_f * c_before);
                store(d_o + u, load(d_o + u) + z_o * cell);
            }
    }
}
