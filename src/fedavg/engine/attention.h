/* Scaled dot-product attention, forward and backward, head by head: intermediate results never leave the cache.
 *
 * q, k, v and the output are (batch, heads, length, width), each with its own strides, of which the last is 1. Scores
 * and weights are stored transposed, keys by queries: a reduction over keys, such as their maximum, then runs for LANES
 * queries at once, and no vector is ever summed across its lanes.
 */
#pragma once
#include "layers.h"
#include "products.h"

/* Queries handled at a time: the most numbers in a row of weights. */
#define QUERIES 64

typedef struct {
    float *at;
    long batch, head, row;
} Heads;

typedef struct {
    long batch, heads, queries, keys, width;
    float scale;
    int causal;
} Attention;

/* Some queries of a head: the first one, how many, how many keys, and the distance between rows of their weights. */
typedef struct {
    long first;
    int count, keys, wide, causal;
} Block;

INLINE float *head_of(const Heads *heads, long b, long h) { return heads->at + b * heads->batch + h * heads->head; }
INLINE Matrix rows_of(const float *at, long row) { return (Matrix){at, row, 1}; }
INLINE Matrix turned(const float *at, long row) { return (Matrix){at, 1, row}; }

INLINE Block block_at(const Attention *how, long first) {
    const int count = (int)least(QUERIES, how->queries - first);
    const long seen = how->causal ? least(how->keys, first + count) : how->keys; /* by any of these queries */
    return (Block){first, count, (int)seen, (count + LANES - 1) / LANES * LANES, how->causal};
}

/* How many keys any of LANES queries from `query` on sees. */
INLINE long seen_by(const Block *block, long query) {
    return block->causal ? least(block->keys, query + LANES) : block->keys;
}

/* Zeros for the weights of keys that none of them sees. */
INLINE void clear_unseen(const Block *block, long seen, float *p) {
    for (long j = seen; j < block->keys; j++) store(p + j * block->wide, (vec){0});
}

INLINE vec lane_numbers(void) {
    float numbers[LANES];
    for (int lane = 0; lane < LANES; lane++) numbers[lane] = (float)lane;
    return load(numbers);
}

/* `value`, or `otherwise` for those of LANES queries from `query` on that do not see the key. */
INLINE vec if_seen(const Block *block, long query, long key, vec value, float otherwise) {
    if (!block->causal || key <= query) return value;
    return chosen(lane_numbers() < all((float)(key - query)), all(otherwise), value);
}

/* Turns the scores of LANES queries, a column each, into weights that sum to 1. Returns the logarithm of their
 * normaliser. */
INLINE vec weights_of(const Block *block, long query, float *p) {
    const long seen = seen_by(block, query);
    vec most = all(-__builtin_inff()), sum = {0};
    for (long j = 0; j < seen; j++) {
        const vec score = if_seen(block, query, j, load(p + j * block->wide), -__builtin_inff());
        most = larger_of(score, most);
    }
    for (long j = 0; j < seen; j++) {
        float *at = p + j * block->wide;
        const vec value = if_seen(block, query, j, exponential(load(at) - most), 0.0f);
        store(at, value);
        sum += value;
    }
    const vec by = 1.0f / sum;
    for (long j = 0; j < seen; j++) store(p + j * block->wide, load(p + j * block->wide) * by);
    clear_unseen(block, seen, p);
    return most + logarithm(sum);
}

/* The transposed scores: scale k q'. */
INLINE void scores(const Attention *how, const Block *block, const float *q, long q_row, const float *k, long k_row,
                   float *p) {
    product(block->keys, block->count, (int)how->width, rows_of(k, k_row), turned(q, q_row),
            into(p, block->wide, how->scale, 0));
}

/* `scratch` has QUERIES times `keys` numbers. Logarithms are stored for the backward pass: strides batch, head, row. */
static void attend(const Attention *how, const Heads *q, const Heads *k, const Heads *v, const Heads *out,
                   const Heads *logarithms, float *scratch) {
    for (long b = 0; b < how->batch; b++)
        for (long h = 0; h < how->heads; h++)
            for (long i = 0; i < how->queries; i += QUERIES) {
                const Block block = block_at(how, i);
                float noted[QUERIES], *notes = head_of(logarithms, b, h) + i * logarithms->row;
                scores(how, &block, head_of(q, b, h) + i * q->row, q->row, head_of(k, b, h), k->row, scratch);
                for (int c = 0; c < block.wide; c += LANES) store(noted + c, weights_of(&block, i + c, scratch + c));
                for (int c = 0; c < block.count; c++) notes[c * logarithms->row] = noted[c];
                product(block.count, (int)how->width, block.keys, turned(scratch, block.wide),
                        rows_of(head_of(v, b, h), v->row), into(head_of(out, b, h) + i * out->row, out->row, 1, 0));
            }
}

/* For LANES queries: turns scores into weights again, by their logarithms, and the gradients of weights into those of
 * scores. */
INLINE void scores_back(const Block *block, long query, vec logarithms, float *p, float *dp) {
    const long seen = seen_by(block, query);
    vec inner = {0};
    for (long j = 0; j < seen; j++) {
        const long at = j * block->wide;
        const vec weight = if_seen(block, query, j, exponential(load(p + at) - logarithms), 0.0f);
        store(p + at, weight);
        inner += weight * load(dp + at);
    }
    for (long j = 0; j < seen; j++) {
        const long at = j * block->wide;
        store(dp + at, load(p + at) * (load(dp + at) - inner));
    }
    clear_unseen(block, seen, p);
    clear_unseen(block, seen, dp);
}

/* Zero rows, for keys that none of the first queries sees. */
INLINE void clear_rows(float *at, long row, long from, long to, long width) {
    for (long j = from; j < to; j++) memset(at + j * row, 0, width * sizeof(float));
}

/* `scratch` has twice QUERIES times `keys` numbers. */
static void attend_back(const Attention *how, const Heads *dy, const Heads *q, const Heads *k, const Heads *v,
                        const Heads *logarithms, const Heads *dq, const Heads *dk, const Heads *dv, float *scratch) {
    const int width = (int)how->width;
    float *p = scratch, *dp = scratch + QUERIES * how->keys;
    for (long b = 0; b < how->batch; b++)
        for (long h = 0; h < how->heads; h++)
            for (long i = 0; i < how->queries; i += QUERIES) {
                const Block block = block_at(how, i);
                const float *g = head_of(dy, b, h) + i * dy->row, *qs = head_of(q, b, h) + i * q->row;
                const float *ks = head_of(k, b, h), *vs = head_of(v, b, h), before = i ? 1.0f : 0.0f;
                const float *notes = head_of(logarithms, b, h) + i * logarithms->row;
                float *dks = head_of(dk, b, h), *dvs = head_of(dv, b, h), noted[QUERIES] = {0};
                for (int c = 0; c < block.count; c++) noted[c] = notes[c * logarithms->row];
                scores(how, &block, qs, q->row, ks, k->row, p);
                product(block.keys, block.count, width, rows_of(vs, v->row), turned(g, dy->row),
                        into(dp, block.wide, 1, 0));
                for (int c = 0; c < block.wide; c += LANES) scores_back(&block, i + c, load(noted + c), p + c, dp + c);
                if (!i) clear_rows(dks, dk->row, block.keys, how->keys, width);
                if (!i) clear_rows(dvs, dv->row, block.keys, how->keys, width);
                product(block.keys, width, block.count, rows_of(p, block.wide), rows_of(g, dy->row),
                        into(dvs, dv->row, 1, before));
                product(block.count, width, block.keys, turned(dp, block.wide), rows_of(ks, k->row),
                        into(head_of(dq, b, h) + i * dq->row, dq->row, how->scale, 0));
                product(block.keys, width, block.count, rows_of(dp, block.wide), rows_of(qs, q->row),
                        into(dks, dk->row, how->scale, before));
            }
}
