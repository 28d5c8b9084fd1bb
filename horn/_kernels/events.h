/* Events: the nonzero numbers of an operand, for one processor level (wide.h).
 *
 * Letters, the margins of images and spikes are mostly 0. Where less than a fifth of the numbers is
 * not 0, each row skips the other messages: an event per nonzero message, over many columns at a
 * time. In a fuller operand a tile skips messages in which all its numbers are 0, if few messages
 * are left; a tile with many ends the search in its block. Sums do not change: 0 times a finite
 * number changes none, their order stays, and where the other operand is not finite all messages
 * count.
 */
#include "product_tile.h"

#define LIST (WIDE_K + 16)
#define MOST_TILES (WIDE_ROWS / LOW_ROWS + 1)
#define MOST_VECTORS 14                     /* sums of a row; 16 registers have room for them */
#define SAMPLED 16                          /* lines that is_mostly_zero reads */

typedef struct {
    int16_t *tile_at, *row_at;              /* the places of each tile, of each row, LIST each */
    float *row_value;                       /* and the values there */
    int64_t n_tiles, n_some[MOST_TILES];    /* searched tiles of a block, and the places of each */
    int16_t n_of[WIDE_ROWS];                /* events of each row of a block */
} events_t;

/* The places among k, `step` numbers apart, at which one of `width` neighbours is not 0. */
static int64_t not_zero(const float *p, int64_t step, int width, int64_t k, int16_t *at) {
    const lanes_t mask = lanes(width, 0);
    int64_t n = 0;
    for (int64_t kk = 0; kk < k; kk++) {
        at[n] = (int16_t)kk;
        n += not_zeros(load_lanes(mask, p + kk * step)) != 0;
    }
    return n;
}

static void find_in_tiles(events_t *e, const float *tiles, int tall, int64_t rows, int64_t k) {
    e->n_tiles = 0;
    for (int64_t i = 0, q = 0; i < rows; i += tall, q++) {
        const int height = rows - i < tall ? (int)(rows - i) : tall;
        e->n_some[q] = not_zero(tiles + i * k, height, height, k, e->tile_at + q * LIST);
        if (4 * e->n_some[q] > 3 * k) return;
        e->n_tiles++;
    }
}

/* Whether less than a fifth of a (m, k) is not 0, by a sample of its lines. Their distance varies: of
 * the steps of samples an even one might hit the same sample, or the same step, each time. */
static int is_mostly_zero(const float *a, int64_t am, int64_t ak, int64_t m, int64_t k) {
    const int is_by_rows = ak == 1;
    const int64_t lines = is_by_rows ? m : k, length = is_by_rows ? k : m;
    const int64_t step = is_by_rows ? am : ak, n = lines < SAMPLED ? lines : SAMPLED;
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        const float *p = a + (lines * i / n + (37 * i + 11) % (lines / n)) * step;
        for (int64_t j = 0; j < length; j += LANES)
            found += __builtin_popcount((unsigned)not_zeros(load_lanes(lanes(length - j, 0), p + j)));
    }
    return 5 * found < n * length;
}

#if LEVEL == 2
/* Append the numbers of v that are not 0, and their places, from `first` on; return their
 * number. */
static inline int append(int16_t *at, float *value, int first, __m512 v) {
    const __m512i all = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 found = not_zeros(v);
    const __m512i places = _mm512_add_epi32(_mm512_maskz_compress_epi32(found, all),
                                            _mm512_set1_epi32(first));
    _mm512_storeu_ps(value, _mm512_maskz_compress_ps(found, v));
    _mm256_storeu_si256((__m256i *)at, _mm512_cvtepi32_epi16(places));
    return __builtin_popcount(found);
}
#else
/* For each byte the places of its ones, a byte for each. */
#define ONE(m, i) (((m) >> (i) & 1) ? (uint64_t)(i) << 8 * __builtin_popcount((m) & ((1 << (i)) - 1)) : 0)
#define ONES(m) (ONE(m, 0) | ONE(m, 1) | ONE(m, 2) | ONE(m, 3) | ONE(m, 4) | ONE(m, 5) | ONE(m, 6) \
                 | ONE(m, 7)),
#define FOUR(m) ONES(m) ONES(m + 1) ONES(m + 2) ONES(m + 3)
#define SIXTEEN(m) FOUR(m) FOUR(m + 4) FOUR(m + 8) FOUR(m + 12)
#define SIXTY(m) SIXTEEN(m) SIXTEEN(m + 16) SIXTEEN(m + 32) SIXTEEN(m + 48)
static const uint64_t PLACES[256] = {SIXTY(0) SIXTY(64) SIXTY(128) SIXTY(192)};

/* Append the numbers of v that are not 0, and their places, from `first` on; return their
 * number. */
static inline int append(int16_t *at, float *value, int first, __m256 v) {
    const int found = not_zeros(v);
    const __m128i places = _mm_loadl_epi64((const __m128i *)&PLACES[found]);
    _mm256_storeu_ps(value, _mm256_permutevar8x32_ps(v, _mm256_cvtepu8_epi32(places)));
    _mm_storeu_si128((__m128i *)at, _mm_add_epi16(_mm_cvtepu8_epi16(places),
                                                  _mm_set1_epi16((int16_t)first)));
    return __builtin_popcount((unsigned)found);
}
#endif

/* Find the events of each row; 0: there are too many. One of am and ak is 1. */
static int find_in_rows(events_t *e, const float *a, int64_t am, int64_t ak, int64_t rows, int64_t k) {
    int64_t found = 0;
    for (int64_t i = 0; i < rows && ak == 1; i++) {
        int16_t *at = e->row_at + i * LIST;
        float *value = e->row_value + i * LIST;
        int64_t n = 0;
        for (int64_t kk = 0; kk < k; kk += LANES) {
            _mm_prefetch((const char *)(a + (i + 2) * am + kk), _MM_HINT_T0);
            n += append(at + n, value + n, (int)kk, load_lanes(lanes(k - kk, 0), a + i * am + kk));
        }
        e->n_of[i] = (int16_t)n;
        found += n;
        if (3 * found > rows * k) return 0;
    }
    if (ak != 1) memset(e->n_of, 0, rows * sizeof(int16_t));
    for (int64_t kk = 0; kk < k && ak != 1; kk += LANES) {      /* as the numbers lie */
        for (int64_t i = 0; i < rows; i += LANES) {
            const int height = rows - i < LANES ? (int)(rows - i) : LANES;
            const lanes_t mask = lanes(height, 0);
            vec_t r[LANES], t[LANES];
            for (int q = 0; q < LANES; q++) {
                const float *p = a + i + (kk + q) * ak;
                r[q] = kk + q < k ? load_lanes(mask, p) : MM(setzero_ps)();
                _mm_prefetch((const char *)(p + 2 * LANES * ak), _MM_HINT_T0);
            }
            transpose_of(r, t);
            for (int q = 0; q < height; q++) {
                const int64_t to = (i + q) * LIST + e->n_of[i + q];
                const int n = append(e->row_at + to, e->row_value + to, (int)kk, r[q]);
                e->n_of[i + q] += (int16_t)n;
                found += n;
            }
        }
        if (3 * found > rows * k) return 0;
    }
    return 1;
}

/* c = beta c + alpha a b for a row with n events, and n_vectors of columns of b: its messages are
 * `ld` apart, and pairs of vectors `pitch` apart. is_cut : b ends with the last column, so that the
 * last vector is read in part. */
static inline __attribute__((always_inline)) void
row(const int n_vectors, const int is_cut, int64_t n, const int16_t *at, const float *value,
    const float *b, int64_t ld, int64_t pitch, float alpha, float beta, float *c, int64_t cols) {
    const lanes_t last = lanes(cols, (n_vectors - 1) * LANES);
    vec_t sum[MOST_VECTORS];
#pragma GCC unroll 14
    for (int v = 0; v < n_vectors; v++) sum[v] = MM(setzero_ps)();
    for (int64_t j = 0; j < n; j++) {
        const vec_t q = MM(set1_ps)(value[j]);
        const float *p = b + at[j] * ld;
#pragma GCC unroll 14
        for (int v = 0; v < n_vectors; v++) {
            const float *from = p + v / 2 * pitch + v % 2 * LANES;
            sum[v] = MM(fmadd_ps)(q, is_cut && v + 1 == n_vectors ? load_lanes(last, from)
                                                                  : MM(loadu_ps)(from), sum[v]);
        }
    }
    const vec_t va = MM(set1_ps)(alpha), vb = MM(set1_ps)(beta);
#pragma GCC unroll 14
    for (int v = 0; v < n_vectors; v++) {
        const lanes_t mask = lanes(cols, v * LANES);
        vec_t o = MM(mul_ps)(va, no_sign(sum[v]));
        if (beta != 0) o = MM(fmadd_ps)(vb, load_lanes(mask, c + v * LANES), o);
        store_lanes(c + v * LANES, mask, o);
    }
}

typedef void (*row_t)(int64_t, const int16_t *, const float *, const float *, int64_t, int64_t, float,
                      float, float *, int64_t);
#define ROW(n_vectors, is_cut, unused)                                                           \
    static __attribute__((noinline)) void row_##n_vectors##_##is_cut(                            \
        int64_t n, const int16_t *at, const float *value, const float *b, int64_t ld,            \
        int64_t pitch, float alpha, float beta, float *c, int64_t cols) {                        \
        row(n_vectors, is_cut, n, at, value, b, ld, pitch, alpha, beta, c, cols);                \
    }
#define FOURTEEN_OF(F, w, s) TWELVE_OF(F, w, s) F(13, w, s) F(14, w, s)
FOURTEEN_OF(ROW, 0, 0)
FOURTEEN_OF(ROW, 1, 0)
#define ROW_NAME(n_vectors, is_cut, unused) row_##n_vectors##_##is_cut,
static const row_t ROWS[2][MOST_VECTORS + 1] = {{0, FOURTEEN_OF(ROW_NAME, 0, 0)},
                                                {0, FOURTEEN_OF(ROW_NAME, 1, 0)}};

/* All rows of a block, and some columns; of b as `row` has it. */
static void rows_of(const events_t *e, int64_t rows, const float *b, int64_t ld, int64_t pitch,
                    int is_cut, float alpha, float beta, float *c, int64_t ldc, int64_t cols) {
    const int n_vectors = (int)((cols + LANES - 1) / LANES);
    const row_t each = ROWS[is_cut && cols % LANES][n_vectors];
    for (int64_t i = 0; i < rows; i++)
        each(e->n_of[i], e->row_at + i * LIST, e->row_value + i * LIST, b, ld, pitch, alpha, beta,
             c + i * ldc, cols);
}

/* to (cols, rows) = the transpose of from (rows, cols). */
static void turn(const float *from, int64_t from_ld, int64_t rows, int64_t cols, float *to,
                 int64_t to_ld) {
    for (int64_t i = 0; i < rows; i += LANES)
        for (int64_t j = 0; j < cols; j += LANES) {
            const int height = rows - i < LANES ? (int)(rows - i) : LANES;
            const int width = cols - j < LANES ? (int)(cols - j) : LANES;
            vec_t r[LANES], t[LANES];
            for (int q = 0; q < LANES; q++)
                r[q] = q < height ? load_lanes(lanes(width, 0), from + (i + q) * from_ld + j)
                                  : MM(setzero_ps)();
            transpose_of(r, t);
            for (int q = 0; q < width; q++)
                store_lanes(to + (j + q) * to_ld + i, lanes(height, 0), r[q]);
        }
}
