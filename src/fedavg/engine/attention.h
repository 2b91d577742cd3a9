/* Scaled dot-product attention, forward and backward, head by head: what lies between never leaves the cache.
 *
 * q, k, v and what comes out are (batch, heads, length, width), each with its own strides but the last, which is 1.
 */
#pragma once
#include "layers.h"
#include "products.h"

/* Queries handled at a time. */
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

INLINE float *head_of(const Heads *heads, long b, long h) { return heads->at + b * heads->batch + h * heads->head; }
INLINE Matrix rows_of(const float *at, long row) { return (Matrix){at, row, 1}; }
INLINE Matrix turned(const float *at, long row) { return (Matrix){at, 1, row}; }
INLINE Target into(float *at, long row, float alpha, float beta) { return (Target){at, row, alpha, beta, NULL}; }

/* A row of scores as weights that sum to 1; what is not seen has none. Returns the logarithm of what they were scaled by. */
INLINE float weights_of(long keys, long seen, float *p) {
    const float most = largest_of(seen, p);
    vec sum = {0};
    for (long j = 0; j < seen; j += LANES) {
        const int some = (int)least(LANES, seen - j);
        const vec value = first_of(exponential(load_some(p + j, some) - most), some);
        store_some(p + j, value, (int)least(LANES, keys - j));
        sum += value;
    }
    const float whole = total(sum), by = 1.0f / whole;
    for (long j = 0; j < seen; j += LANES) {
        const int some = (int)least(LANES, seen - j);
        store_some(p + j, load_some(p + j, some) * by, some);
    }
    return most + logarithm(all(whole))[0];
}

/* The same weights again, by the logarithm that is known. */
INLINE void weights_by(long keys, long seen, float logarithm, float *p) {
    for (long j = 0; j < seen; j += LANES) {
        const int some = (int)least(LANES, seen - j);
        const vec value = first_of(exponential(load_some(p + j, some) - logarithm), some);
        store_some(p + j, value, (int)least(LANES, keys - j));
    }
}

/* The weights of some queries: for the first time, or by the logarithms that were noted then. */
static void weigh(const Attention *how, long first, int count, const float *q, long q_row, const float *k, long k_row,
                  int known, float *logarithms, long step, float *p) {
    const long keys = how->keys;
    product(count, (int)keys, (int)how->width, rows_of(q, q_row), turned(k, k_row), into(p, keys, how->scale, 0));
    for (int i = 0; i < count; i++, p += keys) {
        const long seen = how->causal ? least(keys, first + i + 1) : keys;
        float *logarithm = logarithms + (first + i) * step;
        if (known) weights_by(keys, seen, *logarithm, p);
        else *logarithm = weights_of(keys, seen, p);
        for (long j = (seen + LANES - 1) / LANES * LANES; j < keys; j++) p[j] = 0;
    }
}

/* `scratch` has QUERIES times `keys` numbers. Logarithms are noted for the way back: strides batch, head, row. */
static void attend(const Attention *how, const Heads *q, const Heads *k, const Heads *v, const Heads *out,
                   const Heads *logarithms, float *scratch) {
    for (long b = 0; b < how->batch; b++)
        for (long h = 0; h < how->heads; h++)
            for (long i = 0; i < how->queries; i += QUERIES) {
                const int count = (int)least(QUERIES, how->queries - i);
                weigh(how, i, count, head_of(q, b, h) + i * q->row, q->row, head_of(k, b, h), k->row, 0,
                      head_of(logarithms, b, h), logarithms->row, scratch);
                product(count, (int)how->width, (int)how->keys, rows_of(scratch, how->keys),
                        rows_of(head_of(v, b, h), v->row), into(head_of(out, b, h) + i * out->row, out->row, 1, 0));
            }
}

/* `scratch` has twice QUERIES times `keys` numbers. */
static void attend_back(const Attention *how, const Heads *dy, const Heads *q, const Heads *k, const Heads *v,
                        const Heads *out, const Heads *logarithms, const Heads *dq, const Heads *dk, const Heads *dv,
                        float *scratch) {
    const long keys = how->keys, width = how->width;
    float *p = scratch, *dp = scratch + QUERIES * keys;
    for (long b = 0; b < how->batch; b++)
        for (long h = 0; h < how->heads; h++)
            for (long i = 0; i < how->queries; i += QUERIES) {
                const int count = (int)least(QUERIES, how->queries - i);
                const float *g = head_of(dy, b, h) + i * dy->row, *y = head_of(out, b, h) + i * out->row;
                const float *qs = head_of(q, b, h) + i * q->row, *ks = head_of(k, b, h), *vs = head_of(v, b, h);
                const float before = i ? 1.0f : 0.0f;
                weigh(how, i, count, qs, q->row, ks, k->row, 1, head_of(logarithms, b, h), logarithms->row, p);
                product((int)keys, (int)width, count, turned(p, keys), rows_of(g, dy->row),
                        into(head_of(dv, b, h), dv->row, 1, before));
                product(count, (int)keys, (int)width, rows_of(g, dy->row), turned(vs, v->row), into(dp, keys, 1, 0));
                for (int r = 0; r < count; r++) {
                    vec sum = {0};
                    for (long e = 0; e < width; e += LANES) {
                        const int some = (int)least(LANES, width - e);
                        sum += load_some(g + r * dy->row + e, some) * load_some(y + r * out->row + e, some);
                    }
                    const float inner = total(sum);
                    for (long j = 0; j < keys; j += LANES) {
                        const int some = (int)least(LANES, keys - j);
                        const vec weight = load_some(p + r * keys + j, some);
                        store_some(dp + r * keys + j, weight * (load_some(dp + r * keys + j, some) - inner), some);
                    }
                }
                product(count, (int)width, (int)keys, rows_of(dp, keys), rows_of(ks, k->row),
                        into(head_of(dq, b, h) + i * dq->row, dq->row, how->scale, 0));
                product((int)keys, (int)width, count, turned(dp, keys), rows_of(qs, q->row),
                        into(head_of(dk, b, h), dk->row, how->scale, before));
            }
}
