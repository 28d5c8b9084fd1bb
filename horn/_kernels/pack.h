/* Operands of a product put in the order in which tiles read them. */
#ifndef HORN_PACK_H
#define HORN_PACK_H
#include "products.h"
#include "vectors.h"

/* Numbers ahead in each row of a transposed operand that is not in a cache. */
#define FAR_AHEAD 64

/* One panel: to[kk * PANEL + c] = b(kk, c) for c < cols, at most PANEL; zero beyond. */
static void pack_cols(const float *b, int64_t bk, int64_t bn, int64_t k, int64_t cols, int is_far,
                      float *to) {
    int64_t kk = 0;
    if (bn == 1) {
        const lanes_t m0 = lanes(cols, 0), m1 = lanes(cols, LANES);
        for (; kk < k; kk++) {
            MM(store_ps)(to + kk * PANEL, load_lanes(m0, b + kk * bk));
            MM(store_ps)(to + kk * PANEL + LANES, load_lanes(m1, b + kk * bk + LANES));
        }
        return;
    }
    if (bk == 1)
        for (; kk + LANES <= k; kk += LANES)
            for (int half = 0; half < PANEL; half += LANES) {
                vec_t r[LANES], t[LANES];
                if (is_far)
                    for (int i = half; i < half + LANES && i < cols; i++)
                        _mm_prefetch((const char *)(b + i * bn + kk + FAR_AHEAD), _MM_HINT_T0);
                for (int i = 0; i < LANES; i++)
                    r[i] = half + i < cols ? MM(loadu_ps)(b + (half + i) * bn + kk)
                                           : MM(setzero_ps)();
                transpose_of(r, t);
                for (int i = 0; i < LANES; i++) MM(store_ps)(to + (kk + i) * PANEL + half, r[i]);
            }
    for (; kk < k; kk++)
        for (int64_t c = 0; c < PANEL; c++) to[kk * PANEL + c] = c < cols ? b[kk * bk + c * bn] : 0;
}

/* The rows of one tile: to[kk * height + i] = a(i, kk), height at most LANES. Whole vectors are
 * stored: up to LANES - 1 numbers beyond the last one are written. */
static void pack_rows(const float *a, int64_t am, int64_t ak, int64_t k, int height, float *to) {
    int64_t kk = 0;
    if (am == 1) {
        const lanes_t mask = lanes(height, 0);
        for (; kk < k; kk++)
            MM(storeu_ps)(to + kk * height, load_lanes(mask, a + kk * ak));
        return;
    }
    if (ak == 1)
        for (; kk + LANES <= k; kk += LANES) {
            vec_t r[LANES], t[LANES];
            for (int i = 0; i < LANES; i++)
                r[i] = MM(loadu_ps)(a + (i < height ? i : height - 1) * am + kk);
            transpose_of(r, t);
            for (int i = 0; i < LANES; i++) MM(storeu_ps)(to + (kk + i) * height, r[i]);
        }
    for (; kk < k; kk++)
        for (int i = 0; i < height; i++) to[kk * height + i] = a[i * am + kk * ak];
}

#endif
