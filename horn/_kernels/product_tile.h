/* A tile of a product, its sums in registers, for one processor level (wide.h). */
#include "pack.h"

/* 24 of the 32 registers hold sums; of 16, 12. */
#define TILE_ROWS (LEVEL == 2 ? 12 : 6)
_Static_assert(LOW_ROWS <= TILE_ROWS, "blocks have room for the places of so many tiles");

/* c = beta c + alpha a b for one tile of `height` rows and LANES or PANEL columns, packed; of the n
 * messages, or of n of them. */
static inline __attribute__((always_inline)) void
tile(const int height, const int has_both, const int is_some, int64_t n, const int16_t *at,
     const float *a, const float *b, float alpha, float beta, float *c, int64_t ldc, int64_t cols) {
    vec_t sum[TILE_ROWS][2];
#pragma GCC unroll 12
    for (int i = 0; i < height; i++) {
        sum[i][0] = sum[i][1] = MM(setzero_ps)();
        _mm_prefetch((const char *)(c + i * ldc), _MM_HINT_T0);
        if (has_both) _mm_prefetch((const char *)(c + i * ldc + LANES), _MM_HINT_T0);
        /* a row seldom begins where a line does */
        _mm_prefetch((const char *)(c + i * ldc + (has_both ? PANEL : LANES) - 1), _MM_HINT_T0);
    }
    for (int64_t j = 0; j < n; j++) {
        const int64_t kk = is_some ? at[j] : j;
        const vec_t b0 = MM(load_ps)(b + kk * PANEL);
        const vec_t b1 = has_both ? MM(load_ps)(b + kk * PANEL + LANES) : b0;
#pragma GCC unroll 12
        for (int i = 0; i < height; i++) {
            const vec_t q = MM(set1_ps)(a[kk * height + i]);
            sum[i][0] = MM(fmadd_ps)(q, b0, sum[i][0]);
            if (has_both) sum[i][1] = MM(fmadd_ps)(q, b1, sum[i][1]);
        }
    }
    const vec_t va = MM(set1_ps)(alpha), vb = MM(set1_ps)(beta);
    const lanes_t m0 = lanes(cols, 0), m1 = lanes(cols, LANES);
#pragma GCC unroll 12
    for (int i = 0; i < height; i++) {
        float *p = c + i * ldc;
        vec_t o0 = MM(mul_ps)(va, no_sign(sum[i][0])), o1 = MM(mul_ps)(va, no_sign(sum[i][1]));
        if (beta != 0) {
            o0 = MM(fmadd_ps)(vb, load_lanes(m0, p), o0);
            if (has_both) o1 = MM(fmadd_ps)(vb, load_lanes(m1, p + LANES), o1);
        }
        store_lanes(p, m0, o0);
        if (has_both) store_lanes(p + LANES, m1, o1);
    }
}

/* A function each, or registers go to memory in the innermost loop (GCC 12: half the speed). */
typedef void (*tile_t)(int64_t, const int16_t *, const float *, const float *, float, float,
                       float *, int64_t, int64_t);
#define TILE(height, has_both, is_some)                                                          \
    static __attribute__((noinline)) void tile_##height##_##has_both##_##is_some(                \
        int64_t n, const int16_t *at, const float *a, const float *b, float alpha, float beta,   \
        float *c, int64_t ldc, int64_t cols) {                                                   \
        tile(height, has_both, is_some, n, at, a, b, alpha, beta, c, ldc, cols);                 \
    }
#define SIX_OF(F, w, s) F(1, w, s) F(2, w, s) F(3, w, s) F(4, w, s) F(5, w, s) F(6, w, s)
#define TWELVE_OF(F, w, s) SIX_OF(F, w, s) F(7, w, s) F(8, w, s) F(9, w, s) F(10, w, s)          \
                           F(11, w, s) F(12, w, s)
#if LEVEL == 2
#define EACH_OF TWELVE_OF
#else
#define EACH_OF SIX_OF
#endif
EACH_OF(TILE, 0, 0)
EACH_OF(TILE, 1, 0)
EACH_OF(TILE, 0, 1)
EACH_OF(TILE, 1, 1)
#define NAME(height, w, s) tile_##height##_##w##_##s,
#define NAMES_OF(w, s) {0, EACH_OF(NAME, w, s)}
static const tile_t TILES[2][TILE_ROWS + 1] = {NAMES_OF(0, 0), NAMES_OF(1, 0)};
static const tile_t SOME[2][TILE_ROWS + 1] = {NAMES_OF(0, 1), NAMES_OF(1, 1)};
