/* Vectors of floats of one processor level, for code that AVX-512 (LEVEL 2) and AVX2 (LEVEL 1)
 * share. */
#ifndef HORN_VECTORS_H
#define HORN_VECTORS_H
#include <immintrin.h>

#if LEVEL == 2
#include "transpose.h"

#define LANES 16
#define MM(name) _mm512_##name
typedef __m512 vec_t;
typedef __mmask16 lanes_t;

/* Lanes [from, from + LANES) of `cols` columns. */
static inline lanes_t lanes(int64_t cols, int from) {
    return cols >= from + 16 ? 0xffff : cols <= from ? 0 : (__mmask16)((1u << (cols - from)) - 1);
}
#define load_lanes(which, p) _mm512_maskz_loadu_ps(which, p)     /* 0 in the others */
#define store_lanes(p, which, v) _mm512_mask_storeu_ps(p, which, v)
/* One bit for each lane that is not 0. */
#define not_zeros(v) _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_NEQ_UQ)
#define transpose_of(r, t) transpose16_of(r, t)
#else
#define LANES 8
#define MM(name) _mm256_##name
typedef __m256 vec_t;
typedef struct { __m256i mask; int n; } lanes_t;

static inline lanes_t lanes(int64_t cols, int from) {
    static const int32_t ON[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    const int n = cols >= from + 8 ? 8 : cols <= from ? 0 : (int)(cols - from);
    return (lanes_t){_mm256_loadu_si256((const __m256i *)(ON + 8 - n)), n};
}
static inline __m256 load_lanes(lanes_t which, const float *p) {
    return _mm256_maskload_ps(p, which.mask);
}
static inline void store_lanes(float *p, lanes_t which, __m256 v) {
    if (which.n == 8) { _mm256_storeu_ps(p, v); return; }
    __m128 left = _mm256_castps256_ps128(v);        /* masked stores are slow on AMD's */
    if (which.n & 4) { _mm_storeu_ps(p, left); p += 4; left = _mm256_extractf128_ps(v, 1); }
    if (which.n & 2) { _mm_storel_pi((__m64 *)p, left); p += 2; left = _mm_movehl_ps(left, left); }
    if (which.n & 1) _mm_store_ss(p, left);
}
#define not_zeros(v) _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_NEQ_UQ))

/* 8 rows of 8 floats, transposed in registers; t is for intermediate results. */
static inline __attribute__((always_inline)) void transpose_of(__m256 r[8], __m256 t[8]) {
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++) r[i] = t[i];
}
#endif
#define PANEL (2 * LANES)       /* the most columns of a tile */

/* A sum that is 0 is +0, whatever products too small for a float, and zeros, are added or left out. */
static inline vec_t no_sign(vec_t sum) { return MM(add_ps)(sum, MM(setzero_ps)()); }

static int is_finite(const float *p, int64_t n) {
    vec_t sum = MM(setzero_ps)();           /* of zeros, or NaN */
    for (int64_t i = 0; i + LANES <= n; i += LANES)
        sum = MM(fmadd_ps)(MM(loadu_ps)(p + i), MM(setzero_ps)(), sum);
    if (n % LANES)
        sum = MM(fmadd_ps)(load_lanes(lanes(n % LANES, 0), p + n / LANES * LANES),
                           MM(setzero_ps)(), sum);
    return not_zeros(sum) == 0;
}

#endif
