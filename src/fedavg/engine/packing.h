/* Matrices with any strides, and copies of their columns with dense rows. */
#pragma once
#include "vectors.h"

typedef struct {
    const float *at;
    long row, column;
} Matrix;

/* The size of the next part when the rows from `row` on are split into parts of about the same size. */
INLINE int part_of(int rows, int row, int most) {
    const int left = rows - row, parts = (left + most - 1) / most;
    return (left + parts - 1) / parts;
}

/* Four numbers of each of LANES columns that are contiguous along k, transposed: four vectors. */
#if LANES == 16
INLINE __m512 every_fourth(const float *at, long column) {
    const __m256 low = _mm256_loadu2_m128(at + 4 * column, at), high = _mm256_loadu2_m128(at + 12 * column, at + 8 * column);
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}
#define WITH(name) _mm512_##name
#elif LANES == 8
INLINE __m256 every_fourth(const float *at, long column) { return _mm256_loadu2_m128(at + 4 * column, at); }
#define WITH(name) _mm256_##name
#endif
INLINE void turn_four(const float *at, long column, float *to, long row) {
#if LANES == 4
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < LANES; x++) to[y * row + x] = at[x * column + y];
#else
    const __typeof__(every_fourth(at, column)) a = every_fourth(at, column), b = every_fourth(at + column, column);
    const __typeof__(a) c = every_fourth(at + 2 * column, column), d = every_fourth(at + 3 * column, column);
    const __typeof__(WITH(castps_pd)(a)) ab = WITH(castps_pd)(WITH(unpacklo_ps)(a, b));
    const __typeof__(ab) cd = WITH(castps_pd)(WITH(unpacklo_ps)(c, d));
    const __typeof__(ab) later_ab = WITH(castps_pd)(WITH(unpackhi_ps)(a, b));
    const __typeof__(ab) later_cd = WITH(castps_pd)(WITH(unpackhi_ps)(c, d));
    store(to, (vec)WITH(unpacklo_pd)(ab, cd));
    store(to + row, (vec)WITH(unpackhi_pd)(ab, cd));
    store(to + 2 * row, (vec)WITH(unpacklo_pd)(later_ab, later_cd));
    store(to + 3 * row, (vec)WITH(unpackhi_pd)(later_ab, later_cd));
#endif
}

/* `across` columns of b, up to LANES, as dense rows, padded with zeros. */
static void pack_turned(int k, int across, int padded, Matrix b, float *to) {
    int p = 0;
    if (across == LANES && b.row == 1)
        for (; p + 4 <= k; p += 4) turn_four(b.at + p, b.column, to + (long)p * padded, padded);
    for (; p < k; p++)
        for (int x = 0; x < LANES; x++)
            to[(long)p * padded + x] = x < across ? b.at[p * b.row + x * b.column] : 0.0f;
}

/* Columns of b as dense rows, padded with zeros to a whole number of vectors. */
static void pack(int k, int width, int padded, Matrix b, float *to) {
    if (b.column == 1)
        for (int p = 0; p < k; p++)
            for (int j = 0; j < padded; j += LANES)
                store(to + (long)p * padded + j, load_some(b.at + p * b.row + j, smaller(LANES, width - j)));
    else
        for (int j = 0; j < padded; j += LANES) {
            const Matrix columns = {b.at + j * b.column, b.row, b.column};
            pack_turned(k, smaller(LANES, width - j), padded, columns, to + j);
        }
}
