/* The product of two matrices of float32, for one processor level (vectors.h).
 *
 * It is here because the libraries that users have do not know their processors: NumPy's OpenBLAS
 * and MKL take processors with 512-bit vectors that they have no table for, or that another company
 * makes, for ones with 256 bits (docs/notes/0070); and because they lay weights out anew at each step
 * of a sequence, and multiply zeros of data (docs/notes/0184). Goto and van de Geijn, "Anatomy of
 * High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008, with two differences: a panel of b
 * is packed when the first tile needs it, so that a thin batch finds it in the first-level cache,
 * and a sum goes through the messages in the same order whatever m and n are, so that a part of a
 * product has the bits of the whole.
 */
#include <math.h>

#include "pack.h"

/* 24 of the 32 registers hold sums; of 16, 12. */
#define TILE_ROWS (LEVEL == 2 ? 12 : 6)

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
        vec_t o0 = MM(mul_ps)(va, sum[i][0]), o1 = MM(mul_ps)(va, sum[i][1]);
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

/* The rows of a tile that begins at i. */
static inline int rows_from(int64_t i, int64_t end) {
    return end - i < TILE_ROWS ? (int)(end - i) : TILE_ROWS;
}

/* Columns of which there are too few for tiles: a vector has rows. Four tiles at a time, for one
 * would wait for each sum. */
static void few_columns(const float *tiles, int64_t m, int64_t k, const float *panel, float alpha,
                        float beta, float *c, int64_t ldc, int64_t cols) {
    for (int64_t col = 0; col < cols; col++)
        for (int64_t i = 0; i < m; i += 4 * TILE_ROWS) {
            vec_t sum[4];
            const int is_full = m - i >= 4 * TILE_ROWS;
            for (int q = 0; q < 4; q++) sum[q] = MM(setzero_ps)();
            if (is_full)
                for (int64_t kk = 0; kk < k; kk++) {
                    const vec_t b = MM(set1_ps)(panel[kk * PANEL + col]);
                    for (int q = 0; q < 4; q++)
                        sum[q] = MM(fmadd_ps)(load_lanes(
                            lanes(TILE_ROWS, 0), tiles + ((i + q * TILE_ROWS) * k
                                                          + kk * TILE_ROWS)), b, sum[q]);
                }
            for (int q = 0; q < 4 && i + q * TILE_ROWS < m; q++) {
                const int64_t first = i + q * TILE_ROWS;
                const int height = rows_from(first, m);
                const lanes_t mask = lanes(height, 0);
                if (!is_full)
                    for (int64_t kk = 0; kk < k; kk++)
                        sum[q] = MM(fmadd_ps)(
                            load_lanes(mask, tiles + first * k + kk * height),
                            MM(set1_ps)(panel[kk * PANEL + col]), sum[q]);
                float found[LANES];
                MM(storeu_ps)(found, MM(mul_ps)(MM(set1_ps)(alpha), sum[q]));
                for (int r = 0; r < height; r++) {
                    float *p = c + (first + r) * ldc + col;
                    *p = beta != 0 ? fmaf(beta, *p, found[r]) : found[r];
                }
            }
        }
}

/* All rows, in tiles of `height` one after the other; the last may have fewer. What is contiguous
 * is read once, some messages at a time, not once for each tile that has a part of its lines. */
#define SOME_MESSAGES 8
static void pack_tiles(const float *a, int64_t am, int64_t ak, int64_t k, int64_t m, int height,
                       float *to) {
    if (am != 1) {
        for (int64_t i = 0; i < m; i += height)
            pack_rows(a + i * am, am, ak, k, m - i < height ? (int)(m - i) : height, to + i * k);
        return;
    }
    for (int64_t from = 0; from < k; from += SOME_MESSAGES) {
        const int64_t n = k - from < SOME_MESSAGES ? k - from : SOME_MESSAGES;
        for (int64_t i = 0; i < m; i += height) {
            const int rows = m - i < height ? (int)(m - i) : height;
            const lanes_t mask = lanes(rows, 0);
            const float *p = a + i + from * ak;
            float *q = to + i * k + from * rows;
            for (int64_t kk = 0; kk < n; kk++)
                store_lanes(q + kk * rows, mask, load_lanes(mask, p + kk * ak));
        }
    }
}

/* ---- zeros ---- */
/* Letters, and the margins of images, are mostly 0. Of an operand that may be so (`zeros`) tiles go
 * through those messages only in which one of their numbers is not 0, if these are few. Sums are what
 * they were: 0 times a finite number changes none, and where the other operand is not finite all
 * messages count. */

/* The places at which one of `width` numbers, `step` apart, is not 0. */
static int64_t not_zero(const float *p, int64_t step, int width, int64_t k, int16_t *at) {
    const lanes_t mask = lanes(width, 0);
    int64_t n = 0;
    for (int64_t kk = 0; kk < k; kk++) {
        at[n] = (int16_t)kk;
        n += not_zeros(load_lanes(mask, p + kk * step)) != 0;
    }
    return n;
}

static int is_finite(const float *p, int64_t n) {
    vec_t sum = MM(setzero_ps)();           /* of zeros, or NaN */
    for (int64_t i = 0; i < n; i += LANES)
        sum = MM(fmadd_ps)(load_lanes(lanes(n - i, 0), p + i), MM(setzero_ps)(), sum);
    return not_zeros(sum) == 0;
}

/* ---- what comes from memory next ---- */
typedef struct {
    const char *at; int64_t pitch, n_lines, rows;
} ahead_t;

/* A part of an operand: lines of 64 bytes, of those of its rows or columns that are contiguous. */
static ahead_t ahead_of(const float *p, int64_t rs, int64_t cs, int64_t rows, int64_t cols) {
    const int64_t n = cs == 1 ? cols : rows;
    return (ahead_t){(const char *)p, 4 * (cs == 1 ? rs : cs), (4 * n + 63) / 64 + 1,
                     cs == 1 ? rows : cols};
}
static inline void fetch(ahead_t *f, int64_t lines) {
    for (; f->rows > 0 && lines > 0; f->rows--, f->at += f->pitch, lines -= f->n_lines)
        for (int64_t i = 0; i < f->n_lines; i++) _mm_prefetch(f->at + 64 * i, _MM_HINT_T1);
}

/* n in `parts`, each a multiple of `align` but the last. */
static inline int64_t part_of(int64_t n, int64_t parts, int64_t align) {
    return ((n + parts - 1) / parts + align - 1) / align * align;
}

/* Pays where tiles take longer than that. */
#define ROWS_TO_FETCH 48
#define FEW_COLUMNS 2

static void wide_product(const float *a, int64_t am, int64_t ak, const float *b, int64_t bk,
                         int64_t bn, float *c, int64_t ldc, int64_t m, int64_t n, int64_t k,
                         float alpha, float beta, int zeros, char *scratch) {
    float *panels = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    float *tiles = panels + WIDE_COLS * WIDE_K;
    int16_t *lists = (int16_t *)(tiles + WIDE_ROWS * WIDE_K + 64);
    const int64_t n_depths = k > 0 ? (k + WIDE_K - 1) / WIDE_K : 1;
    const int64_t height = part_of(m, (m + WIDE_ROWS - 1) / WIDE_ROWS, TILE_ROWS);
    const int is_whole = height >= m;           /* then no panel is needed twice */
    const int64_t width = is_whole ? n : part_of(n, (n + WIDE_COLS - 1) / WIDE_COLS, PANEL);
    for (int64_t j0 = 0; j0 < n; j0 += width)
    for (int64_t depth = 0; depth < n_depths; depth++) {
        const int64_t j1 = j0 + width < n ? j0 + width : n;
        const int64_t k0 = k * depth / n_depths, kn = k * (depth + 1) / n_depths - k0;
        const float keep = depth ? 1.0f : beta;
        const int is_last = depth + 1 == n_depths;
        for (int64_t i0 = 0; i0 < m; i0 += height) {
            const int64_t i1 = i0 + height < m ? i0 + height : m;
            const int64_t n_tiles = (i1 - i0 + TILE_ROWS - 1) / TILE_ROWS;
            int64_t n_some[WIDE_ROWS / TILE_ROWS + 1];      /* of a tile's messages */
            int64_t n_looked = 0;
            int looks = zeros != ZEROS_NONE, is_tame[WIDE_ROWS / TILE_ROWS + 1];
            pack_tiles(a + i0 * am + k0 * ak, am, ak, kn, i1 - i0, TILE_ROWS, tiles);
            for (int64_t i = i0, q = 0; looks && i < i1; i += TILE_ROWS, q++) {
                const int rows = rows_from(i, i1);
                const float *from = tiles + (i - i0) * kn;
                is_tame[q] = zeros == ZEROS_A || is_finite(from, rows * kn);
                if (zeros == ZEROS_B) continue;
                n_some[q] = not_zero(from, rows, rows, kn, lists + q * (WIDE_K + 16));
                looks = 4 * n_some[q] <= 3 * kn;
                n_looked = q + looks;
            }
            ahead_t next = {0}, beside = {0};
            if (i1 < m)
                next = ahead_of(a + i1 * am + k0 * ak, am, ak, m - i1 < height ? m - i1 : height, kn);
            else if (!is_last)
                next = ahead_of(a + (k0 + kn) * ak, am, ak, m < height ? m : height, kn);
            const int64_t n_panels = (j1 - j0 + PANEL - 1) / PANEL;
            const int64_t n_next = next.n_lines * next.rows / (n_tiles * n_panels) + 1;
            for (int64_t j = j0; j < j1; j += PANEL) {
                const int64_t cols = j1 - j < PANEL ? j1 - j : PANEL, after = j1 - j - cols;
                float *panel = panels + (is_whole ? 0 : (j - j0) * kn);
                if (i0 == 0) {
                    pack_cols(b + k0 * bk + j * bn, bk, bn, kn, cols, panel);
                    if (after)
                        beside = ahead_of(b + k0 * bk + (j + PANEL) * bn, bk, bn, kn,
                                          after < PANEL ? after : PANEL);
                    else if (!is_last)
                        beside = ahead_of(b + (k0 + kn) * bk + j0 * bn, bk, bn, kn,
                                          j1 - j0 < PANEL ? j1 - j0 : PANEL);
                }
                const int64_t n_beside = beside.n_lines * beside.rows / n_tiles + 1;
                const int n_halves = 1 + (cols > LANES);
                int64_t half[2] = {0, 0};
                int is_some = 0;
                if (n_looked) {
                    is_some = is_finite(panel, PANEL * kn);
                } else if (zeros == ZEROS_B) {
                    for (int h = 0; h < n_halves; h++)
                        half[h] = not_zero(panel + LANES * h, PANEL, LANES, kn,
                                           lists + h * (WIDE_K + 16));
                    is_some = 8 * (half[0] + half[1]) <= 5 * n_halves * kn;
                }
                if (cols <= FEW_COLUMNS && !is_some) {
                    few_columns(tiles, i1 - i0, kn, panel, alpha, keep, c + i0 * ldc + j, ldc, cols);
                    continue;
                }
                for (int64_t i = i0, q = 0; i < i1; i += TILE_ROWS, q++) {
                    const int rows = rows_from(i, i1);
                    const float *from = tiles + (i - i0) * kn;
                    float *to = c + i * ldc + j;
                    if (m >= ROWS_TO_FETCH) { fetch(&next, n_next); fetch(&beside, n_beside); }
                    if (is_some && zeros == ZEROS_B && is_tame[q])
                        for (int h = 0; h < n_halves; h++)
                            SOME[0][rows](half[h], lists + h * (WIDE_K + 16), from, panel + LANES * h,
                                          alpha, keep, to + LANES * h, ldc, cols - LANES * h);
                    else if (is_some && q < n_looked)
                        SOME[cols > LANES][rows](n_some[q], lists + q * (WIDE_K + 16), from, panel,
                                                 alpha, keep, to, ldc, cols);
                    else
                        TILES[cols > LANES][rows](kn, NULL, from, panel, alpha, keep, to, ldc, cols);
                }
            }
        }
    }
}

static void wide_pack(const float *b, int64_t bk, int64_t bn, int64_t n, int64_t k, float *panels) {
    const int64_t n_depths = k > 0 ? (k + WIDE_K - 1) / WIDE_K : 1;
    for (int64_t depth = 0; depth < n_depths; depth++) {
        const int64_t k0 = k * depth / n_depths, kn = k * (depth + 1) / n_depths - k0;
        for (int64_t j = 0; j < n; j += PANEL, panels += PANEL * kn)
            pack_cols(b + k0 * bk + j * bn, bk, bn, kn, n - j < PANEL ? n - j : PANEL, panels);
    }
}

static void wide_packed(const float *a, int64_t am, int64_t ak, int64_t m, int64_t k,
                        const wide_part_t *parts, int n_parts, int64_t p0, int64_t p1,
                        char *scratch) {
    float *tiles = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    const int64_t n_depths = k > 0 ? (k + WIDE_K - 1) / WIDE_K : 1;
    const int64_t height = part_of(m, (m + WIDE_ROWS - 1) / WIDE_ROWS, TILE_ROWS);
    for (int64_t depth = 0; depth < n_depths; depth++) {
        const int64_t k0 = k * depth / n_depths, kn = k * (depth + 1) / n_depths - k0;
        for (int64_t i0 = 0; i0 < m; i0 += height) {
            const int64_t i1 = i0 + height < m ? i0 + height : m;
            pack_tiles(a + i0 * am + k0 * ak, am, ak, kn, i1 - i0, TILE_ROWS, tiles);
            int64_t before = 0;
            for (int part = 0; part < n_parts; part++) {
                const wide_part_t *w = &parts[part];
                const int64_t n_panels = (w->n + PANEL - 1) / PANEL;
                const int64_t lo = p0 > before ? p0 - before : 0;
                const int64_t hi = p1 - before < n_panels ? p1 - before : n_panels;
                const float *panels = w->panels + k0 * n_panels * PANEL;
                for (int64_t p = lo; p < hi; p++) {
                    const int64_t j = p * PANEL, cols = w->n - j < PANEL ? w->n - j : PANEL;
                    for (int64_t i = i0; i < i1; i += TILE_ROWS)
                        TILES[cols > LANES][rows_from(i, i1)](
                            kn, NULL, tiles + (i - i0) * kn, panels + p * PANEL * kn, w->alpha,
                            depth ? 1.0f : w->beta, w->c + i * w->ldc + j, w->ldc, cols);
                }
                before += n_panels;
            }
        }
    }
}

const wide_t WIDE = {PANEL, wide_product, wide_pack, wide_packed};
