/* The product of two matrices of float32, for AVX-512.
 *
 * It is here because the libraries that users have do not know their processors: NumPy's OpenBLAS
 * and MKL take processors with 512-bit vectors that they have no table for, or that another company
 * makes, for ones with 256 bits (docs/notes/0070). Goto and van de Geijn, "Anatomy of
 * High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008, with two differences: a panel of b
 * is packed when the first tile needs it, so that a thin batch finds it in the first-level cache,
 * and a sum goes through the messages in the same order whatever m and n are, so that a part of a
 * product has the bits of the whole.
 */
#include "thin.h"

#ifdef HORN_X86
#include <immintrin.h>

#include "target_avx512.h"

#include "pack.h"

#define TILE_ROWS 12            /* 24 of the 32 registers hold sums */

/* c = beta c + alpha a b for one tile of `height` rows and 16 or 32 columns, packed. */
static inline __attribute__((always_inline)) void
tile(const int height, const int has_both, int64_t k, const float *a, const float *b, float alpha,
     float beta, float *c, int64_t ldc, int64_t cols) {
    __m512 sum[TILE_ROWS][2];
#pragma GCC unroll 12
    for (int i = 0; i < height; i++) {
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
        _mm_prefetch((const char *)(c + i * ldc), _MM_HINT_T0);
        if (has_both) _mm_prefetch((const char *)(c + i * ldc + 16), _MM_HINT_T0);
    }
    for (int64_t kk = 0; kk < k; kk++) {
        const __m512 b0 = _mm512_load_ps(b + kk * 32);
        const __m512 b1 = has_both ? _mm512_load_ps(b + kk * 32 + 16) : b0;
#pragma GCC unroll 12
        for (int i = 0; i < height; i++) {
            const __m512 q = _mm512_set1_ps(a[kk * height + i]);
            sum[i][0] = _mm512_fmadd_ps(q, b0, sum[i][0]);
            if (has_both) sum[i][1] = _mm512_fmadd_ps(q, b1, sum[i][1]);
        }
    }
    const __m512 va = _mm512_set1_ps(alpha), vb = _mm512_set1_ps(beta);
    const __mmask16 m0 = lanes(cols, 0), m1 = lanes(cols, 16);
#pragma GCC unroll 12
    for (int i = 0; i < height; i++) {
        float *p = c + i * ldc;
        __m512 o0 = _mm512_mul_ps(va, sum[i][0]), o1 = _mm512_mul_ps(va, sum[i][1]);
        if (beta != 0) {
            o0 = _mm512_fmadd_ps(vb, _mm512_maskz_loadu_ps(m0, p), o0);
            if (has_both) o1 = _mm512_fmadd_ps(vb, _mm512_maskz_loadu_ps(m1, p + 16), o1);
        }
        _mm512_mask_storeu_ps(p, m0, o0);
        if (has_both) _mm512_mask_storeu_ps(p + 16, m1, o1);
    }
}

/* A function each, or registers go to memory in the innermost loop (GCC 12: half the speed). */
typedef void (*tile_t)(int64_t, const float *, const float *, float, float, float *, int64_t, int64_t);
#define TILE(height, has_both)                                                                   \
    static __attribute__((noinline)) void tile_##height##_##has_both(                            \
        int64_t k, const float *a, const float *b, float alpha, float beta, float *c, int64_t ldc, \
        int64_t cols) {                                                                          \
        tile(height, has_both, k, a, b, alpha, beta, c, ldc, cols);                              \
    }
#define TILES_OF(w) TILE(1, w) TILE(2, w) TILE(3, w) TILE(4, w) TILE(5, w) TILE(6, w) TILE(7, w) \
                    TILE(8, w) TILE(9, w) TILE(10, w) TILE(11, w) TILE(12, w)
TILES_OF(0)
TILES_OF(1)
#define NAMES_OF(w) {0, tile_1_##w, tile_2_##w, tile_3_##w, tile_4_##w, tile_5_##w, tile_6_##w,  \
                     tile_7_##w, tile_8_##w, tile_9_##w, tile_10_##w, tile_11_##w, tile_12_##w}
static const tile_t TILES[2][TILE_ROWS + 1] = {NAMES_OF(0), NAMES_OF(1)};

/* n in `parts`, each a multiple of `align` but the last. */
static inline int64_t part_of(int64_t n, int64_t parts, int64_t align) {
    return ((n + parts - 1) / parts + align - 1) / align * align;
}

void wide_product(const float *a, int64_t am, int64_t ak, const float *b, int64_t bk, int64_t bn,
                  float *c, int64_t ldc, int64_t m, int64_t n, int64_t k, float alpha, float beta,
                  char *scratch) {
    float *panels = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    float *tiles = panels + WIDE_COLS * WIDE_K;
    const int64_t n_depths = k > 0 ? (k + WIDE_K - 1) / WIDE_K : 1;
    const int64_t height = part_of(m, (m + WIDE_ROWS - 1) / WIDE_ROWS, TILE_ROWS);
    const int is_whole = height >= m;           /* then no panel is needed twice */
    const int64_t width = is_whole ? n : part_of(n, (n + WIDE_COLS - 1) / WIDE_COLS, 32);
    for (int64_t j0 = 0; j0 < n; j0 += width)
    for (int64_t depth = 0; depth < n_depths; depth++) {
        const int64_t j1 = j0 + width < n ? j0 + width : n;
        const int64_t k0 = k * depth / n_depths, kn = k * (depth + 1) / n_depths - k0;
        const float keep = depth ? 1.0f : beta;
        for (int64_t i0 = 0; i0 < m; i0 += height) {
            const int64_t i1 = i0 + height < m ? i0 + height : m;
            for (int64_t i = i0; i < i1; i += TILE_ROWS)
                pack_rows(a + i * am + k0 * ak, am, ak, kn,
                          i1 - i < TILE_ROWS ? (int)(i1 - i) : TILE_ROWS, tiles + (i - i0) * kn);
            for (int64_t j = j0; j < j1; j += 32) {
                const int64_t cols = j1 - j < 32 ? j1 - j : 32;
                float *panel = panels + (is_whole ? 0 : (j - j0) * kn);
                if (i0 == 0) pack_cols(b + k0 * bk + j * bn, bk, bn, kn, cols, panel);
                for (int64_t i = i0; i < i1; i += TILE_ROWS)
                    TILES[cols > 16][i1 - i < TILE_ROWS ? i1 - i : TILE_ROWS](
                        kn, tiles + (i - i0) * kn, panel, alpha, keep, c + i * ldc + j, ldc, cols);
            }
        }
    }
}

void wide_pack(const float *b, int64_t bk, int64_t bn, int64_t n, int64_t k, float *panels) {
    const int64_t n_depths = k > 0 ? (k + WIDE_K - 1) / WIDE_K : 1;
    for (int64_t depth = 0; depth < n_depths; depth++) {
        const int64_t k0 = k * depth / n_depths, kn = k * (depth + 1) / n_depths - k0;
        for (int64_t j = 0; j < n; j += 32, panels += 32 * kn)
            pack_cols(b + k0 * bk + j * bn, bk, bn, kn, n - j < 32 ? n - j : 32, panels);
    }
}

void wide_packed(const float *a, int64_t am, int64_t ak, int64_t m, int64_t k,
                 const wide_part_t *parts, int n_parts, int64_t p0, int64_t p1, char *scratch) {
    float *tiles = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    const int64_t n_depths = k > 0 ? (k + WIDE_K - 1) / WIDE_K : 1;
    const int64_t height = part_of(m, (m + WIDE_ROWS - 1) / WIDE_ROWS, TILE_ROWS);
    for (int64_t depth = 0; depth < n_depths; depth++) {
        const int64_t k0 = k * depth / n_depths, kn = k * (depth + 1) / n_depths - k0;
        for (int64_t i0 = 0; i0 < m; i0 += height) {
            const int64_t i1 = i0 + height < m ? i0 + height : m;
            for (int64_t i = i0; i < i1; i += TILE_ROWS)
                pack_rows(a + i * am + k0 * ak, am, ak, kn,
                          i1 - i < TILE_ROWS ? (int)(i1 - i) : TILE_ROWS, tiles + (i - i0) * kn);
            int64_t before = 0;
            for (int part = 0; part < n_parts; part++) {
                const wide_part_t *w = &parts[part];
                const int64_t n_panels = (w->n + 31) / 32;
                const int64_t lo = p0 > before ? p0 - before : 0;
                const int64_t hi = p1 - before < n_panels ? p1 - before : n_panels;
                const float *panels = w->panels + k0 * n_panels * 32;
                for (int64_t p = lo; p < hi; p++) {
                    const int64_t j = p * 32, cols = w->n - j < 32 ? w->n - j : 32;
                    for (int64_t i = i0; i < i1; i += TILE_ROWS)
                        TILES[cols > 16][i1 - i < TILE_ROWS ? i1 - i : TILE_ROWS](
                            kn, tiles + (i - i0) * kn, panels + p * 32 * kn, w->alpha,
                            depth ? 1.0f : w->beta, w->c + i * w->ldc + j, w->ldc, cols);
                }
                before += n_panels;
            }
        }
    }
}

#include "target_end.h"
#endif
