/* The recurrence of a peephole LSTM and its gradient; lstm.py states the equations and the layouts.
 *
 * T steps, B rows, H units (a multiple of PANEL), G = 4H gates in the order i, f, g, o. All arrays are dense and
 * row-major: gates and dz (T, B, G), h, c and tanh_c (T, B, H), w_hh (G, H), peephole (3, H), keep (T, B), which is 0
 * where a sequence starts and else 1. Single-threaded.
 *
 * Two things make it fast: the product of the few rows of a batch with the recurrent weights keeps its results in
 * registers while it streams the weights once, packed in the order in which they are read; and what follows it in a
 * time step is one pass over the gates while they are in the cache.
 */
#include <stdlib.h>
#include <string.h>

/* Lanes of a vector, and rows of a batch whose two vectors of sums fit in the registers beside the weights. */
#if defined(__AVX512F__)
#define LANES 16
#define ROWS 12
#elif defined(__AVX__)
#define LANES 8
#define ROWS 6
#elif defined(__aarch64__)
#define LANES 4
#define ROWS 12
#else
#error "nothing is gained here without wide vectors"
#endif
#define PANEL (2 * LANES)

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float *from) { return *(const vec *)from; }
static inline void store(float *to, vec v) { *(vec *)to = v; }
static inline vec all(float x) { return x - (vec){0}; }
static inline vec pick(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

/* e^x to about one unit in the last place: x = n ln 2 + r, a polynomial for e^r, and n added to the exponent's bits.
 * Adding and taking away 1.5 * 2^23 rounds to the nearest whole number. Not a number stays not a number. */
static inline vec exponential(vec x) {
    x = pick(x < all(-87), all(-87), x);
    x = pick(x > all(87), all(87), x);
    const vec n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    const vec r = x - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts, the first exact */
    vec p = all(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    return p * (vec)((__builtin_convertvector(n, ivec) + 127) << 23);
}

static inline vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }
static inline vec hyperbolic_tangent(vec x) { return 2.0f / (1.0f + exponential(-2.0f * x)) - 1.0f; }

/* out (rows, PANEL) = x (rows, K) panel (K, PANEL). Inlined for each number of rows, so that the sums are registers. */
static inline __attribute__((always_inline)) void block(const int rows, int K, const float *x, const float *panel,
                                                        float *out, int width) {
    vec left[ROWS], right[ROWS];
    for (int r = 0; r < rows; r++) left[r] = right[r] = all(0);
    for (int k = 0; k < K; k++) {
        const vec a = load(panel + k * PANEL), b = load(panel + k * PANEL + LANES);
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

static void block_of(int rows, int K, const float *x, const float *panel, float *out, int width) {
    switch (rows) {
    case 1: block(1, K, x, panel, out, width); break;
    case 2: block(2, K, x, panel, out, width); break;
    case 3: block(3, K, x, panel, out, width); break;
    case 4: block(4, K, x, panel, out, width); break;
    case 5: block(5, K, x, panel, out, width); break;
    case 6: block(6, K, x, panel, out, width); break;
#if ROWS == 12
    case 7: block(7, K, x, panel, out, width); break;
    case 8: block(8, K, x, panel, out, width); break;
    case 9: block(9, K, x, panel, out, width); break;
    case 10: block(10, K, x, panel, out, width); break;
    case 11: block(11, K, x, panel, out, width); break;
    case 12: block(12, K, x, panel, out, width); break;
#endif
    }
}

/* out (B, N) = x (B, K) w (K, N), with w packed in panels of PANEL columns; rows in blocks of even size. */
static void product(int B, int K, int N, const float *x, const float *packed, float *out) {
    const int blocks = (B + ROWS - 1) / ROWS, size = (B + blocks - 1) / blocks;
    for (int n = 0; n < N; n += PANEL)
        for (int row = 0; row < B; row += size)
            block_of(B - row < size ? B - row : size, K, x + row * K, packed + n * K, out + row * N + n, N);
}

/* 0, or 1 if there is no memory. */
int peephole_scan(int T, int B, int H, const float *gates_x, const float *w_hh, const float *peephole,
                  const float *keep, float *h, float *c, float *tanh_c, float *gates) {
    const int G = 4 * H;
    float *packed = malloc(sizeof(float) * G * H);
    if (!packed) return 1;
    for (int n = 0; n < G; n += PANEL)
        for (int k = 0; k < H; k++)
            for (int lane = 0; lane < PANEL; lane++) packed[n * H + k * PANEL + lane] = w_hh[(n + lane) * H + k];
    const float *w_i = peephole, *w_f = w_i + H, *w_o = w_f + H;
    for (long t = 0; t < T; t++) {
        if (t) product(B, H, G, h + (t - 1) * B * H, packed, gates + t * B * G);
        else memset(gates, 0, sizeof(float) * B * G);
        for (long row = t * B; row < (t + 1) * B; row++)
            for (int u = 0; u < H; u += LANES) {
                float *z = gates + row * G + u;
                const float *x = gates_x + row * G + u;
                const vec kept = all(keep[row]);
                const vec c_before = (t ? load(c + (row - B) * H + u) : all(0)) * kept;
                const vec i = sigmoid(load(z) * kept + load(x) + load(w_i + u) * c_before);
                const vec f = sigmoid(load(z + H) * kept + load(x + H) + load(w_f + u) * c_before);
                const vec g = hyperbolic_tangent(load(z + 2 * H) * kept + load(x + 2 * H));
                const vec cell = f * c_before + i * g;
                const vec o = sigmoid(load(z + 3 * H) * kept + load(x + 3 * H) + load(w_o + u) * cell);
                const vec tanh_cell = hyperbolic_tangent(cell);
                store(z, i);
                store(z + H, f);
                store(z + 2 * H, g);
                store(z + 3 * H, o);
                store(c + row * H + u, cell);
                store(tanh_c + row * H + u, tanh_cell);
                store(h + row * H + u, o * tanh_cell);
            }
    }
    free(packed);
    return 0;
}

/* 0, or 1 if there is no memory. */
int peephole_scan_backward(int T, int B, int H, const float *dh_out, const float *w_hh, const float *peephole,
                           const float *keep, const float *c, const float *tanh_c, const float *gates, float *dz,
                           float *d_peephole) {
    const int G = 4 * H;
    float *memory = malloc(sizeof(float) * (G * H + 2 * B * H));
    if (!memory) return 1;
    float *packed = memory, *dh = packed + G * H, *dc = dh + B * H;
    for (int k = 0; k < G; k++)
        for (int n = 0; n < H; n += PANEL) memcpy(packed + n * G + k * PANEL, w_hh + k * H + n, sizeof(float) * PANEL);
    memset(dh, 0, sizeof(float) * 2 * B * H);
    memset(d_peephole, 0, sizeof(float) * 3 * H);
    const float *w_i = peephole, *w_f = w_i + H, *w_o = w_f + H;
    float *d_i = d_peephole, *d_f = d_i + H, *d_o = d_f + H;
    for (long t = T - 1; t >= 0; t--) {
        if (t < T - 1) product(B, G, H, dz + (t + 1) * B * G, packed, dh);
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
    free(memory);
    return 0;
}

/* H must be a multiple of this. */
int panel(void) { return PANEL; }
