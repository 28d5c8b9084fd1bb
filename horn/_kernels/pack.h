/* Operands of a product put in the order in which tiles read them, for AVX-512. */
#ifndef HORN_PACK_H
#define HORN_PACK_H
#include "transpose.h"

/* Lanes [from, from + 16) of `cols` columns. */
static inline __mmask16 lanes(int64_t cols, int from) {
    return cols >= from + 16 ? 0xffff : cols <= from ? 0 : (__mmask16)((1u << (cols - from)) - 1);
}

/* One panel: to[kk * 32 + c] = b(kk, c) for c < cols, at most 32; zero beyond. */
static void pack_cols(const float *b, int64_t bk, int64_t bn, int64_t k, int64_t cols, float *to) {
    int64_t kk = 0;
    if (bn == 1) {
        const __mmask16 m0 = lanes(cols, 0), m1 = lanes(cols, 16);
        for (; kk < k; kk++) {
            _mm512_store_ps(to + kk * 32, _mm512_maskz_loadu_ps(m0, b + kk * bk));
            _mm512_store_ps(to + kk * 32 + 16, _mm512_maskz_loadu_ps(m1, b + kk * bk + 16));
        }
        return;
    }
    if (bk == 1)
        for (; kk + 16 <= k; kk += 16)
            for (int half = 0; half < 32; half += 16) {
                __m512 r[16], t[16];
                for (int i = 0; i < 16; i++)
                    r[i] = half + i < cols ? _mm512_loadu_ps(b + (half + i) * bn + kk)
                                           : _mm512_setzero_ps();
                transpose16_of(r, t);
                for (int i = 0; i < 16; i++) _mm512_store_ps(to + (kk + i) * 32 + half, r[i]);
            }
    for (; kk < k; kk++)
        for (int64_t c = 0; c < 32; c++) to[kk * 32 + c] = c < cols ? b[kk * bk + c * bn] : 0;
}

/* The rows of one tile: to[kk * height + i] = a(i, kk), height at most 16. Whole vectors are
 * stored: up to 15 numbers beyond the last one are written. */
static void pack_rows(const float *a, int64_t am, int64_t ak, int64_t k, int height, float *to) {
    int64_t kk = 0;
    if (am == 1) {
        const __mmask16 mask = lanes(height, 0);
        for (; kk < k; kk++)
            _mm512_storeu_ps(to + kk * height, _mm512_maskz_loadu_ps(mask, a + kk * ak));
        return;
    }
    if (ak == 1)
        for (; kk + 16 <= k; kk += 16) {
            __m512 r[16], t[16];
            for (int i = 0; i < 16; i++)
                r[i] = _mm512_loadu_ps(a + (i < height ? i : height - 1) * am + kk);
            transpose16_of(r, t);
            for (int i = 0; i < 16; i++) _mm512_storeu_ps(to + (kk + i) * height, r[i]);
        }
    for (; kk < k; kk++)
        for (int i = 0; i < height; i++) to[kk * height + i] = a[i * am + kk * ak];
}

#endif
