/* The mean of some ranks of each coordinate, for a few updates or for combinations of them. Single-threaded.
 *
 * A block of coordinates of all rows fits in the L1 cache: it is mixed, sorted and averaged there, so that the updates
 * are read once and only the result is written to memory. The bits are the same as NumPy's: a product is rounded before
 * it is added (no fused multiply-add).
 */
#include <stdint.h>
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#define WIDTH 64
#define MOST_ROWS 32

#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8
#endif
typedef float floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
/* Sums at a time: the size of a block; they stay in registers. */
#define SUMS (WIDTH / LANES)

static void mix_block(long vectors, const float *const *from, const float *weights, long start, float *row) {
    floats sums[SUMS] = {{0}};
    for (long j = 0; j < vectors; j++) {
        if (weights[j] == 0) continue;
        for (int k = 0; k < SUMS; k++) sums[k] += weights[j] * *(const floats *)(from[j] + start + k * LANES);
    }
    for (int k = 0; k < SUMS; k++) *(floats *)(row + k * LANES) = sums[k];
}

/* The same for fewer coordinates than a block has. */
static void mix_rest(long vectors, const float *const *from, const float *weights, long start, long width, float *row) {
    for (int i = 0; i < WIDTH; i++) row[i] = 0;
    for (long j = 0; j < vectors; j++)
        if (weights[j] != 0)
            for (long i = 0; i < width; i++) row[i] += weights[j] * from[j][start + i];
}

static void mix_row(long vectors, const float *const *from, const float *weights, long start, long width, float *row) {
    if (width == WIDTH) mix_block(vectors, from, weights, start, row);
    else mix_rest(vectors, from, weights, start, width, row);
}

static void copy_row(const float *from, long width, float *row) {
    for (long i = 0; i < width; i++) row[i] = from[i];
    for (long i = width; i < WIDTH; i++) row[i] = 0;
}

/* Puts the values of two rows in order, coordinate by coordinate. */
static void put_in_order(float *low, float *high) {
    for (int i = 0; i < WIDTH; i++) {
        const float a = low[i], b = high[i];
        low[i] = a < b ? a : b;
        high[i] = a < b ? b : a;
    }
}

/* `mix` has shape (rows, vectors), or is null: the rows are the vectors. `network` has `pairs` pairs of rows to put in
 * order. The ranks are those from `first` up to but not including `last`. */
int rank_means(long rows, long vectors, long size, long pairs, long first, long last, const float *const *from,
               const float *mix, const int32_t *network, double *means) {
    float block[MOST_ROWS][WIDTH] __attribute__((aligned(64)));
    if (rows > MOST_ROWS) return 1;
    for (long start = 0; start < size; start += WIDTH) {
        const long width = size - start < WIDTH ? size - start : WIDTH;
        for (long row = 0; row < rows; row++) {
            if (mix) mix_row(vectors, from, mix + row * vectors, start, width, block[row]);
            else copy_row(from[row] + start, width, block[row]);
        }
        for (long pair = 0; pair < pairs; pair++) put_in_order(block[network[2 * pair]], block[network[2 * pair + 1]]);
        double sums[WIDTH];
        for (int i = 0; i < WIDTH; i++) sums[i] = block[first][i];
        for (long rank = first + 1; rank < last; rank++)
            for (int i = 0; i < WIDTH; i++) sums[i] += block[rank][i];
        const double count = (double)(last - first);
        for (long i = 0; i < width; i++) means[start + i] = sums[i] / count;
    }
    return 0;
}
