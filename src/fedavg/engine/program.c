/* Runs a training step, which `program.py` wrote as a list of instructions, batch after batch.
 *
 * An instruction is its number, how many words follow, and the words: integers; places in memory (an array and an
 * offset in bytes; array -1 is nothing); indexes of scalars. The arrays, the first of which are the examples, and the
 * scalars are arguments of each call. Single-threaded; nothing is allocated.
 */
#include "attention.h"
#include "dense.h"
#include "planes.h"
#include "recurrence.h"
#include "sparse.h"
#include "windows.h"

typedef struct {
    const int64_t *at;
    char **arrays;
    const float *scalars;
} Reader;

INLINE long number(Reader *r) { return *r->at++; }
INLINE float scalar(Reader *r) { return r->scalars[*r->at++]; }
INLINE float *place(Reader *r) {
    const long array = *r->at++, offset = *r->at++;
    return array < 0 ? NULL : (float *)(r->arrays[array] + offset);
}
INLINE const long *numbers(Reader *r, int count) {
    const int64_t *from = r->at;
    r->at += count;
    return (const long *)from;
}
INLINE Heads heads(Reader *r) {
    float *at = place(r);
    const long *strides = numbers(r, 3);
    return (Heads){at, strides[0], strides[1], strides[2]};
}

/* Over three dimensions of integers, of which there are few; strides say where each one is. */
#define EACH_NUMBER                                                                                                   \
    for (long i = 0; i < shape[0]; i++)                                                                               \
        for (long j = 0; j < shape[1]; j++)                                                                           \
            for (long k = 0; k < shape[2]; k++)
#define IN(strides) (i * strides[0] + j * strides[1] + k * strides[2])

static int do_product(Reader *r) {
    const int m = (int)number(r), n = (int)number(r), k = (int)number(r);
    const float *a_at = place(r);
    const long a_row = number(r), a_column = number(r);
    const float *b_at = place(r);
    const long b_row = number(r), b_column = number(r);
    float *c_at = place(r);
    const long c_row = number(r);
    const float alpha = scalar(r), beta = scalar(r);
    const float *bias = place(r), *added = place(r);
    const long count = number(r), a_step = number(r), b_step = number(r), c_step = number(r);
    for (long i = 0; i < count; i++) {
        const Matrix a = {a_at + i * a_step, a_row, a_column}, b = {b_at + i * b_step, b_row, b_column};
        Target to = into(c_at + i * c_step, c_row, alpha, beta);
        to.bias = bias;
        if (added) to.added = added + i * c_step;
        if (!skip_zeros(m, n, k, a, b, &to)) product(m, n, k, a, b, to);
    }
    return 0;
}

static int do_pointwise(Reader *r) {
    const Each what = each[number(r)];
    float *to = place(r);
    const float *x = place(r), *y = place(r), s = scalar(r);
    const long *shape = numbers(r, DIMENSIONS), *ts = numbers(r, DIMENSIONS), *xs = numbers(r, DIMENSIONS);
    pointwise(what, shape, ts, xs, numbers(r, DIMENSIONS), x, y, s, to);
    return 0;
}

static int do_sum(Reader *r) {
    float *to = place(r);
    const float *x = place(r), alpha = scalar(r), beta = scalar(r);
    const long *kept = numbers(r, 3), *ts = numbers(r, 3), *ks = numbers(r, 3), *gone = numbers(r, 3);
    sum_over(kept, ts, ks, gone, numbers(r, 3), x, alpha, beta, to);
    return 0;
}

static int do_layer_norm(Reader *r) {
    const long rows = number(r), n = number(r);
    const float *x = place(r), *w = place(r), *b = place(r), eps = scalar(r);
    float *y = place(r), *mean = place(r), *scale = place(r);
    layer_norm(rows, n, x, w, b, eps, y, mean, scale);
    return 0;
}

static int do_layer_norm_back(Reader *r) {
    const long rows = number(r), n = number(r);
    const float *dy = place(r), *x = place(r), *mean = place(r), *scale = place(r), *w = place(r);
    float *dx = place(r), *dw = place(r), *db = place(r);
    layer_norm_back(rows, n, dy, x, mean, scale, w, dx, dw, db);
    return 0;
}

static int do_group_norm(Reader *r) {
    const long images = number(r), pixels = number(r), channels = number(r), groups = number(r);
    const float *x = place(r), *w = place(r), *b = place(r), eps = scalar(r);
    float *y = place(r), *mean = place(r), *scale = place(r), *scratch = place(r);
    group_norm(images, pixels, channels, groups, x, w, b, eps, y, mean, scale, scratch, scratch + channels);
    return 0;
}

static int do_group_norm_back(Reader *r) {
    const long images = number(r), pixels = number(r), channels = number(r), groups = number(r);
    const float *dy = place(r), *x = place(r), *mean = place(r), *scale = place(r), *w = place(r);
    float *dx = place(r), *dw = place(r), *db = place(r), *scratch = place(r);
    group_norm_back(images, pixels, channels, groups, dy, x, mean, scale, w, dx, dw, db, scratch);
    return 0;
}

static int do_softmax(Reader *r) {
    const long *shape = numbers(r, 3);
    const float *x = place(r);
    const long *xs = numbers(r, 3);
    const float *y = place(r);
    const long *ys = numbers(r, 3);
    const int back = (int)number(r), logarithms = (int)number(r);
    float *to = place(r);
    const long *ts = numbers(r, 3);
    softmax(shape, x, xs, y, ys, back, logarithms, to, ts, place(r));
    return 0;
}

static int do_class_loss(Reader *r) {
    const long outer = number(r), classes = number(r), inner = number(r);
    const float *x = place(r);
    const int64_t *target = (const int64_t *)place(r);
    const long ignored = number(r);
    const int mean = (int)number(r);
    float *loss = place(r), *weight = place(r);
    return class_loss(outer, classes, inner, x, target, ignored, mean, loss, weight);
}

static int do_class_loss_back(Reader *r) {
    const long outer = number(r), classes = number(r), inner = number(r);
    const float *dy = place(r);
    const int64_t *target = (const int64_t *)place(r);
    const long ignored = number(r);
    const int mean = (int)number(r);
    const float *weight = place(r);
    class_loss_back(outer, classes, inner, dy, target, ignored, mean, weight, place(r));
    return 0;
}

INLINE Rows rows(Reader *r) {
    const long *shape = numbers(r, 3);
    const float *x = place(r);
    const long *strides = numbers(r, 3);
    const int64_t *target = (const int64_t *)place(r);
    const long ignored = number(r);
    const int mean = (int)number(r);
    float *counted = place(r), *noted = place(r);
    return (Rows){shape[0], shape[1], shape[2], x, strides, target, ignored, mean, counted, noted, place(r)};
}

static int do_cross_entropy(Reader *r) {
    const Rows how = rows(r);
    return cross_entropy(&how, place(r));
}

static int do_cross_entropy_back(Reader *r) {
    const Rows how = rows(r);
    const float *dy = place(r);
    float *to = place(r);
    cross_entropy_back(&how, dy, to, numbers(r, 3));
    return 0;
}

static int do_embedding(Reader *r) {
    const long count = number(r), rows = number(r), width = number(r);
    const float *table = place(r);
    const int64_t *which = (const int64_t *)place(r);
    return embedding(count, rows, width, table, which, place(r));
}

static int do_embedding_back(Reader *r) {
    const long count = number(r), rows = number(r), width = number(r);
    const float *dy = place(r);
    const int64_t *which = (const int64_t *)place(r);
    const long left_out = number(r);
    embedding_back(count, rows, width, dy, which, left_out, place(r));
    return 0;
}

static Attention attention(Reader *r) {
    const long *sizes = numbers(r, 5);
    const float scale = scalar(r);
    return (Attention){sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], scale, (int)number(r)};
}

static int do_attend(Reader *r) {
    const Attention how = attention(r);
    const Heads q = heads(r), k = heads(r), v = heads(r), out = heads(r), logarithms = heads(r);
    attend(&how, &q, &k, &v, &out, &logarithms, place(r));
    return 0;
}

static int do_attend_back(Reader *r) {
    const Attention how = attention(r);
    const Heads dy = heads(r), q = heads(r), k = heads(r), v = heads(r), logarithms = heads(r);
    const Heads dq = heads(r), dk = heads(r), dv = heads(r);
    attend_back(&how, &dy, &q, &k, &v, &logarithms, &dq, &dk, &dv, place(r));
    return 0;
}

static int do_step_back(Reader *r) {
    const int rows = (int)number(r), in = (int)number(r), out = (int)number(r);
    const float *dy = place(r), *step = place(r), *x = place(r);
    float *w = place(r);
    step_back(rows, in, out, dy, step, x, w, place(r));
    return 0;
}

INLINE Planes planes(Reader *r) {
    const long *n = numbers(r, 10);
    return (Planes){n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9]};
}

static int do_convolve(Reader *r) {
    const Planes how = planes(r);
    const float *x = place(r), *w = place(r), *bias = place(r);
    float *y = place(r), *frame = place(r);
    convolve(&how, x, w, bias, y, frame, place(r));
    return 0;
}

static int do_convolve_back(Reader *r) {
    const Planes how = planes(r);
    const float *dy = place(r), *w = place(r);
    float *dx = place(r), *frame = place(r);
    convolve_back(&how, dy, w, dx, frame, place(r));
    return 0;
}

static int do_kernel_gradient(Reader *r) {
    const Planes how = planes(r);
    const float *x = place(r), *dy = place(r);
    float *dw = place(r);
    const long *strides = numbers(r, 4);
    float *frame = place(r);
    kernel_gradient(&how, x, dy, dw, strides, frame, place(r));
    return 0;
}

INLINE Windows windows(Reader *r) {
    const long *n = numbers(r, 13);
    return (Windows){n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], n[12]};
}

static int do_max_pool(Reader *r) {
    const Windows how = windows(r);
    const float *x = place(r);
    float *y = place(r);
    max_pool(&how, x, y, place(r));
    return 0;
}

static int do_max_pool_back(Reader *r) {
    const Windows how = windows(r);
    const float *dy = place(r), *which = place(r);
    max_pool_back(&how, dy, which, place(r));
    return 0;
}

static int do_mean_pool(Reader *r) {
    const Windows how = windows(r);
    const float *x = place(r);
    mean_pool(&how, x, place(r));
    return 0;
}

static int do_mean_pool_back(Reader *r) {
    const Windows how = windows(r);
    const float *dy = place(r);
    mean_pool_back(&how, dy, place(r));
    return 0;
}

static int do_scan(Reader *r) {
    const int steps = (int)number(r), rows = (int)number(r), units = (int)number(r);
    const float *gates_x = place(r), *w = place(r), *peephole = place(r), *keep = place(r);
    float *h = place(r), *c = place(r), *tanh_c = place(r), *gates = place(r);
    peephole_scan(steps, rows, units, gates_x, w, peephole, keep, h, c, tanh_c, gates, place(r));
    return 0;
}

static int do_scan_back(Reader *r) {
    const int steps = (int)number(r), rows = (int)number(r), units = (int)number(r);
    const float *dh = place(r), *w = place(r), *peephole = place(r), *keep = place(r);
    const float *c = place(r), *tanh_c = place(r), *gates = place(r);
    float *dz = place(r), *d_peephole = place(r), *packed = place(r);
    peephole_scan_back(steps, rows, units, dh, w, peephole, keep, c, tanh_c, gates, dz, d_peephole, packed, place(r));
    return 0;
}

static int do_equals(Reader *r) {
    float *to = place(r);
    const int64_t *x = (const int64_t *)place(r), wanted = number(r);
    const long *shape = numbers(r, 3), *ts = numbers(r, 3), *xs = numbers(r, 3);
    EACH_NUMBER to[IN(ts)] = x[IN(xs)] == wanted;
    return 0;
}

static int do_copy_numbers(Reader *r) {
    int64_t *to = (int64_t *)place(r);
    const int64_t *x = (const int64_t *)place(r);
    const long *shape = numbers(r, 3), *ts = numbers(r, 3), *xs = numbers(r, 3);
    EACH_NUMBER to[IN(ts)] = x[IN(xs)];
    return 0;
}

/* In the order of `INSTRUCTIONS` in writer.py. */
static int (*const instructions[])(Reader *) = {
    do_product, do_pointwise, do_sum, do_layer_norm, do_layer_norm_back, do_group_norm, do_group_norm_back, do_softmax,
    do_class_loss, do_class_loss_back, do_embedding, do_embedding_back, do_attend, do_attend_back, do_step_back,
    do_convolve, do_convolve_back, do_kernel_gradient, do_max_pool, do_max_pool_back, do_mean_pool, do_mean_pool_back,
    do_cross_entropy, do_cross_entropy_back, do_scan, do_scan_back, do_equals, do_copy_numbers,
};

int lanes(void) { return LANES; }

/* The step, on `batches` batches one after another. After each batch the first `inputs` arrays advance by `moves` bytes
 * each. Adds each batch's loss, which is at (array, offset), to `total_loss`. Returns 1 if a target class or a row of
 * an embedding does not exist. */
int epoch(const int64_t *code, long words, char **arrays, const float *scalars, int batches, int inputs,
          const int64_t *moves, long loss_array, long loss_offset, double *total_loss) {
    for (int batch = 0; batch < batches; batch++) {
        for (const int64_t *at = code; at < code + words; at += 2 + at[1]) {
            Reader reader = {at + 2, arrays, scalars};
            if (instructions[at[0]](&reader)) return 1;
        }
        *total_loss += *(const float *)(arrays[loss_array] + loss_offset);
        for (int i = 0; i < inputs; i++) arrays[i] += moves[i];
    }
    return 0;
}
