/* Products in which one factor is mostly zeros, such as pixels and outputs of ReLU: the zeros are skipped.
 *
 * Each sum is taken over the other numbers in the order of `by_panels`, so its bits are the same. Who is mostly zeros
 * is found by looking at a few rows: that changes the time, never a bit.
 */
#pragma once
#include <stdint.h>
#include "products.h"

/* Vectors of sums in registers. */
#define REACH (LANES == 16 ? 14 : 12)
/* Products with fewer rows or columns are too short for it to pay. */
#define ENOUGH 64
/* One in this many rows is sampled. */
#define LOOKED_AT 16
/* It pays if at most this fraction of the numbers is nonzero. */
#define OTHERS (LANES == 16 ? 0.3f : 0.25f)

/* The nonzero numbers of a row, and their positions. */
typedef struct {
    int count;
    int32_t where[PIECE + LANES];
    float what[PIECE + LANES];
} Others;

static _Thread_local Others others[LANES];
static _Thread_local float standing[LANES * PIECE] __attribute__((aligned(64)));
static _Thread_local float beside[PIECE * REACH * LANES] __attribute__((aligned(64)));

static void find_others(int count, const float *x, Others *to) {
    int found = 0;
#if LANES == 16
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int p = 0; p < count; p += LANES) {
        const __m512 values = (__m512)load_some(x + p, count - p);
        const __mmask16 which = _mm512_cmp_ps_mask(values, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        const __m512i where = _mm512_add_epi32(places, _mm512_set1_epi32(p));
        _mm512_storeu_ps(to->what + found, _mm512_maskz_compress_ps(which, values));
        _mm512_storeu_si512(to->where + found, _mm512_maskz_compress_epi32(which, where));
        found += __builtin_popcount(which);
    }
#else
    int p = 0;
#if defined(__AVX2__) && defined(__BMI2__)
    for (; p + LANES <= count; p += LANES) {
        const __m256 values = (__m256)load(x + p);
        const unsigned which = _mm256_movemask_ps(_mm256_cmp_ps(values, _mm256_setzero_ps(), _CMP_NEQ_UQ));
        const uint64_t bytes = _pdep_u64(which, 0x0101010101010101) * 0xff;
        const __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)_pext_u64(0x0706050403020100, bytes)));
        _mm256_storeu_ps(to->what + found, _mm256_permutevar8x32_ps(values, order));
        _mm256_storeu_si256((__m256i *)(to->where + found), _mm256_add_epi32(order, _mm256_set1_epi32(p)));
        found += __builtin_popcount(which);
    }
#endif
    for (; p < count; p++) {
        to->where[found] = p, to->what[found] = x[p];
        found += x[p] != 0.0f;
    }
#endif
    to->count = found;
}

/* The sum of rows of `beside`, each times a number. */
INLINE void gather(const int vecs, const Others *row, const float *room, vec *to) {
    vec sums[REACH];
#pragma GCC unroll 14
    for (int v = 0; v < vecs; v++) sums[v] = (vec){0};
    for (int i = 0; i < row->count; i++) {
        const float factor = row->what[i], *from = room + (long)row->where[i] * (vecs * LANES);
#pragma GCC unroll 14
        for (int v = 0; v < vecs; v++) sums[v] += factor * load(from + v * LANES);
    }
#pragma GCC unroll 14
    for (int v = 0; v < vecs; v++) to[v] = sums[v];
}

typedef void (*Gather)(const Others *row, const float *room, vec *to);
#define GATHER(vecs) \
    static void gather_##vecs(const Others *row, const float *room, vec *to) { gather(vecs, row, room, to); }
GATHER(1) GATHER(2) GATHER(3) GATHER(4) GATHER(5) GATHER(6) GATHER(7) GATHER(8) GATHER(9) GATHER(10) GATHER(11) GATHER(12)
#if LANES == 16
GATHER(13) GATHER(14)
#endif
static const Gather gathers[REACH] = {
    gather_1, gather_2, gather_3, gather_4, gather_5, gather_6, gather_7, gather_8, gather_9, gather_10, gather_11, gather_12,
#if LANES == 16
    gather_13, gather_14,
#endif
};

/* True if each sum is sure to be rounded alike here and in the tiles of `by_panels`, where compilers join some products
 * with the sum after them, and not others. What is added must be the target itself: later
 * pieces of k are added to what the first one left there. */
static int rounds_alike(int n, const Target *to) {
    if (to->added != to->at) return 0;
    return to->alpha == 1.0f || (n % LANES == 0 && to->beta == 1.0f && !to->bias);
}

/* Writes a vector of sums to its place. */
INLINE void put(const Target *to, int row, int column, int n, vec sum) {
    float *c = to->at + row * to->row + column;
    if (to->alpha == 1.0f) finish(to, row, column, smaller(LANES, n - column), sum);
    else store(c, plus(load(c), to->alpha, sum));
}

/* The product when the rows of a, contiguous along k, are mostly zeros. */
static void by_sparse_rows(int m, int n, int k, Matrix a, Matrix b, const Target *to) {
    Others *const found = others; /* where a thread's own room is, is asked once */
    float *const room = beside;
    vec sums[REACH];
    for (int p = 0; p < k; p += PIECE) {
        const int depth = smaller(PIECE, k - p);
        Target piece = *to;
        if (p) piece.beta = 1.0f, piece.bias = NULL;
        for (int j = 0, width; j < n; j += width) {
            const int vecs = part_of((n + LANES - 1) / LANES, j / LANES, REACH);
            width = vecs * LANES;
            pack(depth, smaller(width, n - j), width, (Matrix){b.at + p * b.row + j * b.column, b.row, b.column}, room);
            for (int i = 0; i < m; i++) {
                find_others(depth, a.at + i * a.row + p, found);
                gathers[vecs - 1](found, room, sums);
                for (int v = 0; v < vecs; v++) put(&piece, i, j + v * LANES, n, sums[v]);
            }
        }
    }
}

/* Transposes up to LANES columns of b, whose rows are dense, so that each is contiguous along k. */
static void stand(int k, int columns, Matrix b, float *to) {
    int p = 0;
    if (columns == LANES)
        for (; p + LANES <= k; p += LANES)
            for (int x = 0; x < LANES; x += 4) turn_four(b.at + p * b.row + x, b.row, to + x * PIECE + p, PIECE);
    for (; p < k; p++)
        for (int x = 0; x < columns; x++) to[x * PIECE + p] = b.at[p * b.row + x];
}

/* The product when the columns of b, whose rows are dense, are mostly zeros: LANES of them at a time. */
static void by_sparse_columns(int m, int n, int k, Matrix a, Matrix b, const Target *to) {
    Others *const found = others;
    float *const room = beside, *const turned = standing;
    vec sums[LANES * REACH], tile[LANES];
    for (int p = 0; p < k; p += PIECE) {
        const int depth = smaller(PIECE, k - p);
        Target piece = *to;
        if (p) piece.beta = 1.0f, piece.bias = NULL;
        for (int i = 0, height; i < m; i += height) {
            const int vecs = part_of((m + LANES - 1) / LANES, i / LANES, REACH);
            height = vecs * LANES;
            const Matrix rows = {a.at + i * a.row + p * a.column, a.column, a.row};
            pack(depth, smaller(height, m - i), height, rows, room);
            for (int j = 0; j < n; j += LANES) {
                const int columns = smaller(LANES, n - j);
                stand(depth, columns, (Matrix){b.at + p * b.row + j, b.row, 1}, turned);
                for (int x = 0; x < columns; x++) {
                    find_others(depth, turned + x * PIECE, found);
                    gathers[vecs - 1](found, room, sums + x * vecs);
                }
                for (int x = columns * vecs; x < LANES * vecs; x++) sums[x] = (vec){0};
                for (int v = 0; v < vecs; v++) {
                    for (int r = 0; r < LANES; r += 4)
                        turn_four((float *)(sums + v) + r, vecs * LANES, (float *)(tile + r), LANES);
                    for (int r = 0; r < smaller(LANES, m - i - v * LANES); r++)
                        put(&piece, i + v * LANES + r, j, n, tile[r]);
                }
            }
        }
    }
}

/* True if no number of some rows is infinite or NaN: zero times those would not be zero. */
static int all_finite(long rows, long n, const float *at, long row) {
    for (long i = 0; i < rows; i++) {
        vec zeros = {0};
        for (long j = 0; j < n; j += LANES) zeros += 0.0f * load_some(at + i * row + j, (int)least(LANES, n - j));
        if (total(zeros) != 0.0f) return 0;
    }
    return 1;
}

/* The same for a matrix whose rows or columns are dense. */
static int is_finite(long rows, long columns, Matrix x) {
    if (x.column == 1) return all_finite(rows, columns, x.at, x.row);
    return x.row == 1 && all_finite(columns, rows, x.at, x.column);
}

/* True if rows are dense in memory and mostly zeros; one in LOOKED_AT is sampled. */
static int mostly_zeros(int rows, int n, Matrix x) {
    int seen = 0, found = 0;
    if (x.column != 1) return 0;
    for (int i = LOOKED_AT / 2; i < rows; i += LOOKED_AT, seen += n)
        for (int j = 0; j < n; j++) found += x.at[i * x.row + j] != 0.0f;
    return (float)found < OTHERS * (float)seen;
}

/* True if the product was done this way. */
static int skip_zeros(int m, int n, int k, Matrix a, Matrix b, const Target *to) {
    if (m < ENOUGH || n < ENOUGH || k < ENOUGH || !rounds_alike(n, to)) return 0;
    if (mostly_zeros(m, k, a) && is_finite(k, n, b)) {
        by_sparse_rows(m, n, k, a, b, to);
        return 1;
    }
    if (mostly_zeros(k, n, b) && is_finite(m, k, a)) {
        by_sparse_columns(m, n, k, a, b, to);
        return 1;
    }
    return 0;
}
