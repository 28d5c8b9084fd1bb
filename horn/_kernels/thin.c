/* The weight gradient of a thin batch with its update, for AVX-512: every weight is touched once.
 *
 *     v = beta v + alpha d' x;   w += v          d (k, m), x (k, n), k at most THIN_K
 *
 * A BLAS packs x again for every block of rows and leaves w for a second pass; with k rows of batch
 * this product is bound by memory as much as by arithmetic. Here x is packed once into panels of 32
 * columns, a tile of 12 x 32 sums stays in registers, and the update is its epilogue. Where some
 * neurons sit the batch out, the epilogue spreads its tile over the places of those that do not.
 */
#include "thin.h"

#ifdef HORN_X86
#include <immintrin.h>

#include "target_avx512.h"

#define LEVEL 2
#include "pack.h"

#define THIN_ROWS 12

/* Columns of x that are packed at a time stay in the second-level cache. */
#define THIN_PANELS_BYTES (128 * 1024)
#define THIN_PANELS 16

typedef struct { int64_t row, col; } place_t;

static inline int thin_height(int64_t rows) { return rows >= 12 ? 12 : rows >= 8 ? 8 : rows >= 4 ? 4 : 1; }

/* Add the messages k0 to k1 to the sums of mr rows by 16 * half columns. */
static inline __attribute__((always_inline)) void
thin_sums(const int mr, const int half, int64_t k0, int64_t k1, const float *a, const float *b,
          __m512 sum[THIN_ROWS][2]) {
    for (int64_t kk = k0; kk < k1; kk++) {
        const __m512 b0 = _mm512_load_ps(b + kk * 32);
        const __m512 b1 = half == 2 ? _mm512_load_ps(b + kk * 32 + 16) : b0;
#pragma GCC unroll 12
        for (int i = 0; i < mr; i++) {
            const __m512 q = _mm512_set1_ps(a[kk * mr + i]);
            sum[i][0] = _mm512_fmadd_ps(q, b0, sum[i][0]);
            if (half == 2) sum[i][1] = _mm512_fmadd_ps(q, b1, sum[i][1]);
        }
    }
}

/* The rows of the tile at `next` of v and w are prefetched, one after the other: the tile's own
 * arithmetic hides the latency. */
static inline __attribute__((always_inline)) void
thin_tile(const int mr, int64_t k, const float *a, const float *b, float alpha, float beta,
          float *v, int64_t ldv, float *w, int64_t ldw, int64_t cols, place_t next,
          const gemm_t *others, place_t at) {
    __m512 sum[THIN_ROWS][2];
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    const int64_t step = (k + mr - 1) / mr;
    const float *fv = v + (next.row - at.row) * ldv + next.col - at.col;
    const float *fw = w ? w + (next.row - at.row) * ldw + next.col - at.col : w;
    for (int64_t k0 = 0; k0 < k; k0 += step) {
        const int64_t k1 = k0 + step < k ? k0 + step : k;
        _mm_prefetch((const char *)fv, _MM_HINT_T0);
        _mm_prefetch((const char *)(fv + 16), _MM_HINT_T0);
        fv += ldv;
        if (w) {
            _mm_prefetch((const char *)fw, _MM_HINT_T0);
            _mm_prefetch((const char *)(fw + 16), _MM_HINT_T0);
            fw += ldw;
        }
        if (others) {
            for (int j = 0; j < others->n_parts; j++) {
                const float *f = others->part[j] + next.row * others->ldpart[j] + next.col;
                _mm_prefetch((const char *)f, _MM_HINT_T0);
                _mm_prefetch((const char *)(f + 16), _MM_HINT_T0);
            }
            next.row++;
        }
        thin_sums(mr, 2, k0, k1, a, b, sum);
    }
    const __m512 va = _mm512_set1_ps(alpha), vb = _mm512_set1_ps(beta);
    const __mmask16 m0 = lanes(cols, 0), m1 = lanes(cols, 16);
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++) {
        float *p = v + i * ldv;
        if (others)
            for (int j = 0; j < others->n_parts; j++) {
                const float *q = others->part[j] + (at.row + i) * others->ldpart[j] + at.col;
                sum[i][0] = _mm512_add_ps(sum[i][0], _mm512_maskz_loadu_ps(m0, q));
                sum[i][1] = _mm512_add_ps(sum[i][1], _mm512_maskz_loadu_ps(m1, q + 16));
            }
        __m512 o0 = _mm512_mul_ps(va, sum[i][0]), o1 = _mm512_mul_ps(va, sum[i][1]);
        if (beta != 0) {
            o0 = _mm512_fmadd_ps(vb, _mm512_maskz_loadu_ps(m0, p), o0);
            o1 = _mm512_fmadd_ps(vb, _mm512_maskz_loadu_ps(m1, p + 16), o1);
        }
        _mm512_mask_storeu_ps(p, m0, o0);
        _mm512_mask_storeu_ps(p + 16, m1, o1);
        if (w) {
            float *q = w + i * ldw;
            _mm512_mask_storeu_ps(q, m0, _mm512_add_ps(_mm512_maskz_loadu_ps(m0, q), o0));
            _mm512_mask_storeu_ps(q + 16, m1, _mm512_add_ps(_mm512_maskz_loadu_ps(m1, q + 16), o1));
        }
    }
}

/* The places of a panel of live columns: blocks of 16 places, the live ones as a mask, and the
 * panel's column for each. */
typedef struct { int n; int32_t at[32]; uint16_t mask[32]; __m512i from[32]; } thin_blocks_t;

static void thin_find(const int32_t *cols, const uint16_t *bits, int64_t n, thin_blocks_t *to) {
    const int32_t first = cols[0], last = cols[n - 1];
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int32_t from = 0;
    to->n = 0;
    for (int32_t at = first >> 4; at <= last >> 4; at++) {
        uint32_t m = bits[at];
        if (at == first >> 4) m &= 0xffffu << (first & 15);
        if (at == last >> 4) m &= 0xffffu >> (15 - (last & 15));
        if (!m) continue;
        to->at[to->n] = 16 * at; to->mask[to->n] = (uint16_t)m;
        to->from[to->n++] = _mm512_maskz_expand_epi32(
            (__mmask16)m, _mm512_add_epi32(places, _mm512_set1_epi32(from)));
        from += __builtin_popcount(m);
    }
}

/* A tile whose rows and columns are spread over v and w: rows[0 .. mr), and the blocks' columns.
 * The rows `ahead` of the blocks `then` are prefetched. */
static inline __attribute__((always_inline)) void
thin_tile_live(const int mr, int64_t k, const float *a, const float *b, float alpha, float beta,
               float *v, int64_t ldv, float *w, int64_t ldw, const int64_t *rows,
               const int64_t *ahead, const thin_blocks_t *blocks, const thin_blocks_t *then) {
    __m512 sum[THIN_ROWS][2];
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    const int64_t step = (k + mr - 1) / mr;
    for (int64_t k0 = 0; k0 < k; k0 += step) {
        const int64_t k1 = k0 + step < k ? k0 + step : k, next = *ahead++;
        for (int j = 0; j < then->n; j++) {
            _mm_prefetch((const char *)(v + next * ldv + then->at[j]), _MM_HINT_T0);
            if (w) _mm_prefetch((const char *)(w + next * ldw + then->at[j]), _MM_HINT_T0);
        }
        thin_sums(mr, 2, k0, k1, a, b, sum);
    }
    const __m512 va = _mm512_set1_ps(alpha), vb = _mm512_set1_ps(beta);
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++) {
        sum[i][0] = _mm512_mul_ps(va, sum[i][0]);
        sum[i][1] = _mm512_mul_ps(va, sum[i][1]);
    }
    for (int j = 0; j < blocks->n; j++) {       /* out of registers: 24 hold the sums */
        const __mmask16 m = (__mmask16)blocks->mask[j];
        const __m512i from = blocks->from[j];
        float *pv = v + blocks->at[j], *pw = w + (w ? blocks->at[j] : 0);
#pragma GCC unroll 12
        for (int i = 0; i < mr; i++) {
            float *p = pv + rows[i] * ldv;
            __m512 o = _mm512_permutex2var_ps(sum[i][0], from, sum[i][1]);
            o = _mm512_fmadd_ps(vb, _mm512_maskz_loadu_ps(m, p), o);
            _mm512_mask_storeu_ps(p, m, o);
            if (w) {
                float *q = pw + rows[i] * ldw;
                _mm512_mask_storeu_ps(q, m, _mm512_add_ps(_mm512_maskz_loadu_ps(m, q), o));
            }
        }
    }
}

void thin_update(const float *d, int64_t dm, int64_t dk, const float *x, int64_t xk,
                        int64_t xn, int64_t r0, int64_t r1, int64_t n, int64_t k, float alpha,
                        float beta, float *v, int64_t ldv, float *w, int64_t ldw,
                        const int32_t *rows, const int32_t *cols, const uint16_t *bits,
                        const gemm_t *others, char *scratch) {
    float *panels = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    float *tiles = panels + THIN_PANELS_BYTES / 4;
    int64_t strip = 32 * (THIN_PANELS_BYTES / 128 / (k > 0 ? k : 1));
    strip = strip < 32 * THIN_PANELS ? strip : 32 * THIN_PANELS;
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int64_t height = THIN_TILES_BYTES / 4 / (k > 0 ? k : 1) / THIN_ROWS * THIN_ROWS;
    if (cols && n > 0 && cols[n - 1] - cols[0] == n - 1) {      /* one range */
        v += cols[0];
        if (w) w += cols[0];
        cols = NULL;
    }
    if (rows && r1 > r0 && rows[r1 - 1] - rows[r0] == r1 - r0 - 1) {
        v += (rows[r0] - r0) * ldv;
        if (w) w += (rows[r0] - r0) * ldw;
        rows = NULL;
    }
    for (int64_t s0 = r0; s0 < r1; s0 += height) {
        const int64_t s1 = s0 + height < r1 ? s0 + height : r1;
        for (int64_t r = s0; r < s1;) {
            const int mr = thin_height(s1 - r);
            pack_rows(d + r * dm, dm, dk, k, mr, tiles + (r - s0) * k);
            r += mr;
        }
        for (int64_t c0 = 0; c0 < n; c0 += strip) {
            const int64_t c1 = c0 + strip < n ? c0 + strip : n;
            const int n_panels = (int)((c1 - c0 + 31) / 32);
            thin_blocks_t blocks[THIN_PANELS];
            for (int p = 0; p < n_panels; p++) {
                const int64_t c = c0 + 32 * p, cn = c1 - c < 32 ? c1 - c : 32;
                if (cols) {
                    thin_find(cols + c, bits, cn, &blocks[p]);
                } else if (rows) {
                    thin_blocks_t *all = &blocks[p];
                    all->n = cn > 16 ? 2 : 1;
                    all->at[0] = (int32_t)c; all->at[1] = (int32_t)c + 16;
                    all->from[0] = places; all->from[1] = _mm512_add_epi32(places, _mm512_set1_epi32(16));
                    all->mask[0] = lanes(cn, 0); all->mask[1] = lanes(cn, 16);
                }
                pack_cols(x + c * xn, xk, xn, k, cn, 0, panels + p * 32 * k);
            }
            for (int64_t r = s0; r < s1;) {
                const int mr = thin_height(s1 - r);
                const float *a = tiles + (r - s0) * k;
                int64_t at[2 * THIN_ROWS];
                if (rows || cols)
                    for (int i = 0; i < 2 * mr; i++) {
                        const int64_t to = r + i < s1 ? r + i : s1 - 1;
                        at[i] = rows ? rows[to] : to;
                    }
                for (int p = 0; p < n_panels; p++) {
                    const float *b = panels + p * 32 * k;
                    const int is_last = p + 1 == n_panels, then = is_last ? 0 : p + 1;
                    if (rows || cols) {
                        const int64_t *ahead = is_last ? at + mr : at;
#define LIVE_TILE(MR) \
    thin_tile_live(MR, k, a, b, alpha, beta, v, ldv, w, ldw, at, ahead, &blocks[p], &blocks[then])
                        switch (mr) {
                        case 12: LIVE_TILE(12); break;
                        case 8: LIVE_TILE(8); break;
                        case 4: LIVE_TILE(4); break;
                        default: LIVE_TILE(1); break;
                        }
                        continue;
                    }
                    const place_t here = {r, c0 + 32 * p};
                    const place_t next = {is_last ? r + mr : r, c0 + 32 * then};
                    float *pv = v + r * ldv + here.col, *pw = w ? w + r * ldw + here.col : NULL;
                    const int64_t cn = c1 - here.col < 32 ? c1 - here.col : 32;
#define TILE(MR) \
    thin_tile(MR, k, a, b, alpha, beta, pv, ldv, pw, ldw, cn, next, others, here)
                    switch (mr) {
                    case 12: TILE(12); break;
                    case 8: TILE(8); break;
                    case 4: TILE(4); break;
                    default: TILE(1); break;
                    }
                }
                r += mr;
            }
        }
    }
}

#include "live.h"

#include "target_end.h"
#endif
