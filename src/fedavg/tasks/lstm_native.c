/* A peephole LSTM's recurrence and its gradient as separate calls; a native program has them as instructions. Both
 * return 0, or 1 if out of memory. */
#include <stdlib.h>

#include "../engine/recurrence.h"

int scan(int T, int B, int H, const float *gates_x, const float *w_hh, const float *peephole, const float *keep, float *h,
         float *c, float *tanh_c, float *gates) {
    float *packed = malloc(sizeof(float) * 4 * H * H);
    if (!packed) return 1;
    peephole_scan(T, B, H, gates_x, w_hh, peephole, keep, h, c, tanh_c, gates, packed);
    free(packed);
    return 0;
}

int scan_back(int T, int B, int H, const float *dh_out, const float *w_hh, const float *peephole, const float *keep,
              const float *c, const float *tanh_c, const float *gates, float *dz, float *d_peephole) {
    float *packed = malloc(sizeof(float) * (4 * H * H + 2 * B * H));
    if (!packed) return 1;
    peephole_scan_back(T, B, H, dh_out, w_hh, peephole, keep, c, tanh_c, gates, dz, d_peephole, packed,
                       packed + 4 * H * H);
    free(packed);
    return 0;
}

/* H must be a multiple of this. */
int strip(void) { return STRIP; }
