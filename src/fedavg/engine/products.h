/* Matrix products of the sizes that occur in training on small batches: c = alpha a b + beta d + bias, in float32.
 *
 * `a` is (m, k), `b` (k, n), both with any strides; the rows of c and d are dense, and d may be c. The sums of a tile
 * of c are registers. Wide panels of b are copied so that they are dense; where that would cost more than it saves (few
 * rows of a, or a short k) b is read in place. Sums over k are taken in order, in pieces of PIECE. Single-threaded.
 */
#pragma once
#include "packing.h"

/* A tile: rows of a by vectors of b. */
#if LANES == 8
#define WIDE 2
#else
#define WIDE 4
#endif
#define TALL 6
/* Rows of a narrow tile, whose sums also fill the registers, and vectors of the widest such tile. */
#define TALLEST 12
#define NARROW (WIDE / 2)
#define PANEL (WIDE * LANES)
#define PIECE 512
/* Up to this many rows of a, a transposed b is read along its own rows. */
#define FEW_ROWS 16
/* Up to this k, the product is added to c row by row: c takes most of the time. */
#define SHORT 32
/* How many rows ahead to prefetch an `a` that is strided along k: its lines may compete for few cache sets. */
#define AHEAD 12
/* Numbers in a cache line. */
#define LINE 16

/* What happens to the sums, and where they go. */
typedef struct {
    float *at;
    long row;
    float alpha, beta;
    const float *bias, *added;
    long added_row;
} Target;

/* c = alpha a b + beta c */
INLINE Target into(float *at, long row, float alpha, float beta) {
    return (Target){at, row, alpha, beta, NULL, at, row};
}

INLINE void finish(const Target *to, int row, int column, int width, vec sum) {
    vec value = sum * to->alpha;
    if (to->bias) value += load_some(to->bias + column, width);
    const float *d = to->added + row * to->added_row + column;
    if (to->beta == 1.0f) value += load_some(d, width);
    else if (to->beta != 0.0f) value += to->beta * load_some(d, width);
    store_some(to->at + row * to->row + column, value, width);
}

/* Loops over the sums of a tile are unrolled, so that the sums stay in registers. */
#define EACH_ROW _Pragma("GCC unroll 12") for (int i = 0; i < rows; i++)
#define EACH_VECTOR _Pragma("GCC unroll 4") for (int v = 0; v < vecs; v++)

/* c + alpha sum, rounded once: compilers join a product with the sum after it here and not there, and `sparse.h` must
 * round as tiles do. */
INLINE vec plus(vec c, float alpha, vec sum) {
#if LANES == 16
    return (vec)_mm512_fmadd_ps(_mm512_set1_ps(alpha), (__m512)sum, (__m512)c);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps(_mm256_set1_ps(alpha), (__m256)sum, (__m256)c);
#else
    return c + alpha * sum;
#endif
}

/* The same for a whole tile, each case by itself. */
INLINE void finish_tile(const int rows, const int vecs, vec sums[TALLEST][WIDE], const Target *to, int row, int column,
                        int width) {
    const float alpha = to->alpha, beta = to->beta;
    float *c = to->at + row * to->row + column;
    const float *d = to->added + row * to->added_row + column;
    if (width < vecs * LANES || (beta != 0.0f && (to->bias || beta != 1.0f))) {
        EACH_ROW EACH_VECTOR
            finish(to, row + i, column + v * LANES, smaller(LANES, width - v * LANES), sums[i][v]);
    } else if (beta != 0.0f) {
        EACH_ROW EACH_VECTOR
            store(c + i * to->row + v * LANES, plus(load(d + i * to->added_row + v * LANES), alpha, sums[i][v]));
    } else if (to->bias) {
        vec more[WIDE];
        EACH_VECTOR more[v] = load(to->bias + column + v * LANES);
        EACH_ROW EACH_VECTOR store(c + i * to->row + v * LANES, alpha * sums[i][v] + more[v]);
    } else {
        EACH_ROW EACH_VECTOR store(c + i * to->row + v * LANES, alpha * sums[i][v]);
    }
}

/* Prefetches the rows of a that the next tile reads. */
INLINE void fetch(const int rows, const float *a, long across) {
    EACH_ROW __builtin_prefetch(a + i * across, 0, 2);
}

INLINE void tile(const int rows, const int vecs, int k, const float *a, const long across, const long down,
                 const float *b, long step, const Target *to, int row, int column, int width) {
    vec sums[TALLEST][WIDE];
    EACH_ROW EACH_VECTOR {
        sums[i][v] = (vec){0};
        __builtin_prefetch(to->at + (row + i) * to->row + column + v * LANES, 1);
    }
    for (int p = 0; p < k;) {
        const int end = smaller(k, p + LINE);
        if (down == 1) fetch(rows, a + rows * across + p, across);
#pragma GCC unroll 2
        for (; p < end; p++) {
            vec values[WIDE];
            if (down != 1) __builtin_prefetch(a + (p + AHEAD) * down);
            EACH_VECTOR values[v] = load(b + p * step + v * LANES);
            EACH_ROW {
                const float factor = a[i * across + p * down];
                EACH_VECTOR sums[i][v] += factor * values[v];
            }
        }
    }
    finish_tile(rows, vecs, sums, to, row, column, width);
}

typedef void (*Tile)(int k, Matrix a, const float *b, long step, const Target *to, int row, int column, int width);

/* A single row of `a` may have any strides; several are dense along k or across it, so that there is less to
 * compile. */
#define TILE(rows, vecs)                                                                                              \
    static void tile_##rows##_##vecs(int k, Matrix a, const float *b, long step, const Target *to, int row, int column, \
                                     int width) {                                                                     \
        if (a.column == 1) tile(rows, vecs, k, a.at, a.row, 1, b, step, to, row, column, width);                      \
        else tile(rows, vecs, k, a.at, 1, a.column, b, step, to, row, column, width);                                 \
    }
#define TILES(vecs) TILE(1, vecs) TILE(2, vecs) TILE(3, vecs) TILE(4, vecs) TILE(5, vecs) TILE(6, vecs)
#define TALL_TILES(vecs) TILES(vecs) TILE(7, vecs) TILE(8, vecs) TILE(9, vecs) TILE(10, vecs) TILE(11, vecs) TILE(12, vecs)
#define NAMES(vecs) tile_1_##vecs, tile_2_##vecs, tile_3_##vecs, tile_4_##vecs, tile_5_##vecs, tile_6_##vecs
#define TALL_NAMES(vecs) NAMES(vecs), tile_7_##vecs, tile_8_##vecs, tile_9_##vecs, tile_10_##vecs, tile_11_##vecs, tile_12_##vecs
TALL_TILES(1)
#if WIDE > 2
TALL_TILES(2)
TILES(3)
TILES(4)
static const Tile tiles[WIDE][TALLEST] = {{TALL_NAMES(1)}, {TALL_NAMES(2)}, {NAMES(3)}, {NAMES(4)}};
#else
TILES(2)
static const Tile tiles[WIDE][TALLEST] = {{TALL_NAMES(1)}, {NAMES(2)}};
#endif

/* Of each thread its own: an app may train in several. */
static _Thread_local float panel[PIECE * PANEL] __attribute__((aligned(64)));

static void by_panels(int m, int n, int k, Matrix a, Matrix b, const Target *to) {
    float *const own = panel; /* where a thread's own room is, is asked once */
    for (int p = 0; p == 0 || p < k; p += PIECE) {
        const int depth = smaller(PIECE, k - p);
        Target piece = *to;
        if (p) piece = into(to->at, to->row, to->alpha, 1.0f);
        for (int j = 0; j < n; j += PANEL) {
            const int width = smaller(PANEL, n - j), vecs = (width + LANES - 1) / LANES;
            const Matrix part = {b.at + p * b.row + j * b.column, b.row, b.column};
            const float *from = part.at;
            long step = part.row;
            if (part.column != 1 || width % LANES || m > 4 * TALL) {
                pack(depth, width, vecs * LANES, part, own);
                from = own, step = vecs * LANES;
            }
            for (int i = 0, rows; i < m; i += rows) {
                rows = part_of(m, i, a.row != 1 && a.column != 1 ? 1 : vecs <= NARROW ? TALLEST : TALL);
                const Matrix block = {a.at + i * a.row + p * a.column, a.row, a.column};
                tiles[vecs - 1][rows - 1](depth, block, from, step, &piece, i, j, width);
            }
        }
    }
}

/* c = beta d + a b for some rows of c and `vecs` vectors of each; `a` is stored as (k, rows). */
INLINE void rank(const int rows, const int vecs, int k, const float *a, const float *b, long step, const Target *to,
                 int row, int column, int width) {
    const float *d = to->added + row * to->added_row + column;
    float *c = to->at + row * to->row + column;
    vec sums[TALL][WIDE];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vecs; v++) sums[i][v] = to->beta * load_some(d + i * to->added_row + v * LANES, width);
    for (int p = 0; p < k; p++) {
        vec values[WIDE];
        for (int v = 0; v < vecs; v++) values[v] = load_some(b + p * step + v * LANES, width);
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < vecs; v++) sums[i][v] += a[p * rows + i] * values[v];
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vecs; v++) store_some(c + i * to->row + v * LANES, sums[i][v], width);
}

INLINE void rank_row(const int rows, int n, int k, const float *a, const float *b, long step, const Target *to, int row) {
    int j = 0;
    for (; j + PANEL <= n; j += PANEL) rank(rows, WIDE, k, a, b + j, step, to, row, j, LANES);
    for (; j < n; j += LANES) rank(rows, 1, k, a, b + j, step, to, row, j, smaller(LANES, n - j));
}

/* c = beta d + alpha a b row by row, for a short k; b stays in the cache. */
static void by_rows(int m, int n, int k, Matrix a, Matrix b, const Target *to) {
    float block[SHORT * TALL];
    for (int i = 0, rows; i < m; i += rows) {
        rows = part_of(m, i, TALL);
        for (int p = 0; p < k; p++)
            for (int r = 0; r < rows; r++) block[p * rows + r] = to->alpha * a.at[(i + r) * a.row + p * a.column];
        switch (rows) {
        case 1: rank_row(1, n, k, block, b.at, b.row, to, i); break;
        case 2: rank_row(2, n, k, block, b.at, b.row, to, i); break;
        case 3: rank_row(3, n, k, block, b.at, b.row, to, i); break;
        case 4: rank_row(4, n, k, block, b.at, b.row, to, i); break;
        case 5: rank_row(5, n, k, block, b.at, b.row, to, i); break;
        default: rank_row(6, n, k, block, b.at, b.row, to, i); break;
        }
    }
}

/* The totals of WIDE vectors. */
INLINE void totals(const vec *sums, float *to) {
#if LANES == 16
    const __m512 a = (__m512)sums[0], b = (__m512)sums[1], c = (__m512)sums[2], d = (__m512)sums[3];
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512d first = _mm512_castps_pd(ab), second = _mm512_castps_pd(cd);
    const __m512 all_of = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(first, second)),
                                        _mm512_castpd_ps(_mm512_unpackhi_pd(first, second)));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all_of), _mm512_extractf32x8_ps(all_of, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#else
    for (int j = 0; j < WIDE; j++) to[j] = total(sums[j]);
#endif
}

/* One step of the sums along k: LANES numbers, or fewer at the end. */
INLINE void dots_step(const int rows, const int columns, int count, Matrix a, Matrix b, int p, vec sums[TALL][WIDE]) {
    vec values[WIDE];
    for (int j = 0; j < columns; j++) values[j] = load_some(b.at + j * b.column + p, count);
    for (int i = 0; i < rows; i++) {
        const vec value = load_some(a.at + i * a.row + p, count);
        for (int j = 0; j < columns; j++) sums[i][j] += value * values[j];
    }
}

/* Dot products of `rows` rows of a with `columns` columns of b, both contiguous along k. */
INLINE void dots(const int rows, const int columns, int k, Matrix a, Matrix b, const Target *to, int row, int column) {
    vec sums[TALL][WIDE];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) sums[i][j] = (vec){0};
    const int whole = k - k % LANES;
    for (int p = 0; p < whole; p += LANES) dots_step(rows, columns, LANES, a, b, p, sums);
    if (whole < k) dots_step(rows, columns, k - whole, a, b, whole, sums);
    for (int i = 0; i < rows; i++) {
        float *c = to->at + (row + i) * to->row + column, values[WIDE];
        const float *d = to->added + (row + i) * to->added_row + column;
        if (columns == WIDE) totals(sums[i], values);
        else values[0] = total(sums[i][0]);
        for (int j = 0; j < columns; j++) {
            const float value = values[j] * to->alpha + (to->bias ? to->bias[column + j] : 0.0f);
            c[j] = to->beta == 0.0f ? value : value + to->beta * d[j];
        }
    }
}

static void dots_of(int rows, int k, Matrix a, Matrix b, const Target *to, int row, int column) {
    switch (rows) {
    case 1: dots(1, WIDE, k, a, b, to, row, column); break;
    case 2: dots(2, WIDE, k, a, b, to, row, column); break;
    case 3: dots(3, WIDE, k, a, b, to, row, column); break;
    case 4: dots(4, WIDE, k, a, b, to, row, column); break;
    case 5: dots(5, WIDE, k, a, b, to, row, column); break;
    default: dots(6, WIDE, k, a, b, to, row, column); break;
    }
}

static void by_dots(int m, int n, int k, Matrix a, Matrix b, const Target *to) {
    const int whole = n - n % WIDE;
    for (int j = 0; j < whole; j += WIDE)
        for (int i = 0, rows; i < m; i += rows) {
            rows = part_of(m, i, TALL);
            dots_of(rows, k, (Matrix){a.at + i * a.row, a.row, 1}, (Matrix){b.at + j * b.column, 1, b.column}, to, i, j);
        }
    for (int j = whole; j < n; j++)
        for (int i = 0; i < m; i++)
            dots(1, 1, k, (Matrix){a.at + i * a.row, a.row, 1}, (Matrix){b.at + j * b.column, 1, b.column}, to, i, j);
}

static void product(int m, int n, int k, Matrix a, Matrix b, Target to) {
    if (m <= FEW_ROWS && b.row == 1 && b.column != 1 && a.column == 1 && k >= LANES) by_dots(m, n, k, a, b, &to);
    else if (k <= SHORT && b.column == 1 && to.beta != 0.0f && !to.bias) by_rows(m, n, k, a, b, &to);
    else by_panels(m, n, k, a, b, &to);
}
