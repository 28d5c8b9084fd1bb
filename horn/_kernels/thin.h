/* The weight gradient of a thin batch with its update: every weight is touched once. For one
 * processor level (vectors.h).
 *
 *     v = beta v + alpha d' x;   w += v          d (k, m), x (k, n), k at most THIN_K
 *
 * A BLAS packs x again for every block of rows and leaves w for a second pass; with k rows of batch
 * this product is bound by memory as much as by arithmetic. Here x is packed once into panels, a tile
 * of sums stays in registers, and the update is its epilogue. Where some neurons sit the batch out,
 * the epilogue spreads its tile over the places of those that do not (AVX-512). Where x is of data,
 * samples in which a panel is 0 are passed over.
 */
#include "pack.h"

/* 24 of the 32 registers hold sums; of 16, 12. A tile has one of four heights. */
#if LEVEL == 2
#define THIN_ROWS 12
#define HEIGHTS(F) F(case 12, 12) F(case 8, 8) F(case 4, 4) F(default, 1)
static inline int thin_height(int64_t rows) { return rows >= 12 ? 12 : rows >= 8 ? 8 : rows >= 4 ? 4 : 1; }
#else
#define THIN_ROWS 6
#define HEIGHTS(F) F(case 6, 6) F(case 4, 4) F(case 2, 2) F(default, 1)
static inline int thin_height(int64_t rows) { return rows >= 6 ? 6 : rows >= 4 ? 4 : rows >= 2 ? 2 : 1; }
#endif

/* All lines that have some of n numbers of a row, which seldom begins where a line does. */
static inline void prefetch_row(const float *p, int n) {
    for (int i = 0; i < n; i += 16) _mm_prefetch((const char *)(p + i), _MM_HINT_T0);
    _mm_prefetch((const char *)(p + n - 1), _MM_HINT_T0);
}

/* Add the messages k0 to k1, or those at such places of the list, to the sums of mr rows by
 * LANES * half columns. */
static inline __attribute__((always_inline)) void
thin_sums(const int mr, const int half, const int16_t *at, int64_t k0, int64_t k1, const float *a,
          const float *b, vec_t sum[THIN_ROWS][2]) {
    for (int64_t j = k0; j < k1; j++) {
        const int64_t kk = at ? at[j] : j;
        const vec_t b0 = MM(load_ps)(b + kk * PANEL);
        const vec_t b1 = half == 2 ? MM(load_ps)(b + kk * PANEL + LANES) : b0;
#pragma GCC unroll 12
        for (int i = 0; i < mr; i++) {
            const vec_t q = MM(set1_ps)(a[kk * mr + i]);
            sum[i][0] = MM(fmadd_ps)(q, b0, sum[i][0]);
            if (half == 2) sum[i][1] = MM(fmadd_ps)(q, b1, sum[i][1]);
        }
    }
}

/* `next` rows are prefetched, one after the other: the tile's own arithmetic hides the latency. `at`:
 * the places of the k messages that count. */
static inline __attribute__((always_inline)) void
thin_tile(const int mr, const int16_t *at, int64_t k, const float *a, const float *b, float alpha,
          float beta, float *v, int64_t ldv, float *w, int64_t ldw, int64_t cols, int64_t next,
          const gemm_t *others, int64_t at_row, int64_t at_col) {
    vec_t sum[THIN_ROWS][2];
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++) sum[i][0] = sum[i][1] = MM(setzero_ps)();
    const int64_t step = (k + mr - 1) / mr;
    const float *fv = v + next * ldv, *fw = w + next * ldw;
    int64_t ahead = next;
    for (int64_t k0 = 0; at ? ahead < next + mr : k0 < k; k0 += step) {
        const int64_t k1 = k0 + step < k ? k0 + step : k;
        prefetch_row(fv, PANEL);
        fv += ldv;
        if (w) {
            prefetch_row(fw, PANEL);
            fw += ldw;
        }
        if (others)
            for (int j = 0; j < others->n_parts; j++)
                prefetch_row(others->part[j] + (at_row + ahead) * others->ldpart[j] + at_col, PANEL);
        ahead++;
        thin_sums(mr, 2, at, k0, k1, a, b, sum);
    }
    const vec_t va = MM(set1_ps)(alpha), vb = MM(set1_ps)(beta);
    const lanes_t m0 = lanes(cols, 0), m1 = lanes(cols, LANES);
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++) {
        float *p = v + i * ldv;
        sum[i][0] = no_sign(sum[i][0]); sum[i][1] = no_sign(sum[i][1]);
        if (others)
            for (int j = 0; j < others->n_parts; j++) {
                const float *q = others->part[j] + (at_row + i) * others->ldpart[j] + at_col;
                sum[i][0] = MM(add_ps)(sum[i][0], load_lanes(m0, q));
                sum[i][1] = MM(add_ps)(sum[i][1], load_lanes(m1, q + LANES));
            }
        vec_t o0 = MM(mul_ps)(va, sum[i][0]), o1 = MM(mul_ps)(va, sum[i][1]);
        if (beta != 0) {
            o0 = MM(fmadd_ps)(vb, load_lanes(m0, p), o0);
            o1 = MM(fmadd_ps)(vb, load_lanes(m1, p + LANES), o1);
        }
        store_lanes(p, m0, o0);
        store_lanes(p + LANES, m1, o1);
        if (w) {
            float *q = w + i * ldw;
            store_lanes(q, m0, MM(add_ps)(load_lanes(m0, q), o0));
            store_lanes(q + LANES, m1, MM(add_ps)(load_lanes(m1, q + LANES), o1));
        }
    }
}

/* The samples of which some numbers of a panel are not 0. */
static int64_t thin_places(const float *panel, int64_t k, int16_t *at) {
    int64_t n = 0;
    for (int64_t kk = 0; kk < k; kk++) {
        at[n] = (int16_t)kk;
        n += (not_zeros(MM(load_ps)(panel + kk * PANEL))
              | not_zeros(MM(load_ps)(panel + kk * PANEL + LANES))) != 0;
    }
    return n;
}

/* A tile of some messages. A function each, or registers go to memory in the innermost loop. */
#define THIN_SOME(label, height)                                                                 \
    static __attribute__((noinline)) void thin_some_##height(                                    \
        const int16_t *at, int64_t n, const float *a, const float *b, float alpha, float beta,   \
        float *v, int64_t ldv, float *w, int64_t ldw, int64_t cols, const gemm_t *others,        \
        int64_t at_row, int64_t at_col) {                                                        \
        thin_tile(height, at, n, a, b, alpha, beta, v, ldv, w, ldw, cols, height, others,        \
                  at_row, at_col);                                                               \
    }
HEIGHTS(THIN_SOME)

#if LEVEL == 2
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
 * The rows `ahead` are prefetched. */
static inline __attribute__((always_inline)) void
thin_tile_live(const int mr, int64_t k, const float *a, const float *b, float alpha, float beta,
               float *v, int64_t ldv, float *w, int64_t ldw, const int64_t *rows,
               const int64_t *ahead, const thin_blocks_t *blocks) {
    __m512 sum[THIN_ROWS][2];
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    const int64_t step = (k + mr - 1) / mr;
    for (int64_t k0 = 0; k0 < k; k0 += step) {
        const int64_t k1 = k0 + step < k ? k0 + step : k, next = *ahead++;
        for (int j = 0; j < blocks->n; j++) {
            prefetch_row(v + next * ldv + blocks->at[j], 16);
            if (w) prefetch_row(w + next * ldw + blocks->at[j], 16);
        }
        thin_sums(mr, 2, NULL, k0, k1, a, b, sum);
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

#endif

void THIN_UPDATE(const float *d, int64_t dm, int64_t dk, const float *x, int64_t xk, int64_t xn,
                 int64_t r0, int64_t r1, int64_t n, int64_t k, float alpha, float beta, float *v,
                 int64_t ldv, float *w, int64_t ldw, const int32_t *rows, const int32_t *cols,
                 const uint16_t *bits, const gemm_t *others, int zeros, char *scratch) {
    float *panel = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    float *tiles = panel + WIDE_PANEL * THIN_K;
    int64_t height = THIN_TILES_BYTES / 4 / (k > 0 ? k : 1) / THIN_ROWS * THIN_ROWS;
#if LEVEL == 2
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
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
#endif
    for (int64_t s0 = r0; s0 < r1; s0 += height) {
        const int64_t s1 = s0 + height < r1 ? s0 + height : r1;
        for (int64_t r = s0; r < s1;) {
            const int mr = thin_height(s1 - r);
            pack_rows(d + r * dm, dm, dk, k, mr, tiles + (r - s0) * k);
            r += mr;
        }
        const int is_tame = zeros && !rows && !cols && is_finite(tiles, (s1 - s0) * k);
        for (int64_t c = 0; c < n; c += PANEL) {
            const int64_t cn = n - c < PANEL ? n - c : PANEL;
#if LEVEL == 2
            thin_blocks_t blocks;
            blocks.n = 0;
            if (cols) {
                thin_find(cols + c, bits, cn, &blocks);
            } else if (rows) {
                blocks.n = cn > 16 ? 2 : 1;
                blocks.at[0] = (int32_t)c; blocks.at[1] = (int32_t)c + 16;
                blocks.from[0] = places; blocks.from[1] = _mm512_add_epi32(places, _mm512_set1_epi32(16));
                blocks.mask[0] = lanes(cn, 0); blocks.mask[1] = lanes(cn, 16);
            }
#endif
            pack_cols(x + c * xn, xk, xn, k, cn, 0, panel);
            int16_t some[THIN_K + 1];
            const int64_t n_some = is_tame ? thin_places(panel, k, some) : k;
            for (int64_t r = s0; r < s1;) {
                const int mr = thin_height(s1 - r);
                const float *a = tiles + (r - s0) * k;
#if LEVEL == 2
                if (rows || cols) {
                    int64_t at[2 * THIN_ROWS];
                    for (int i = 0; i < 2 * mr; i++) {
                        const int64_t to = r + i < s1 ? r + i : s1 - 1;
                        at[i] = rows ? rows[to] : to;
                    }
#define LIVE_TILE(label, height) label: \
                        thin_tile_live(height, k, a, panel, alpha, beta, v, ldv, w, ldw, at, \
                                       at + height, &blocks); break;
                    switch (mr) { HEIGHTS(LIVE_TILE) }
                    r += mr;
                    continue;
                }
#endif
                float *pv = v + r * ldv + c, *pw = w ? w + r * ldw + c : NULL;
                if (8 * n_some < 7 * k) {
#define SOME_TILE(label, height) label: \
                    thin_some_##height(some, n_some, a, panel, alpha, beta, pv, ldv, pw, ldw, cn, \
                                       others, r, c); break;
                    switch (mr) { HEIGHTS(SOME_TILE) }
                    r += mr;
                    continue;
                }
#define WHOLE_TILE(label, height) label: \
                    thin_tile(height, NULL, k, a, panel, alpha, beta, pv, ldv, pw, ldw, cn, height, \
                              others, r, c); break;
                switch (mr) { HEIGHTS(WHOLE_TILE) }
                r += mr;
            }
        }
    }
}
